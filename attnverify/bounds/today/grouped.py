"""
Bounds for what has two outputs, an output and a log-sum-exp: the merge of parts.

A merge is a softmax over parts: their lses are its scores, exact, and their outputs its values.
"""

from math import ceil, log

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error
from attnverify.bounds.gradients.steps import (
    Backward,
    Grads,
    backward,
    recomputed_error,
    recomputed_exponent_error,
    score_gradient_error,
)
from attnverify.bounds.softmax_rows import (
    Precisions,
    Rows,
    exponent_error,
    rescaled_sum_error,
    rows,
    shared_shift,
    stored_lse,
    total,
    underflow_beside_normaliser,
    zero_where_hidden,
)
from attnverify.bounds.weighted_mean import WeightedMean, weighted_mean, weighted_mean_error
from attnverify.precision import Precision, at_least_float32


def parts_as_keys(outputs: ndarray, lses: ndarray) -> WeightedMean:
    """The parts of each row as its keys: scores [B H N 1 C], values [B H N C E]."""
    score = np.moveaxis(lses, 0, -1)[..., None, :]
    visible = score > -np.inf
    at = rows(np.where(visible, score, 0.0), visible)
    return weighted_mean(at, np.moveaxis(outputs, 0, -2))


def nesting_error(at: Rows, P: Precision) -> ndarray | None:
    """
    Bound what is lost where lses are merged one after the other and each sum is kept: u |lse| and
    the logarithm's own at every step, g(2, u) (|m| + log C) for each of the blocks.
    """
    if not P.lse_merge:
        return None
    C = at.s.shape[-1]
    steps = ceil(C / P.block) + 1
    u = max(P.softmax.u, P.acc.u)
    return np.broadcast_to(gamma(2 * steps, u) * (np.abs(at.m) + log(C) + 1), at.s.shape)


def lse_error(at: Rows, Es: ndarray | None, P: Precision) -> ndarray:
    """
    Bound the error of lse = m + log sum e^(s - m), stored:

        log sum p e^E            the exponents', at most the largest E
        + R + n eta e^shift      the sum over n
        + g(2, u) |m|            where all exponents are moved alike (`shared_shift`)
        + g(4, u) (1 + |m| + log n) + 2 u log_ulps (1 + log n)
                                 the logarithm, its base, and the sum with m
        + `stored_lse`           steps that are stored

    Two forms of one kernel lie apart by |m| u each where it counts in powers of two.
    """
    n, u = at.s.shape[-1], P.softmax.u
    E = exponent_error(at, Es, P)
    up = np.log(np.where(at.w > 0, at.p * np.exp(E), 0.0).sum(-1, keepdims=True))
    down = -np.log(np.where(at.w > 0, at.p * np.exp(-E), 0.0).sum(-1, keepdims=True))
    moved = np.maximum(up, down) + rescaled_sum_error(n, P) + n * underflow_beside_normaliser(at, P)
    peak, logs = np.abs(at.m), np.log(at.norm)
    moved = moved + shared_shift(peak, P) + 2 * u * P.exp_ulps * (1 + logs)
    moved = moved + gamma(4, u) * (1 + peak + log(n)) + stored_lse(at, E, P)
    E_lse = rounding_error(at.m + logs, moved, at_least_float32(P.storage))
    E_lse = np.where(np.isnan(E_lse), np.inf, E_lse)
    return E_lse if at.fully_masked is None else np.where(at.fully_masked, 0.0, E_lse)


def by_kept_lse(o: ndarray, E_o: ndarray, E_lse: ndarray) -> ndarray:
    """
    Bound the error of o = sum e^(l_c - l) o_c, as the formula reads, by the error of the l that is
    stored: all weights are moved alike by it, and no normaliser cancels that,

        E_o e^E_lse + (e^E_lse - 1) |o|
    """
    moved = E_o * np.exp(E_lse) + np.expm1(E_lse) * np.abs(o)
    return np.where(np.isnan(moved), np.inf, moved)


def merge_attention(outputs: ndarray, lses: ndarray, *, precision: Precisions) -> Grads:
    """Bound the errors of output and lse: `mean_error` of exact scores, and `lse_error`."""
    mix = parts_as_keys(outputs, lses)

    def bound(P: Precision) -> Grads:
        Es = nesting_error(mix.rows, P)
        E_lse = lse_error(mix.rows, Es, P)
        E_o = weighted_mean_error(mix, Es, None, P, P.storage)
        return by_kept_lse(mix.o, E_o, E_lse)[..., 0, :], E_lse[..., 0, 0]

    return total(bound, precision)


def merge_attention_grad(
    d_output: ndarray, d_lse: ndarray, outputs: ndarray, lses: ndarray, *, precision: Precisions
) -> Grads:
    """
    Bound the errors of the gradients by outputs and lses: those by values and scores, and of what
    arrives at the lse

        E_P |d_lse| + g(4, u) ((p + E_P) (|dP - D| + |d_lse|) + E_dS)

    which is added before the product with the weight or behind it.
    """
    mix = parts_as_keys(outputs, lses)
    back = backward(mix, d_output[..., None, :])
    arriving = d_lse[..., None, None]

    def bound(P: Precision) -> Grads:
        Es = nesting_error(mix.rows, P)
        E_dS, E_dV = score_gradient_error(back, Es, P)
        E = with_lse(back, E_dS, arriving, Es, P)
        return np.moveaxis(E_dV, -2, 0), np.moveaxis(E[..., 0, :], -1, 0)

    return total(bound, precision)


def with_lse(
    back: Backward, E_dS: ndarray, d_lse: ndarray, Es: ndarray | None, P: Precision
) -> ndarray:
    """Bound the error of dS + p d_lse, stored as a log-sum-exp is."""
    at, u = back.mix.rows, max(P.acc.u, P.softmax.u, P.score.u, P.prob.u)
    E = exponent_error(at, Es, P)
    L = recomputed_exponent_error(at, E, Es, P)
    E_P = zero_where_hidden(at, rounding_error(at.p, recomputed_error(at, L, P), P.prob), E)
    size = (at.p + E_P) * (np.abs(back.x) + np.abs(d_lse))
    grown = E_dS + E_P * np.abs(d_lse) + gamma(4, u) * (size + E_dS) + 2 * P.softmax.eta
    dS = back.dS + at.p * d_lse
    return zero_where_hidden(at, rounding_error(dS, grown, at_least_float32(P.storage)), E)
