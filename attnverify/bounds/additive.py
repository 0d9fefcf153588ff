"""Bounds for the gradient of additive attention."""

import numpy as np
from numpy import ndarray

from attnverify.bounds.attention import masked
from attnverify.bounds.error_rules import dot, gamma, operand, rounded, summed
from attnverify.bounds.gradients import (
    Grads,
    at_seeing_queries,
    at_seen_keys,
    backward,
    mask_gradient,
    score_gradient_error,
    shared_gradient,
)
from attnverify.bounds.scores import Additive, additive, additive_error, tanh_error
from attnverify.bounds.softmax import Precisions, absent, total
from attnverify.bounds.weighted_mean import mixture
from attnverify.precision import Precision


def _inner_error(
    at: Additive, dS: ndarray, E_dS: ndarray, P: Precision
) -> tuple[ndarray, ndarray, ndarray]:
    """
    dz = dS w (1 - t^2) with its error, and the error of t:

        E_f = 2 |t| E_t + E_t^2 + g(2, u) (1 + (|t|+E_t)^2)      f = 1 - t^2, which cancels: its
        error is absolute E_dz = |w| (E_dS (f + E_f) + |dS| E_f), two roundings to `score`
    """
    E_t, t = tanh_error(at, P), np.abs(at.t)
    f = 1 - t * t
    E_f = 2 * t * E_t + E_t * E_t + gamma(2, P.score.u) * (1 + (t + E_t) ** 2)
    w, dS, E_dS = np.abs(at.w), dS[..., None], E_dS[..., None]
    dz = dS * at.w * f
    return dz, rounded(dz, w * (E_dS * (np.abs(f) + E_f) + np.abs(dS) * E_f), P.score, 2), E_t


def _projection(
    dz: ndarray, E: ndarray, x: ndarray, w: ndarray, P: Precision
) -> tuple[ndarray, ndarray]:
    """The errors of dx = dz W and dW = sum over batch and positions of dz^T x, both stored."""
    Ez = operand(dz, E, P, stored=False)
    dx = rounded(dz @ w, dot(dz, Ez, w, operand(w, None, P), P), P.storage)
    dW = np.einsum("bna,bnk->bak", dz, x)
    E_W = dot(
        dz.swapaxes(-1, -2), None if Ez is None else Ez.swapaxes(-1, -2), x, operand(x, None, P), P
    )
    return dx, shared_gradient(dW, rounded(dW, E_W, P.joined), (0,), P)


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
    chain, error = masked(at.s, lambda P: additive_error(at, P), mask, at.lost)
    back = backward(mixture(chain, value, keep, p), d_output)

    def bound(P: Precision) -> Grads:
        E_dS, dV = score_gradient_error(back, error(P), P)
        dz, E_z, E_t = _inner_error(at, back.dS, E_dS, P)
        hidden = ((absent(chain, np.ones_like(back.dS)) == 0) & np.isfinite(E_dS))[..., None]
        E_z = np.where(hidden, 0.0, E_z)
        E_q, E_k = (rounded(dz.sum(axis), summed(dz, E_z, (axis,), P), P.score) for axis in (2, 1))
        E_q, E_k = at_seeing_queries(chain, E_q), at_seen_keys(chain, E_k)
        dq, dWq = _projection(dz.sum(2), E_q, at.q, w_query, P)
        dk, dWk = _projection(dz.sum(1), E_k, at.k, w_key, P)
        dS, t = back.dS[..., None], at.t
        E_w = E_dS[..., None] * (np.abs(t) + E_t) + np.abs(dS) * E_t
        dw = shared_gradient(
            dS * t, rounded(dS * t, np.where(hidden, 0.0, E_w), P.joined), (0, 1, 2), P
        )
        grads = (at_seeing_queries(chain, dq), at_seen_keys(chain, dk), dV, dWq, dWk, dw)
        return (*grads, *mask_gradient(back, E_dS, mask, P))

    return total(bound, precision)
