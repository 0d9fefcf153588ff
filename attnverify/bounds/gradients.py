"""Bounds for the gradients: the absolute-value majorant of the backward formulas, step by step."""

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy import ndarray

from attnverify.bounds.alibi import alibi_error, alibi_forms
from attnverify.bounds.attention import masked
from attnverify.bounds.error_rules import (
    accumulation,
    dot,
    gamma,
    operand,
    overflowing,
    rounded,
    summed,
)
from attnverify.bounds.scores import Products, products, scaled_error, score_error
from attnverify.bounds.softmax import Precisions, Rows, absent, exponent_error, total, unsteadiness
from attnverify.bounds.weighted_mean import Mixture, mean_error, mixture
from attnverify.precision import Precision

Grads = tuple[ndarray, ...]


@dataclass(frozen=True)
class Backward:
    """
    In float64: weights w = p factor, dW = dO v^T, dP = factor dW, D = rowsum(dO O), dS = p
    (dP - D).
    """

    mix: Mixture
    d_output: ndarray
    w: ndarray
    dW: ndarray
    dP: ndarray
    dS: ndarray
    x: ndarray


def backward(mix: Mixture, d_output: ndarray) -> Backward:
    """The backward pass of softmax, dropout and the product with the values."""
    p, factor = mix.rows.p, mix.factor
    dW = d_output @ mix.v.swapaxes(-1, -2)
    dP = dW if factor is None else dW * factor
    x = dP - (d_output * mix.o).sum(-1, keepdims=True)
    return Backward(
        mix, d_output, p if factor is None else p * factor, dW, dP, absent(mix.rows, p * x), x
    )


def recomputed_error(mix: Mixture, E: ndarray, Es: ndarray | None, P: Precision) -> ndarray:
    """
    The error of a weight that may be recomputed as exp(s - saved lse), or be w / l:

        E_lse = max(log sum p e^E, -log sum p e^-E) + R + g(4, u) (1 + |lse| + log n)
        L     = E + E_lse + g(3, u) (|s - lse| + Es + E_lse),    E_P = p (e^L - 1) + min(eta, p) in
              the range of underflow
    """
    at, n, u = mix.rows, mix.v.shape[-2], P.softmax.u
    up, down = (
        np.exp(at.d + E).sum(-1, keepdims=True) / at.norm,
        np.exp(at.d - E).sum(-1, keepdims=True) / at.norm,
    )
    log_norm = np.log(at.norm)
    E_lse = (
        np.maximum(np.log(up), -np.log(down))
        + unsteadiness(n, P)
        + gamma(4, u) * (1 + np.abs(at.m + log_norm) + log(n))
    )
    L = E + E_lse + gamma(3, u) * (log_norm - at.d + E_lse + (0.0 if Es is None else Es))
    E_P = np.where(L < 1, at.p * np.expm1(np.minimum(L, 1.0)), np.exp(at.d - log_norm + L) - at.p)
    low = max(P.softmax.tiny, P.prob.tiny)
    return absent(at, E_P + np.where(at.p < 2 * low, np.minimum(P.softmax.eta, at.p), 0.0))


def score_gradient_error(at: Backward, Es: ndarray | None, P: Precision) -> tuple[ndarray, ndarray]:
    """
    The errors of dS and of dV, the latter stored.

        E_P' = rounded(p, E_P, prob);  E_dV = dot(w^T, E_w, dO) [+ narrow partials], stored
        E_dP = rounded(dO v^T, dot, score)
        E_D  = the larger of |dO| Eo + acc(E) |dO| (|o|+Eo) and sum E_P'|dP| + (p+E_P')
             E_dP + (acc(n) + g(1,u)) (p+E_P')(|dP|+E_dP)
        E_dS = E_P' (|dP-D| + E_dP + E_D) + p (E_dP + E_D) + g(3,u) (p+E_P') (|dP-D| + E_dP + E_D),
        rounded to prob and to score
    """
    mix, chain, dO = at.mix, at.mix.rows, at.d_output
    p, n, size_o = chain.p, mix.v.shape[-2], np.abs(dO)
    E = exponent_error(chain, Es, P)
    E_P = absent(chain, rounded(p, recomputed_error(mix, E, Es, P), P.prob), E)
    dV = product_gradient(at.w, _dropped(at.w, E_P, mix, P), dO, None, P, transposed=True)
    vT = mix.v.swapaxes(-1, -2)
    E_dP = rounded(at.dW, dot(dO, operand(dO, None, P), vT, operand(vT, None, P), P), P.score)
    E_dP = _dropped(at.dP, E_dP, mix, P)
    E_o = mean_error(mix, E, None, P, P.storage)
    D_output = (size_o * (E_o + accumulation(dO.shape[-1], P) * (np.abs(mix.o) + E_o))).sum(
        -1, keepdims=True
    )
    most_P, size_dP = p + E_P, np.abs(at.dP)
    per_key = (
        E_P * size_dP
        + most_P * E_dP
        + (accumulation(n, P) + gamma(1, P.softmax.u)) * most_P * (size_dP + E_dP)
    )
    E_x = (
        E_dP
        + np.fmax(D_output, absent(chain, per_key).sum(-1, keepdims=True))
        + (n + dO.shape[-1]) * P.acc.eta
    )
    most_x = np.abs(at.x) + E_x
    E_dS = E_P * most_x + p * E_x + gamma(3, P.softmax.u) * most_P * most_x
    E_dS = rounded(at.dS, rounded(at.dS, E_dS, P.prob), P.score)
    return absent(chain, E_dS, E), at_seen_keys(chain, settled(dV))


def _dropped(x: ndarray, E: ndarray, mix: Mixture, P: Precision) -> ndarray:
    """
    The error after the dropout factor: exact for p = 0, else the constant's three roundings and one
    to `prob`.
    """
    E = E if mix.factor is None else E * mix.factor
    return (
        rounded(x, E + gamma(3, (P.scale_const or P.acc).u) * (np.abs(x) + E), P.prob)
        if mix.scaled
        else E
    )


def settled(E: ndarray) -> ndarray:
    """E with inf for what is no number."""
    return np.where(np.isnan(E), np.inf, E) if np.isnan(E.sum()) else E


def product_gradient(
    x: ndarray,
    E: ndarray,
    y: ndarray,
    Ey: ndarray | None,
    P: Precision,
    *,
    transposed: bool = False,
    narrow: bool = True,
    terms: int | None = None,
) -> ndarray:
    """
    The error of x @ y (x^T @ y), operands rounded, summed in any order, stored; `joined` instead of
    storage if not `narrow`. `terms`: how many are summed, where x leaves out some that are zero.

    Where gradients are accumulated over blocks in a narrow format, g(number of blocks, u_partial)
    (|x|+E) (|y|+Ey) more, and as many eta_partial: a block's gradient may lie in the range of
    underflow.
    """
    block = P.grad_block_q if transposed else P.grad_block_k
    x, E = (x.swapaxes(-1, -2), E.swapaxes(-1, -2)) if transposed else (x, E)
    Ex, Ey = operand(x, E, P, stored=False), operand(y, Ey, P)
    terms = terms or x.shape[-1]
    grown = dot(x, Ex, y, Ey, P, terms)
    if P.grad_partial is not None:
        top = (np.abs(x) + E) @ (np.abs(y) if Ey is None else np.abs(y) + Ey)
        blocks = ceil(terms / block)
        grown = grown + gamma(blocks, P.grad_partial.u) * top + blocks * P.grad_partial.eta
    return rounded(x @ y, grown, P.storage if narrow else P.joined)


def at_seen_keys(chain: Rows, E: ndarray) -> ndarray:
    """The bound of a gradient of keys or values: exactly zero for a key that no query sees."""
    if chain.visible is None:
        return E
    return np.where(chain.seen_keys[..., None] | np.isinf(E), E, 0.0)


def at_seeing_queries(chain: Rows, E: ndarray) -> ndarray:
    """The bound of a gradient of queries: exactly zero for a query that sees no key."""
    return E if chain.blind is None else np.where(chain.blind, 0.0, E)


def scaled_gradient(
    at: Backward, E_dS: ndarray, scale: float, P: Precision
) -> tuple[ndarray, ndarray]:
    """
    scale dS and its error: the scale's constant and product, three more roundings where it follows
    the matrix product.
    """
    x = at.dS * scale
    E = scaled_error(x, E_dS, scale, P)
    E = E + gamma(3, P.acc.u) * (np.abs(x) + E) + P.prob.eta + P.score.eta
    return x, np.where(
        np.isinf(E_dS), np.inf, absent(at.mix.rows, overflowing(E, np.abs(x), P.score))
    )


def mask_gradient(at: Backward, E_dS: ndarray, mask: ndarray | None, P: Precision) -> Grads:
    """
    The error of the score's gradient summed over the axes along which a float mask was broadcast,
    stored; 0 where it hides.
    """
    if mask is None or mask.dtype == bool:
        return ()
    lead = at.dS.ndim - mask.ndim
    ones = tuple(
        i + lead for i, size in enumerate(mask.shape) if size == 1 and at.dS.shape[i + lead] != 1
    )
    axes = tuple(range(lead)) + ones
    total_dS = at.dS.sum(axes).reshape(mask.shape)
    E = summed(at.dS, E_dS, axes, P).reshape(mask.shape) if axes else E_dS.reshape(mask.shape)
    E = rounded(total_dS, E, P.storage)
    return (np.where((mask > -np.inf) | np.isinf(E), E, 0.0),)


def _simple(
    at: Products, x: ndarray, E: ndarray, chain: Rows, P: Precision
) -> tuple[ndarray, ndarray]:
    """dQ = x K and dK = x^T Q for x = scale dS."""
    dQ = product_gradient(x, E, at.kT.swapaxes(-1, -2), None, P)
    dK = product_gradient(x, E, at.q, None, P, transposed=True)
    return at_seeing_queries(chain, dQ), at_seen_keys(chain, settled(dK))


def scaled_dot_product_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> Grads:
    """
    The errors of dQ, dK, dV, and of the gradient of a float mask: `score_gradient_error`, then one
    product each.
    """
    at = products(query, key)
    chain, error = masked(at.raw * at.scale, lambda P: score_error(at, P), mask, at.lost)
    back = backward(mixture(chain, value, keep, p), d_output)

    def bound(P: Precision) -> Grads:
        E_dS, dV = score_gradient_error(back, error(P), P)
        dQ, dK = _simple(at, *scaled_gradient(back, E_dS, at.scale, P), chain, P)
        return (dQ, dK, dV, *mask_gradient(back, E_dS, mask, P))

    return total(bound, precision)


def alibi_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    visible: ndarray | None = None,
    *,
    precision: Precisions,
) -> Grads:
    """The errors of dQ, dK, dV, for each of the `alibi_forms`."""
    forms = alibi_forms(query, key, value, visible)

    def gradients(P: Precision, at: Products, m: ndarray, distance: ndarray, mix: Mixture) -> Grads:
        back = backward(mix, d_output)
        E_dS, dV = score_gradient_error(back, alibi_error(at, m, distance, P), P)
        return (*_simple(at, *scaled_gradient(back, E_dS, at.scale, P), mix.rows, P), dV)

    def bound(P: Precision) -> Grads:
        return tuple(
            np.maximum.reduce(errors)
            for errors in zip(*(gradients(P, *form) for form in forms(P)), strict=True)
        )

    return total(bound, precision)


def shared_gradient(
    x: ndarray, E: ndarray, axes: tuple[int, ...], P: Precision, terms: int | None = None
) -> ndarray:
    """
    The error of a parameter's gradient: summed over the axes that share it, in any order or in
    narrow partials, stored.
    """
    terms = terms or int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    grown = summed(x, E, axes, P, terms)
    if P.grad_partial is not None:
        grown = grown + gamma(ceil(terms / P.grad_block_q), P.grad_partial.u) * (np.abs(x) + E).sum(
            axes
        )
    return rounded(x.sum(axes), grown, P.storage)
