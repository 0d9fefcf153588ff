"""
What the bounds of the gradients share: the absolute-value majorant of the backward formulas, step
by step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log, log2

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import (
    accumulation_error,
    dot_error,
    gamma,
    operand_error,
    rounding_error,
    sum_error,
    with_overflow,
)
from attnverify.bounds.scores import scaled_error
from attnverify.bounds.softmax_rows import (
    Rows,
    exponent_error,
    exponential_underflow,
    rescaled_sum_error,
    stored_lse,
    stored_underflow,
    zero_where_hidden,
)
from attnverify.bounds.weighted_mean import WeightedMean, dropout_error, mean_error
from attnverify.precision import Format, Precision

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
    d_weights: ndarray | None = None


def backward(mix: WeightedMean, d_output: ndarray, d_weights: ndarray | None = None) -> Backward:
    """
    Compute the backward pass of softmax, dropout and the product with the values; `d_weights`
    arrives at the weights behind the dropout, where they are a result too.
    """
    p, factor = mix.rows.p, mix.factor
    w = p if factor is None else p * factor
    dW = d_output @ mix.v.swapaxes(-1, -2)
    D = (d_output * mix.o).sum(-1, keepdims=True)
    dP = dW
    if d_weights is not None:
        dP, D = dW + d_weights, D + (w * d_weights).sum(-1, keepdims=True)
    dP = dP if factor is None else dP * factor
    x = dP - D
    return Backward(
        mix,
        d_output,
        w,
        dW,
        dP,
        zero_where_hidden(mix.rows, p * x),
        x,
        d_weights,
    )


def recomputed_exponent_error(at: Rows, E: ndarray, Es: ndarray | None, P: Precision) -> ndarray:
    """
    Bound the error of the exponent s - lse, with what the errors of sum and logarithm amount to in
    it:

        E_lse = max(log sum p e^E, -log sum p e^-E) + R + g(4, u) (1 + |lse| + log n)
        L     = E + E_lse + g(3, u) (|s - lse| + Es + E_lse)

    E_lse has g(1, u_step) besides, of a sum that is stored, and `stored_lse` of the whole.
    """
    n, u = at.s.shape[-1], P.softmax.u
    up, down = (
        np.exp(at.d + E).sum(-1, keepdims=True) / at.norm,
        np.exp(at.d - E).sum(-1, keepdims=True) / at.norm,
    )
    log_norm = np.log(at.norm)
    E_lse = (
        np.maximum(np.log(up), -np.log(down))
        + rescaled_sum_error(n, P)
        + gamma(4, u) * (1 + np.abs(at.m + log_norm) + log(n))
        + gamma(1, P.unit_of_steps)
        + (stored_lse(at, E, P) if P.by_lse else 0.0)
    )
    return E + E_lse + gamma(3, u) * (log_norm - at.d + E_lse + (0.0 if Es is None else Es))


def recomputed_error(at: Rows, L: ndarray, P: Precision) -> ndarray:
    """
    Return the error of a weight that may be recomputed as exp(s - saved lse), or be w / l: p (e^L -
    1), and min(eta, p) in the range of underflow, with `exponential_underflow`.

    Where all exponents of the row are moved alike (`shared_shift`) before the normaliser takes it
    back, underflow costs a weight eta e^x, x the shift, and eta is enough here all the same: L >= E
    >= 3 x / 2, by the g(3, u) max(|s|, |m|) in E, for which the fused form that moves them has no
    other use. For p >= eta e^x that gives

        p (e^L - 1) + eta >= eta (e^(5 x / 2) - e^x + 1) >= eta e^x

    and a smaller p comes out as 0: it loses itself, which is no more than that either.
    """
    E_P = at.p * np.expm1(np.minimum(L, 1.0))
    if not L.max(initial=0.0) < 1:
        E_P = np.where(L < 1, E_P, np.exp(at.d - np.log(at.norm) + L) - at.p)
    low = max(P.softmax.tiny, P.prob.tiny)
    if not at.least >= 2 * low:
        E_P = E_P + np.where(at.p < 2 * low, np.minimum(P.softmax.eta, at.p), 0.0)
    return zero_where_hidden(at, E_P + exponential_underflow(at, P) + stored_underflow(at, L, P))


def score_gradient_error(
    at: Backward,
    Es: ndarray | None,
    P: Precision,
    Ev: ndarray | None = None,
    E_dO: ndarray | None = None,
    output: Format | None = None,
) -> tuple[ndarray, ndarray]:
    """
    Bound the errors of dS and of dV, the latter stored; of values and a gradient that have errors
    of their own, where those are the results of an earlier stage, and an output kept in the format
    `output` instead of storage.

        E_P' = rounded(p, E_P, prob);  E_dV = dot(w^T, E_w, dO) [+ narrow partials], stored
        E_dP = rounded(dO v^T, dot, score) [+ what arrives at the weights, rounded], dropped
        E_D  = the larger of |dO| Eo + E_dO (|o|+Eo) + acc(E) (|dO|+E_dO) (|o|+Eo) [+ the same of
               what arrives at the weights themselves]
               and sum E_P'|dP| + (p+E_P') E_dP + (acc(n) + g(1,u)) (p+E_P')(|dP|+E_dP)
        E_dS = E_P' (|dP-D| + E_dP + E_D) + p (E_dP + E_D) + g(3,u) (p+E_P') (|dP-D| + E_dP + E_D)
               + g(2,u) (p+E_P') (|dP| + |D| + E_dP + E_D) + 3 eta
               rounded to prob and to score

    The last term is that of p dP - p D, multiplied first and subtracted then. Where partial results
    are merged, `merged_error` is part of E_D. Where each step of the softmax is stored, so are
    quotients by its normaliser S, of dO too,

        E_dP + g(1, u_step) |dO| |v|^T + S eta_step (sum |v| + 2),  E_D + `stored_mean_gradient`

    and what is multiplied with w in dV errs by S eta_step, its rounding being that of the weights.
    """
    mix, chain, dO = at.mix, at.mix.rows, at.d_output
    p, n = chain.p, mix.v.shape[-2]
    E = exponent_error(chain, Es, P)
    L = recomputed_exponent_error(chain, E, Es, P)
    E_P = zero_where_hidden(chain, rounding_error(p, recomputed_error(chain, L, P), P.prob), E)
    E_part: ndarray | None = E_dO
    if P.unit_of_steps:
        small = np.broadcast_to(chain.norm * P.eta_of_steps, dO.shape)
        E_part = small if E_dO is None else E_dO + small
    dV = product_gradient(at.w, dropout_error(at.w, E_P, mix, P), dO, E_part, P, transposed=True)
    vT = mix.v.swapaxes(-1, -2)
    E_vT = None if Ev is None else Ev.swapaxes(-1, -2)
    factors = operand_error(dO, E_dO, P), operand_error(vT, E_vT, P)
    E_dP = dot_error(dO, factors[0], vT, factors[1], P)
    mass = (np.abs(dO) if E_dO is None else np.abs(dO) + E_dO) @ np.abs(vT)
    if P.unit_of_steps:
        smallest = chain.norm * P.eta_of_steps * (np.abs(vT).sum(-2, keepdims=True) + 2)
        E_dP = E_dP + gamma(1, P.unit_of_steps) * mass + smallest
    E_dP = rounding_error(at.dW, E_dP, P.score)
    if at.d_weights is not None:
        E_dP = rounding_error(at.dW + at.d_weights, E_dP, P.score)
    most_P, size_dP = p + E_P, sizes_at_weights(at)
    lost = overflowing_rows(at, E_dP, P)
    E_dP = dropout_error(size_dP, E_dP, mix, P)
    D_output = mean_gradient_error(at, E, E_P, P, Ev, E_dO, output or P.storage)
    per_key = E_P * size_dP + most_P * E_dP + mean_factor(n, P) * most_P * (size_dP + E_dP)
    E_D = (
        np.fmax(D_output, zero_where_hidden(chain, per_key).sum(-1, keepdims=True))
        + (n + dO.shape[-1]) * P.acc.eta * mix.share
        + stored_mean_gradient(chain, size_dP, dO, P)
    )
    E_D = E_D + merged_error(at, L, E_dP, P) if P.lse_merge else E_D
    E_dS = difference_error(chain, E_P, at.dP, E_dP, at.x, E_D, P)
    if P.maximum == "differentiated":
        mass = mass if mix.factor is None else mass * mix.factor
        gradient = rounding_error(at.dS, E_dS, P.score)
        mass = mass + np.abs(at.dP - at.x) + E_D
        own = (at.dS, gradient, E_P, mass, E_D, Es, dO.shape[-1], P)
        E_dS = E_dS + maximum_error(chain, *own)
    E_dS = rounding_error(at.dS, rounding_error(at.dS, E_dS, P.prob), P.score)
    E = E if lost is None else np.where(lost, np.inf, E)
    return zero_where_hidden(chain, E_dS, E), at_seen_keys(chain, nan_to_inf(dV))


def overflowing_rows(at: Backward, E_dP: ndarray, P: Precision) -> ndarray | None:
    """
    Find the rows in which what arrives at a weight, divided by 1 - p, may leave its format: times a
    weight of 0, dropped or vanished, it is no number, and so is the row's mean, which reaches every
    key, a hidden one as 0 times it. None where there are none.
    """
    size = np.abs(at.dW) + (0.0 if at.d_weights is None else np.abs(at.d_weights)) + E_dP
    most = min(fmt.max / (1 + 2 * fmt.u) for fmt in (P.score, P.prob))
    over = zero_where_hidden(at.mix.rows, ~(size * at.mix.share <= most))
    lost = np.any(over > 0, -1, keepdims=True)
    return np.asarray(lost) if lost.any() else None


def sizes_at_weights(at: Backward) -> ndarray:
    """
    Compute |dP|: of the two apart, that from the output and that of the weights themselves, where
    there are both; a row's mean may be taken of each, and each may pass the dropout alone.
    """
    if at.d_weights is None:
        return np.abs(at.dP)
    size = np.abs(at.dW) + np.abs(at.d_weights)
    return size if at.mix.factor is None else size * at.mix.factor


def mean_gradient_error(
    at: Backward,
    E: ndarray,
    E_P: ndarray,
    P: Precision,
    Ev: ndarray | None,
    E_dO: ndarray | None,
    output: Format,
) -> ndarray:
    """Bound the error of a row's mean gradient D where it is taken from the output, dO . o."""
    E_o = mean_error(at.mix, E, Ev, P, output)
    most_dO, most_o = np.abs(at.d_output), np.abs(at.mix.o) + E_o
    lost = most_dO * E_o
    if E_dO is not None:
        lost, most_dO = lost + E_dO * most_o, most_dO + E_dO
    steps = accumulation_error(most_dO.shape[-1], P) + gamma(3, P.unit_of_steps)
    lost = lost + steps * most_dO * most_o
    found: ndarray = lost.sum(-1, keepdims=True)
    if at.d_weights is None:
        return found
    size, n = np.abs(at.d_weights), at.d_weights.shape[-1]
    E_w = dropout_error(at.w, E_P, at.mix, P)
    own = E_w * size + mean_factor(n, P) * (at.w + E_w) * size
    return (
        found
        + own.sum(-1, keepdims=True)
        + gamma(1, P.score.u) * (at.w * size).sum(-1, keepdims=True)
    )


def mean_factor(n: int, P: Precision) -> float:
    """
    Bound what sum p dP loses by itself: acc(n) + g(1, u) + g(3, u_step), the last for a quotient by
    the normaliser, a product and the sum that are stored.
    """
    return accumulation_error(n, P) + gamma(1, P.softmax.u) + gamma(3, P.unit_of_steps)


def stored_mean_gradient(
    chain: Rows, size_dP: ndarray, dO: ndarray, P: Precision
) -> ndarray | float:
    """
    Bound what a row's mean gradient loses below the smallest normal number where it is stored
    divided by the normaliser S, as sum dP (w / S) / S or dO . (o / S) / S:

        S eta_step (sum |dP| + sum |dO| + n + E + 2)
    """
    if not P.unit_of_steps:
        return 0.0
    size = zero_where_hidden(chain, size_dP).sum(-1, keepdims=True)
    size = size + np.abs(dO).sum(-1, keepdims=True) + size_dP.shape[-1] + dO.shape[-1] + 2
    return np.asarray(chain.norm * P.eta_of_steps * size)


def difference_error(
    chain: Rows,
    E_P: ndarray,
    dP: ndarray,
    E_dP: ndarray | float,
    x: ndarray,
    E_D: ndarray,
    P: Precision,
) -> ndarray:
    """
    Bound the error of p (dP - D), x = dP - D, or of p dP - p D: `score_gradient_error` has the
    formula. Where weights are exp(s - lse), and D goes back through lse = m + log S, p dP and p D
    have weights that err apart: E_P' (|dP| + |D|). Steps that are stored: dP / S, its difference
    from D / S and that times w, or p dP, p D and their difference;

        g(1, u_step) (p+E_P') (2 |dP-D| + |dP| + |D|) + 2 eta_step
    """
    E_x, u, most_P = E_dP + E_D, P.softmax.u, chain.p + E_P
    most_x, apart = np.abs(x) + E_x, np.abs(dP) + np.abs(dP - x) + E_x
    E_dS = E_P * (apart if P.weights == "lse" else most_x) + chain.p * E_x
    E_dS = E_dS + most_P * (gamma(3, u) * most_x + gamma(2, u) * apart)
    if P.step and P.unit_of_steps:
        E_dS = E_dS + gamma(1, P.step.u) * most_P * (2 * most_x + apart) + 2 * P.step.eta
        E_dS = with_overflow(E_dS, most_x, P.step)
    return np.asarray(E_dS + 3 * P.softmax.eta + 2 * P.score.eta * P.lse_merge)


def merged_error(at: Backward, L: ndarray, E_dP: ndarray, P: Precision) -> ndarray:
    """
    Bound what the gradient by a score loses, per weight p, where a row's parts b were attended to
    apart and merged with the weights w_b = exp(lse_b - lse), and each step is differentiated:

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
    most, r = _largest_seen(chain, sizes_at_weights(at) + E_dP), np.expm1(_largest_seen(chain, L))
    mean = r + gamma(1, P.prob.u) + accumulation_error(n, P) + accumulation_error(E, P)
    mean = (mean + gamma(2, u)) * most + _largest_seen(chain, E_dP)
    return 2 * mean + 4 * (r + gamma(4, u)) * most


def maximum_error(
    chain: Rows,
    dS: ndarray,
    E_dS: ndarray,
    E_P: ndarray,
    mass: ndarray,
    E_D: ndarray,
    Es: ndarray | None,
    width: int,
    P: Precision,
) -> ndarray:
    """
    Bound what arrives at a score by way of the maximum that is subtracted from the scores, where
    automatic differentiation goes through it (JAX's own softmax stops there). It is 0 but for
    rounding, and is not weighted with p. Of a row at once

        G = - sum_i g_i,  g_i = p_i (dP_i - D)

    goes to the key that has the maximum. Of tiles with a running maximum, tile t's is given

        G_t = - sum_(i in t) g_i - A_t + A_(t+1),    A_t = sum_(i before t) g_i = l dl + acc . dacc

    where exp(m_old - m_new) has both of its maxima, and hands it on to the one before where that
    has stayed. So a key j that has been a maximum is given - sum g_i - A + A' in all, over keys i
    whose scores are no larger than its own, the A's between having cancelled; and it is one that
    is no smaller than all before it, or than all behind it where tiles go backwards. A keeps what
    p, D, the running sums and two products lose; with the mass |dO| . |v_i| + |D|,

        a_i = E_P mass + p E_D + (p+E_P) (R + acc(E) + g(4,u) + g(1, u_prob)) mass
        E_G = sum_i (E_dS + 2 a_i + (acc(n) + g(3K+4, u)) (|dS| + E_dS + 2 a_i))
    """
    n, tiles = chain.s.shape[-1], ceil(chain.s.shape[-1] / P.block)
    u, most_P = max(P.acc.u, P.score.u, P.softmax.u), chain.p + E_P
    factor = rescaled_sum_error(n, P) + accumulation_error(width, P) + gamma(4, u)
    factor += gamma(1, P.prob.u) + (gamma(2, P.operand.u) if P.operand else 0.0)
    apart = 2 * (E_P * mass + chain.p * E_D + factor * most_P * mass)
    steps = accumulation_error(n, P) + gamma(3 * tiles + 4, u)
    each = zero_where_hidden(chain, E_dS + apart + steps * (np.abs(dS) + E_dS + apart))
    near = gamma(3, P.softmax.u) * np.abs(chain.s) + (0.0 if Es is None else Es)
    seen = np.isfinite(chain.s)
    low, high = (np.where(seen, chain.s + side * near, -np.inf) for side in (-1, 1))
    before = np.maximum.accumulate(low, -1)
    behind = np.maximum.accumulate(low[..., ::-1], -1)[..., ::-1]
    leads = seen & ((high >= before) | (high >= behind))
    return np.where(leads, sum_of_lower(low, high, each), 0.0)


def sum_of_lower(low: ndarray, high: ndarray, x: ndarray) -> ndarray:
    """For each j of a row, sum the x_i of all i with low_i <= high_j."""
    order = np.argsort(np.concatenate([low, high], -1), -1, kind="stable")
    sums = np.take_along_axis(np.concatenate([x, np.zeros_like(x)], -1), order, -1).cumsum(-1)
    found = np.empty_like(sums)
    np.put_along_axis(found, order, sums, -1)
    return found[..., x.shape[-1] :]


def _largest_seen(chain: Rows, x: ndarray) -> ndarray:
    """Compute the largest entry of each row among the keys that it sees."""
    x = x if chain.visible is None else np.where(chain.visible, x, 0.0)
    return np.asarray(x.max(-1, keepdims=True))


def nan_to_inf(E: ndarray) -> ndarray:
    """Put inf where E is no number."""
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
    scale: float = 1.0,
) -> ndarray:
    """
    Bound the error of x @ y (x^T @ y), operands rounded, summed in any order, stored; `joined`
    instead of storage if not `narrow`. `terms`: how many are summed, where x leaves out some that
    are zero or the sum goes on with other products; `size`: of the numbers that are multiplied,
    where y is a sum whose parts may be multiplied apart; `extra`: what the product loses besides.

    Where gradients are accumulated over blocks in a narrow format, g(number of blocks, u_partial)
    (|x|+E) (|y|+Ey) more, and as many eta_partial: a block's gradient may lie in the range of
    underflow. What a block holds may overflow: a part of the sum, perhaps without the `scale` that
    is in x (PyTorch's derivative of baddbmm multiplies it by alpha once it is stored).
    """
    block = P.grad_block_q if transposed else P.grad_block_k
    x, E = (x.swapaxes(-1, -2), E.swapaxes(-1, -2)) if transposed else (x, E)
    size = np.abs(y) if size is None else size
    Ex, Ey = operand_error(x, E, P, stored=False), operand_error(size, Ey, P)
    terms, scale = terms or x.shape[-1], min(scale, 1.0)
    grown = dot_error(x, Ex, size, Ey, P, terms, scale) + extra
    if P.grad_partial is not None:
        top = (np.abs(x) + E) @ (size if Ey is None else size + Ey)
        blocks = ceil(terms / block)
        grown = grown + gamma(blocks, P.grad_partial.u) * top + blocks * P.grad_partial.eta
        grown = with_overflow(grown, top / scale, P.grad_partial)
    return rounding_error(x @ y, grown, P.storage if narrow else P.joined)


def attention_gradients(
    back: Backward,
    Es: ndarray | None,
    scale: float,
    gradients: Callable[[ndarray, ndarray, Precision], Grads],
    P: Precision,
    mask: ndarray | None = None,
) -> Grads:
    """
    Bound the errors of dQ, dK, dV, of what else a score has gradients by, and of that of a float
    mask: `score_gradient_error`, then the score's own, from scale dS and its error; exactly zero
    for queries that see no key and keys that no query sees.
    """
    E_dS, *grads = score_and_other_gradients(back, Es, scale, gradients, P)
    return (*grads, *mask_gradient(back.dS, E_dS, mask, P))


def score_and_other_gradients(
    back: Backward,
    Es: ndarray | None,
    scale: float,
    gradients: Callable[[ndarray, ndarray, Precision], Grads],
    P: Precision,
) -> Grads:
    """Bound the errors of dS, and of all of `attention_gradients` but that of a mask."""
    E_dS, dV = score_gradient_error(back, Es, P)
    chain = back.mix.rows
    dQ, dK, *rest = gradients(*scaled_gradient(back.dS, E_dS, scale, chain, P), P)
    seen = at_seeing_queries(chain, dQ), at_seen_keys(chain, nan_to_inf(dK))
    return (E_dS, *seen, dV, *rest)


def at_seen_keys(chain: Rows, E: ndarray) -> ndarray:
    """
    Compute the bound of a gradient of keys or values: exactly zero for a key that no query sees.
    """
    if chain.visible is None:
        return E
    return np.where(chain.seen_keys[..., None] | np.isinf(E), E, 0.0)


def at_seeing_queries(chain: Rows, E: ndarray) -> ndarray:
    """Compute the bound of a gradient of queries: exactly zero for a query that sees no key."""
    return E if chain.fully_masked is None else np.where(chain.fully_masked, 0.0, E)


def scaled_gradient(
    dS: ndarray, E_dS: ndarray, scale: float, chain: Rows | None, P: Precision
) -> tuple[ndarray, ndarray]:
    """
    Compute scale dS and its error: the scale's constant and product, three more roundings where it
    follows the matrix product, or four where the other factor was scaled, before the product or
    within it.
    """
    x = dS * scale
    E = scaled_error(x, E_dS, scale, P)
    before = gamma(4, (P.prescale or P.acc).u) if scale != 1 else 0.0
    E = E + (before + gamma(3, P.acc.u)) * (np.abs(x) + E) + P.prob.eta + P.score.eta
    E = with_overflow(E, np.abs(x), P.score)
    E = E if chain is None else zero_where_hidden(chain, E)
    return x, np.where(np.isinf(E_dS), np.inf, E)


def given_gradient(dS: ndarray, scale: float, P: Precision) -> tuple[ndarray, ndarray]:
    """
    Compute the same for a gradient that is an input, exact but for what `prob` makes of scale dS.
    """
    x, E = scaled_gradient(dS, np.zeros_like(dS), scale, None, P)
    return x, E if log2(scale).is_integer() else rounding_error(x, E, P.prob)


def mask_gradient(dS: ndarray, E_dS: ndarray, mask: ndarray | None, P: Precision) -> Grads:
    """
    Bound the error of the score's gradient summed over the axes along which a float mask was
    broadcast, stored; 0 where it hides.
    """
    if mask is None or mask.dtype == bool:
        return ()
    lead = dS.ndim - mask.ndim
    ones = tuple(
        i + lead for i, size in enumerate(mask.shape) if size == 1 and dS.shape[i + lead] != 1
    )
    axes = tuple(range(lead)) + ones
    total_dS = dS.sum(axes).reshape(mask.shape)
    E = sum_error(dS, E_dS, axes, P).reshape(mask.shape) if axes else E_dS.reshape(mask.shape)
    E = rounding_error(total_dS, E, P.storage)
    return (np.where((mask > -np.inf) | np.isinf(E), E, 0.0),)


def shared_gradient(
    x: ndarray,
    E: ndarray,
    axes: tuple[int, ...],
    P: Precision,
    terms: int | None = None,
    size: ndarray | None = None,
    scale: float = 1.0,
) -> ndarray:
    """
    Bound the error of a parameter's gradient: summed over the axes that share it, in any order or
    in narrow partials, stored. `size` instead of |x|, where x is itself a sum that may come last.
    A narrow partial may overflow, perhaps without the `scale` that is in x.
    """
    terms = terms or int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    size = np.abs(x) if size is None else size
    grown = sum_error(size, E, axes, P, terms)
    if P.grad_partial is not None:
        top = (size + E).sum(axes)
        grown = grown + gamma(ceil(terms / P.grad_block_q), P.grad_partial.u) * top
        grown = with_overflow(grown, top / scale, P.grad_partial)
    return rounding_error(x.sum(axes), grown, P.storage)
