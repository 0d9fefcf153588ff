"""Bounds for the gradients: the absolute-value majorant of the backward formulas, step by step."""

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy import ndarray

from attnverify.bounds.alibi import alibi_error, alibi_forms
from attnverify.bounds.attention import masked_additive, masked_products
from attnverify.bounds.error_rules import (
    accumulation_error,
    dot_error,
    gamma,
    operand_error,
    rounding_error,
    sum_error,
    with_overflow,
)
from attnverify.bounds.scores import (
    Additive,
    Products,
    additive,
    products,
    scaled_error,
    tanh_error,
)
from attnverify.bounds.softmax_rows import (
    Precisions,
    Rows,
    exponent_error,
    rescaled_sum_error,
    total,
    zero_where_hidden,
)
from attnverify.bounds.weighted_mean import WeightedMean, mean_error, weighted_mean
from attnverify.precision import Precision

Grads = tuple[ndarray, ...]


@dataclass(frozen=True)
class Backward:
    """
    In float64: weights w = p factor, dW = dO v^T, dP = factor dW, D = rowsum(dO O), dS = p
    (dP - D).
    """

    mix: WeightedMean
    d_output: ndarray
    w: ndarray
    dW: ndarray
    dP: ndarray
    dS: ndarray
    x: ndarray


def backward(mix: WeightedMean, d_output: ndarray) -> Backward:
    """The backward pass of softmax, dropout and the product with the values."""
    p, factor = mix.rows.p, mix.factor
    dW = d_output @ mix.v.swapaxes(-1, -2)
    dP = dW if factor is None else dW * factor
    x = dP - (d_output * mix.o).sum(-1, keepdims=True)
    return Backward(
        mix,
        d_output,
        p if factor is None else p * factor,
        dW,
        dP,
        zero_where_hidden(mix.rows, p * x),
        x,
    )


def recomputed_exponent_error(
    mix: WeightedMean, E: ndarray, Es: ndarray | None, P: Precision
) -> ndarray:
    """
    The error of the exponent s - lse, with what the errors of sum and logarithm amount to in it:

        E_lse = max(log sum p e^E, -log sum p e^-E) + R + g(4, u) (1 + |lse| + log n)
        L     = E + E_lse + g(3, u) (|s - lse| + Es + E_lse)
    """
    at, n, u = mix.rows, mix.v.shape[-2], P.softmax.u
    up, down = (
        np.exp(at.d + E).sum(-1, keepdims=True) / at.norm,
        np.exp(at.d - E).sum(-1, keepdims=True) / at.norm,
    )
    log_norm = np.log(at.norm)
    E_lse = (
        np.maximum(np.log(up), -np.log(down))
        + rescaled_sum_error(n, P)
        + gamma(4, u) * (1 + np.abs(at.m + log_norm) + log(n))
    )
    return E + E_lse + gamma(3, u) * (log_norm - at.d + E_lse + (0.0 if Es is None else Es))


def recomputed_error(mix: WeightedMean, L: ndarray, P: Precision) -> ndarray:
    """
    The error of a weight that may be recomputed as exp(s - saved lse), or be w / l: p (e^L - 1),
    and min(eta, p) in the range of underflow.
    """
    at = mix.rows
    log_norm = np.log(at.norm)
    E_P = np.where(L < 1, at.p * np.expm1(np.minimum(L, 1.0)), np.exp(at.d - log_norm + L) - at.p)
    low = max(P.softmax.tiny, P.prob.tiny)
    return zero_where_hidden(
        at, E_P + np.where(at.p < 2 * low, np.minimum(P.softmax.eta, at.p), 0.0)
    )


def score_gradient_error(at: Backward, Es: ndarray | None, P: Precision) -> tuple[ndarray, ndarray]:
    """
    The errors of dS and of dV, the latter stored.

        E_P' = rounded(p, E_P, prob);  E_dV = dot(w^T, E_w, dO) [+ narrow partials], stored
        E_dP = rounded(dO v^T, dot, score)
        E_D  = the larger of |dO| Eo + acc(E) |dO| (|o|+Eo)
               and sum E_P'|dP| + (p+E_P') E_dP + (acc(n) + g(1,u)) (p+E_P')(|dP|+E_dP)
        E_dS = E_P' (|dP-D| + E_dP + E_D) + p (E_dP + E_D) + g(3,u) (p+E_P') (|dP-D| + E_dP + E_D)
               + g(2,u) (p+E_P') (|dP| + |D| + E_dP + E_D) + 3 eta
               rounded to prob and to score

    The last term is that of p dP - p D, multiplied first and subtracted then. Where partial results
    are merged, `merged_error` is part of E_D.
    """
    mix, chain, dO = at.mix, at.mix.rows, at.d_output
    p, n, size_o = chain.p, mix.v.shape[-2], np.abs(dO)
    E = exponent_error(chain, Es, P)
    L = recomputed_exponent_error(mix, E, Es, P)
    E_P = zero_where_hidden(chain, rounding_error(p, recomputed_error(mix, L, P), P.prob), E)
    dV = product_gradient(at.w, _dropped(at.w, E_P, mix, P), dO, None, P, transposed=True)
    vT = mix.v.swapaxes(-1, -2)
    E_dP = rounding_error(
        at.dW, dot_error(dO, operand_error(dO, None, P), vT, operand_error(vT, None, P), P), P.score
    )
    E_dP = _dropped(at.dP, E_dP, mix, P)
    E_o = mean_error(mix, E, None, P, P.storage)
    D_output = (size_o * (E_o + accumulation_error(dO.shape[-1], P) * (np.abs(mix.o) + E_o))).sum(
        -1, keepdims=True
    )
    most_P, size_dP = p + E_P, np.abs(at.dP)
    per_key = (
        E_P * size_dP
        + most_P * E_dP
        + (accumulation_error(n, P) + gamma(1, P.softmax.u)) * most_P * (size_dP + E_dP)
    )
    E_D = (
        np.fmax(D_output, zero_where_hidden(chain, per_key).sum(-1, keepdims=True))
        + (n + dO.shape[-1]) * P.acc.eta * mix.share
    )
    E_D = E_D + merged_error(at, L, E_dP, P) if P.lse_merge else E_D
    E_x, u = E_dP + E_D, P.softmax.u
    most_x, apart = np.abs(at.x) + E_x, size_dP + np.abs(at.dP - at.x) + E_x
    E_dS = E_P * most_x + p * E_x + most_P * (gamma(3, u) * most_x + gamma(2, u) * apart)
    E_dS = E_dS + 3 * P.softmax.eta + 2 * P.score.eta * P.lse_merge
    E_dS = rounding_error(at.dS, rounding_error(at.dS, E_dS, P.prob), P.score)
    return zero_where_hidden(chain, E_dS, E), at_seen_keys(chain, nan_to_inf(dV))


def merged_error(at: Backward, L: ndarray, E_dP: ndarray, P: Precision) -> ndarray:
    """
    What the gradient by a score loses, per weight p, where a row's parts b were attended to apart
    and merged with the weights w_b = exp(lse_b - lse), and each step is differentiated:

        dS_j = p_j|b (w_b dP_j - w_b D_b) + p_j|b w_b (D_b' - D),    D_b = D_b' = sum_i p_i|b dP_i

    A part's mean is not small where the row's is: it is of the size of the largest |dP| of the row,
    whatever little w_b leaves of it, and comes in twice, once from the softmax of the part and once
    from its output. With r = e^L - 1 for the largest L of the row, which bounds the error of p_j|b
    as well as that of w_b, each mean errs by

        (r + g(1, u_prob) + acc(n) + acc(E) + g(2, u)) max |dP| + max E_dP

    and the two differences |dP_j - D_b| and |D_b - D|, at most 2 max |dP| each, err by r + g(4, u):
    w_b dO, the products with w_b and p_j|b, the difference itself. Either term may be rounded to
    `score` before they are added.
    """
    chain, u = at.mix.rows, max(P.acc.u, P.score.u)
    n, E = at.mix.v.shape[-2], at.d_output.shape[-1]
    most, r = _largest_seen(chain, np.abs(at.dP) + E_dP), np.expm1(_largest_seen(chain, L))
    mean = r + gamma(1, P.prob.u) + accumulation_error(n, P) + accumulation_error(E, P)
    mean = (mean + gamma(2, u)) * most + _largest_seen(chain, E_dP)
    return 2 * mean + 4 * (r + gamma(4, u)) * most


def _largest_seen(chain: Rows, x: ndarray) -> ndarray:
    """The largest entry of each row among the keys that it sees."""
    x = x if chain.visible is None else np.where(chain.visible, x, 0.0)
    return np.asarray(x.max(-1, keepdims=True))


def _dropped(x: ndarray, E: ndarray, mix: WeightedMean, P: Precision) -> ndarray:
    """
    The error after the dropout factor: exact for p = 0, else the constant's three roundings and one
    to `prob`.
    """
    E = E if mix.factor is None else E * mix.factor
    return (
        rounding_error(x, E + gamma(3, (P.scale_const or P.acc).u) * (np.abs(x) + E), P.prob)
        if mix.scaled
        else E
    )


def nan_to_inf(E: ndarray) -> ndarray:
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
    size: ndarray | None = None,
    extra: ndarray | float = 0.0,
) -> ndarray:
    """
    The error of x @ y (x^T @ y), operands rounded, summed in any order, stored; `joined` instead of
    storage if not `narrow`. `terms`: how many are summed, where x leaves out some that are zero or
    the sum goes on with other products; `size`: of the numbers that are multiplied, where y is a
    sum whose parts may be multiplied apart; `extra`: what the product loses besides.

    Where gradients are accumulated over blocks in a narrow format, g(number of blocks, u_partial)
    (|x|+E) (|y|+Ey) more, and as many eta_partial: a block's gradient may lie in the range of
    underflow.
    """
    block = P.grad_block_q if transposed else P.grad_block_k
    x, E = (x.swapaxes(-1, -2), E.swapaxes(-1, -2)) if transposed else (x, E)
    size = np.abs(y) if size is None else size
    Ex, Ey = operand_error(x, E, P, stored=False), operand_error(size, Ey, P)
    terms = terms or x.shape[-1]
    grown = dot_error(x, Ex, size, Ey, P, terms) + extra
    if P.grad_partial is not None:
        top = (np.abs(x) + E) @ (size if Ey is None else size + Ey)
        blocks = ceil(terms / block)
        grown = grown + gamma(blocks, P.grad_partial.u) * top + blocks * P.grad_partial.eta
    return rounding_error(x @ y, grown, P.storage if narrow else P.joined)


def at_seen_keys(chain: Rows, E: ndarray) -> ndarray:
    """The bound of a gradient of keys or values: exactly zero for a key that no query sees."""
    if chain.visible is None:
        return E
    return np.where(chain.seen_keys[..., None] | np.isinf(E), E, 0.0)


def at_seeing_queries(chain: Rows, E: ndarray) -> ndarray:
    """The bound of a gradient of queries: exactly zero for a query that sees no key."""
    return E if chain.fully_masked is None else np.where(chain.fully_masked, 0.0, E)


def scaled_gradient(
    at: Backward, E_dS: ndarray, scale: float, P: Precision
) -> tuple[ndarray, ndarray]:
    """
    scale dS and its error: the scale's constant and product, three more roundings where it follows
    the matrix product, or four where the other factor was scaled, before the product or within it.
    """
    x = at.dS * scale
    E = scaled_error(x, E_dS, scale, P)
    before = gamma(4, (P.prescale or P.acc).u) if scale != 1 else 0.0
    E = E + (before + gamma(3, P.acc.u)) * (np.abs(x) + E) + P.prob.eta + P.score.eta
    return x, np.where(
        np.isinf(E_dS), np.inf, zero_where_hidden(at.mix.rows, with_overflow(E, np.abs(x), P.score))
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
    E = sum_error(at.dS, E_dS, axes, P).reshape(mask.shape) if axes else E_dS.reshape(mask.shape)
    E = rounding_error(total_dS, E, P.storage)
    return (np.where((mask > -np.inf) | np.isinf(E), E, 0.0),)


def _simple(
    at: Products, x: ndarray, E: ndarray, chain: Rows, P: Precision
) -> tuple[ndarray, ndarray]:
    """dQ = x K and dK = x^T Q for x = scale dS."""
    dQ = product_gradient(x, E, at.kT.swapaxes(-1, -2), None, P)
    dK = product_gradient(x, E, at.q, None, P, transposed=True)
    return at_seeing_queries(chain, dQ), at_seen_keys(chain, nan_to_inf(dK))


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
    chain, error = masked_products(at, mask)
    back = backward(weighted_mean(chain, value, keep, p), d_output)

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

    def gradients(
        P: Precision, at: Products, m: ndarray, distance: ndarray, mix: WeightedMean
    ) -> Grads:
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
    x: ndarray,
    E: ndarray,
    axes: tuple[int, ...],
    P: Precision,
    terms: int | None = None,
    size: ndarray | None = None,
) -> ndarray:
    """
    The error of a parameter's gradient: summed over the axes that share it, in any order or in
    narrow partials, stored. `size` instead of |x|, where x is itself a sum that may come last.
    """
    terms = terms or int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    size = np.abs(x) if size is None else size
    grown = sum_error(size, E, axes, P, terms)
    if P.grad_partial is not None:
        grown = grown + gamma(ceil(terms / P.grad_block_q), P.grad_partial.u) * (size + E).sum(axes)
    return rounding_error(x.sum(axes), grown, P.storage)


def _inner_error(
    at: Additive, dS: ndarray, E_dS: ndarray, P: Precision
) -> tuple[ndarray, ndarray, ndarray]:
    """
    dz = dS w (1 - t^2) with its error, and the error of t:

        E_f  = 2 |t| E_t + E_t^2 + g(2, u) (1 + (|t|+E_t)^2)    f = 1 - t^2, which cancels
        E_dz = |w| (E_dS (f + E_f) + |dS| E_f + eta)            two roundings to `score`, one of
                                                                them perhaps before w
    """
    E_t, t = tanh_error(at, P), np.abs(at.t)
    f = 1 - t * t
    E_f = 2 * t * E_t + E_t * E_t + gamma(2, P.score.u) * (1 + (t + E_t) ** 2)
    w, dS, E_dS = np.abs(at.w), dS[..., None], E_dS[..., None]
    dz = dS * at.w * f
    return (
        dz,
        rounding_error(
            dz, w * (E_dS * (np.abs(f) + E_f) + np.abs(dS) * E_f + P.score.eta), P.score, 2
        ),
        E_t,
    )


def _projection(
    dz: ndarray, E: ndarray, x: ndarray, w: ndarray, P: Precision
) -> tuple[ndarray, ndarray]:
    """
    The errors of dx = dz W and dW = sum over batch and positions of dz^T x, both stored; the second
    is one sum, or one for each batch element, rounded to `joined`, and their sum.
    """
    Ez = operand_error(dz, E, P, stored=False)
    dx = rounding_error(dz @ w, dot_error(dz, Ez, w, operand_error(w, None, P), P), P.storage)
    dW = np.einsum("bna,bnk->bak", dz, x)
    E_W = dot_error(
        dz.swapaxes(-1, -2),
        None if Ez is None else Ez.swapaxes(-1, -2),
        x,
        operand_error(x, None, P),
        P,
        len(x) * x.shape[1],
    )
    return dx, shared_gradient(dW, rounding_error(dW, E_W, P.joined), (0,), P)


def additive_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> Grads:
    """
    The errors of the gradients of query, key, value, the three weights, and of a float mask.

    dS by `score_gradient_error`; dz = dS w (1 - t^2); summed over keys for W_q q, over queries for
    W_k k, each rounded to `score`; then one product with the weight and one with the input;
    dw = sum dS t.
    """
    at = additive(query, key, w_query, w_key, w_score)
    chain, error = masked_additive(at, mask)
    back = backward(weighted_mean(chain, value, keep, p), d_output)

    def bound(P: Precision) -> Grads:
        E_dS, dV = score_gradient_error(back, error(P), P)
        dz, E_z, E_t = _inner_error(at, back.dS, E_dS, P)
        hidden = ((zero_where_hidden(chain, np.ones_like(back.dS)) == 0) & np.isfinite(E_dS))[
            ..., None
        ]
        E_z = np.where(hidden, 0.0, E_z)
        E_q, E_k = (
            rounding_error(dz.sum(axis), sum_error(dz, E_z, (axis,), P), P.score) for axis in (2, 1)
        )
        E_q, E_k = at_seeing_queries(chain, E_q), at_seen_keys(chain, E_k)
        dq, dWq = _projection(dz.sum(2), E_q, at.q, w_query, P)
        dk, dWk = _projection(dz.sum(1), E_k, at.k, w_key, P)
        dS, t = back.dS[..., None], at.t
        E_w = E_dS[..., None] * (np.abs(t) + E_t) + np.abs(dS) * E_t
        dw = shared_gradient(
            dS * t, rounding_error(dS * t, np.where(hidden, 0.0, E_w), P.joined), (0, 1, 2), P
        )
        grads = (at_seeing_queries(chain, dq), at_seen_keys(chain, dk), dV, dWq, dWk, dw)
        return (*grads, *mask_gradient(back, E_dS, mask, P))

    return total(bound, precision)
