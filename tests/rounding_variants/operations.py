"""Scores, softmax, dropout, positions, slopes and biases as operations of their own."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.rounding_variants.attention import level, softmax, weighted
from tests.rounding_variants.machine import Machine, clean
from tests.rounding_variants.scores import (
    additive_scores,
    alibi_bias,
    bias_of,
    dot_scores,
    hide,
    learned_scores,
    position_scores,
    slopes,
)


def softmax_operation(at: Machine, score: ndarray, mask: ndarray | None = None) -> ndarray:
    """The weights, stored."""
    return at.out(softmax_weights(at, score, mask)[0])


def softmax_weights(
    at: Machine, score: ndarray, mask: ndarray | None = None
) -> tuple[ndarray, ndarray]:
    """
    Divided by the normaliser, however that was summed; exp(s - lse) where parts are merged. Also
    the scores under their mask.
    """
    hidden = score == -np.inf
    s, bias = at.read(clean(score)), bias_of(at, mask)
    s = hide(at, s if bias is None else at.score(s + bias), mask)
    s = np.where(hidden, -np.inf, s).astype(at.work)
    if at.order.softmax == "row":
        return softmax(at, s), s
    lse = weighted(at, s, np.zeros((*s.shape[:-2], s.shape[-1], 1)))[1]
    if at.order.softmax == "merged":
        safe = np.where(lse > -np.inf, lse, 0).astype(at.work)
        return np.where(lse > -np.inf, at.exp(s, safe), 0), s
    return at.quotient(at.exp(s, level(s)), normaliser(at, s)), s


def normaliser(at: Machine, s: ndarray) -> ndarray:
    """The sum of a row's exponentials, summed online."""
    ones = np.ones((*s.shape[:-2], s.shape[-1], 1))
    from tests.rounding_variants.attention import Dropout, in_order, online

    return online(at, s, at.read(ones), Dropout(at, s, None, 0.0), in_order(at, s.shape[-1]))[2]


def dropout(at: Machine, weights: ndarray, keep: ndarray | None, p: float) -> ndarray:
    w = at.read(weights)
    kept = w if keep is None else np.where(keep, w, 0).astype(at.work)
    if keep is None or p == 0:
        return at.out(kept)
    rest = at.constant(1 - p)
    return at.out(kept / rest if at.order.dropout == "divided" else kept * at.constant(1 / rest))


def dequantize(at: Machine, stored: ndarray, scale: ndarray, stored_as: str) -> ndarray:
    """Eight bits times a scale, which `acc` keeps or the store rounds at once: no sum is cut."""
    number = spec.dequantize(stored, np.ones(scale.shape), stored_as)
    y = at.read(number) * at.read(scale)[..., None]
    return at.out(at.to(y, at.P.acc) if at.order.multiply == "rounded" else y)


def positions(at: Machine, M: int, F: int) -> ndarray:
    """The sinusoids."""
    steps, base = np.arange(0, F, 2).astype(at.work), at.work(10000)
    power = lambda x: at.function(
        lambda y: np.power(y.dtype.type(base), y), x, at.P.exp_ulps, at.P.acc
    )
    if at.order.frequency == "exponential":
        logarithm = at.work(np.log(10000.0))
        frequency = at.function(
            np.exp, steps * at.work(-logarithm / at.work(F)), at.P.exp_ulps, at.P.acc
        )
    elif at.order.frequency == "power":
        frequency = power(-steps / at.work(F))
    else:
        frequency = at.work(1) / power(steps / at.work(F))
    angle = np.arange(M - 1, -1, -1).astype(at.work)[:, None] * frequency
    each = [at.function(f, angle, at.P.sin_ulps, at.P.acc) for f in (np.sin, np.cos)]
    return at.out(np.concatenate(each, -1))


OPERATIONS: dict[str, Any] = {
    "scaled_dot_product_score": lambda at, **inputs: at.out(dot_scores(at, **inputs)),
    "additive_score": lambda at, **inputs: at.out(additive_scores(at, **inputs)),
    "transformer_xl_score": lambda at, **inputs: at.out(position_scores(at, **inputs)),
    "learned_relative_score": lambda at, **inputs: at.out(learned_scores(at, **inputs)),
    "softmax": softmax_operation,
    "dropout": dropout,
    "dequantize": dequantize,
    "sinusoidal_positions": positions,
    "get_slopes": lambda at, n_heads: at.out(slopes(at, n_heads)),
    "get_alibi_biases": lambda at, n_heads, visible: at.out(
        alibi_bias(at, n_heads, np.cumsum(visible, -1))
    ),
}
