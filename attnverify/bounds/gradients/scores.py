"""Bounds for the gradients of the scores, of softmax and of dropout."""

from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.bounds import attention
from attnverify.bounds.attention import masked
from attnverify.bounds.error_rules import (
    dot_error,
    gamma,
    operand_error,
    rounding_error,
    sum_error,
)
from attnverify.bounds.gradients.steps import (
    Grads,
    at_seeing_queries,
    at_seen_keys,
    difference_error,
    given_gradient,
    mask_gradient,
    maximum_error,
    mean_factor,
    product_gradient,
    recomputed_error,
    recomputed_exponent_error,
    shared_gradient,
    stored_mean_gradient,
)
from attnverify.bounds.scores import Additive, Products, additive, products, tanh_error
from attnverify.bounds.softmax_rows import (
    Precisions,
    Rows,
    exponent_error,
    finite,
    rows,
    total,
    zero_where_hidden,
)
from attnverify.precision import Precision


def softmax_grad(
    d_output: ndarray, score: ndarray, mask: ndarray | None = None, *, precision: Precisions
) -> Grads:
    """
    Bound the errors of dS = p (dW - D), D = sum p dW, of an exact dW, and of a float mask's
    gradient.

    The weights are those of the forward pass or made again, rounded to prob, with the error E_P;

        E_D  = sum E_P |dW| + `mean_factor` (p+E_P) |dW| + `stored_mean_gradient`
        E_dS = E_P (|dW-D| + E_D) + p E_D + g(3,u) (p+E_P) (|dW-D| + E_D)
               + g(2,u) (p+E_P) (|dW| + |D| + E_D) + 3 eta, rounded to score, stored
    """
    hidden = score == -np.inf
    s, lost = finite(np.where(hidden, 0.0, score) if hidden.any() else score)
    chain, error = masked(s, lambda P, addends: None, mask, lost)
    if hidden.any():
        seen = ~hidden if chain.visible is None else chain.visible & ~hidden
        chain = rows(chain.s, seen, lost)
    dW = zero_where_hidden(chain, d_output)
    x = dW - (chain.p * dW).sum(-1, keepdims=True)
    dS, n = zero_where_hidden(chain, chain.p * x), score.shape[-1]

    def bound(P: Precision) -> Grads:
        Es = error(P)
        E = exponent_error(chain, Es, P)
        E_P = recomputed_error(chain, recomputed_exponent_error(chain, E, Es, P), P)
        E_P = zero_where_hidden(chain, rounding_error(chain.p, E_P, P.prob), E)
        grown = mean_factor(n, P) * (chain.p + E_P)
        E_D = ((E_P + grown) * np.abs(dW)).sum(-1, keepdims=True) + n * P.acc.eta
        E_D = E_D + stored_mean_gradient(chain, np.abs(dW), dW[..., :0], P)
        E_dS = difference_error(chain, E_P, dW, 0.0, x, E_D, P)
        if P.maximum == "differentiated":
            mass, gradient = np.abs(dW) + np.abs(dW - x) + E_D, rounding_error(dS, E_dS, P.score)
            E_dS = E_dS + maximum_error(chain, dS, gradient, E_P, mass, E_D, Es, 1, P)
        E_dS = zero_where_hidden(chain, rounding_error(dS, E_dS, P.score), E)
        E_S = zero_where_hidden(chain, rounding_error(dS, E_dS, P.storage), E)
        return E_S, *mask_gradient(dS, E_dS, mask, P)

    return total(bound, precision)


def dropout_grad(
    d_output: ndarray, weights: ndarray, keep: ndarray | None, p: float, *, precision: Precisions
) -> Grads:
    """Return the error of `dropout`, of the gradient."""
    return (attention.dropout(d_output, keep, p, precision=precision),)


def dot_gradients(
    at: Products,
    x: ndarray,
    E: ndarray,
    P: Precision,
    Eq: ndarray | None = None,
    Ek: ndarray | None = None,
) -> tuple[ndarray, ndarray]:
    """Bound the errors of dQ = x K and dK = x^T Q for x = scale dS."""
    dQ = product_gradient(x, E, at.kT.swapaxes(-1, -2), Ek, P, scale=at.scale)
    return dQ, product_gradient(x, E, at.q, Eq, P, transposed=True, scale=at.scale)


def scaled_dot_product_score_grad(
    d_output: ndarray, query: ndarray, key: ndarray, *, precision: Precisions
) -> Grads:
    """Bound the errors of dQ = scale dS K and dK = scale dS^T Q of an exact dS."""
    at = products(query, key)
    given = partial(given_gradient, d_output, at.scale)
    return total(lambda P: dot_gradients(at, *given(P), P), precision)


def inner_error(
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


def projection(
    dz: ndarray,
    E: ndarray,
    x: ndarray,
    w: ndarray,
    P: Precision,
    terms: int | None = None,
    Ex: ndarray | None = None,
) -> tuple[ndarray, ndarray]:
    """
    Return the errors of dx = dz W and dW = sum over batch and positions of dz^T x, both stored; the
    second is one sum, or one for each batch element, rounded to `joined`, and their sum. `terms`:
    how many dx sums, where it goes on with other products; Ex: the error of x, where it was
    computed.
    """
    Ez = operand_error(dz, E, P, stored=False)
    dx = rounding_error(
        dz @ w, dot_error(dz, Ez, w, operand_error(w, None, P), P, terms), P.storage
    )
    dW = np.einsum("bna,bnk->bak", dz, x)
    E_W = dot_error(
        dz.swapaxes(-1, -2),
        None if Ez is None else Ez.swapaxes(-1, -2),
        x,
        operand_error(x, Ex, P),
        P,
        len(x) * x.shape[1],
    )
    return dx, shared_gradient(dW, rounding_error(dW, E_W, P.joined), (0,), P)


def additive_gradients(
    at: Additive, dS: ndarray, E_dS: ndarray, hidden: ndarray, chain: Rows | None, P: Precision
) -> Grads:
    """
    Bound the errors of the gradients by query, key and the three weights, dS with the error E_dS.

    dz = dS w (1 - t^2); summed over keys for W_q q, over queries for W_k k, each rounded to
    `score`; then one product with the weight and one with the input; dw = sum dS t. Hidden pairs
    have no part in any of it.
    """
    dz, E_z, E_t = inner_error(at, dS, E_dS, P)
    hidden = hidden[..., None]
    E_z = np.where(hidden, 0.0, E_z)
    E_q, E_k = (
        rounding_error(dz.sum(axis), sum_error(dz, E_z, (axis,), P), P.score) for axis in (2, 1)
    )
    if chain is not None:
        E_q, E_k = at_seeing_queries(chain, E_q), at_seen_keys(chain, E_k)
    dq, dWq = projection(dz.sum(2), E_q, at.q, at.w_q, P)
    dk, dWk = projection(dz.sum(1), E_k, at.k, at.w_k, P)
    t, size_dS = at.t, np.abs(dS[..., None])
    E_w = E_dS[..., None] * (np.abs(t) + E_t) + size_dS * E_t
    dw = shared_gradient(
        dS[..., None] * t,
        rounding_error(dS[..., None] * t, np.where(hidden, 0.0, E_w), P.joined),
        (0, 1, 2),
        P,
    )
    return dq, dk, dWq, dWk, dw


def additive_score_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    *,
    precision: Precisions,
) -> Grads:
    """Compute `additive_gradients` of an exact dS, the leading axes as one."""
    dS, q, k = (x.reshape(-1, *x.shape[-2:]) for x in (d_output, query, key))
    at = additive(q, k, w_query, w_key, w_score)
    seen = np.zeros(dS.shape, bool)

    def bound(P: Precision) -> Grads:
        dq, dk, *rest = additive_gradients(at, dS, np.zeros_like(dS), seen, None, P)
        return dq.reshape(query.shape), dk.reshape(key.shape), *rest

    return total(bound, precision)
