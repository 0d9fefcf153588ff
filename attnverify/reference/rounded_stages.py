"""
The stages of an attention in a declared arithmetic: what is rounded there, in the ways that are all
legal and do not err alike.

Two roundings of one format may differ at a tie, which a sum of two numbers of the format is in a
third of the cases; and weights may be rounded before or behind their normaliser, whose sum may be
that of the rounded ones. On numbers of which many are rounded to one side, as weights near 1 are,
each is off by a factor of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.precision import Format, Precision
from attnverify.reference import attention
from attnverify.reference.staged_attention import StagedAttention, dropped, product

Round = Callable[[ndarray, Format], ndarray]

TIES: tuple[Callable[[ndarray], ndarray], ...] = (
    np.rint,
    lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    lambda x: np.copysign(np.ceil(np.abs(x) - 0.5), x),
)
"""To even, away from zero, and towards it."""

WEIGHTS = ("behind the normaliser", "before it", "before its sum")
"""Where weights are rounded."""


def legal_answers(s: StagedAttention, precision: Precision) -> Iterator[ndarray]:
    """
    Compute what is given where weights and output alone are rounded, at each place, with what other
    ways to round ties change in scores that are kept as declared: what is noise in these is in both
    and cancels. None where nothing is rounded coarsely.
    """
    kept = precision.joined, precision.score, precision.prob, precision.storage
    if min(fmt.p for fmt in kept) >= precision.acc.p:
        return
    acc = precision.acc
    wide = replace(precision, joined=acc, score=acc)
    for place in WEIGHTS if s.operation.is_attention else WEIGHTS[:1]:
        answer = rounded_answer(s, wide, partial(rounding, TIES[0], acc), place)
        even, *others = (
            rounded_answer(s, precision, partial(rounding, whole, acc), place) for whole in TIES
        )
        yield answer
        for other in others:
            yield answer + (other - even)


def rounding(
    whole: Callable[[ndarray], ndarray], widest: Format, x: ndarray, fmt: Format
) -> ndarray:
    """Round to a format, ties as ``whole`` has them; what is as wide as the sums is left alone."""
    if fmt.p >= widest.p:
        return x
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        unit = np.ldexp(1.0, np.maximum(exponent, fmt.emin + 1) - fmt.p)
        return np.where(np.isfinite(x), whole(x / unit) * unit, x)


def rounded_answer(s: StagedAttention, P: Precision, to: Round, place: str) -> ndarray:
    """Compute the scores, or the output of a softmax or an attention."""
    score = rounded_score(s, P, to)
    if s.operation.is_score:
        return score
    visible = s.sees & (score != attention.HIDDEN)
    w = attention.exponentials(score, visible)
    total = w.sum(-1, keepdims=True)
    if place == WEIGHTS[0]:
        w, total = w / np.where(total == 0, 1.0, total), np.ones_like(total)
    w = w if "score" in s.inputs else to(w, P.prob)
    if place == WEIGHTS[2]:
        total = w.sum(-1, keepdims=True)
    if "score" in s.inputs:
        return to(w / np.where(total == 0, 1.0, total), P.storage)
    output = attention.mix(dropped(s, w), w != 0, s.inputs["value"])
    return to(output / np.where(total == 0, 1.0, total), P.storage)


def rounded_score(s: StagedAttention, P: Precision, to: Round) -> ndarray:
    """Compute the scores with what is added to them, each sum kept as declared."""

    score = to(
        s.scale
        * to(
            product(
                s, lambda query, key: to(attention.products(to(query, P.joined), key), P.score)
            ),
            P.score,
        ),
        P.score,
    )
    if s.slopes is not None and s.distance is not None:
        score = to(score + s.slopes[:, None, None] * s.distance, P.score)
    return score if s.bias is None else to(score + s.bias, P.score)
