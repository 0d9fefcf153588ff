"""
A number in a stage where the specification has none: a cap, a clip, what is added to a softmax's
sum or to its weights, what stands in place of minus infinity.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.factors.least_squares import (
    ROUNDINGS,
    FactorModel,
    fewest_digits,
    fit_least_squares,
)
from attnverify.diagnosis.factors.stages import fit_of
from attnverify.diagnosis.mistakes.sentinels import Sentinel, emptied_by_mask
from attnverify.judge.observation import Observation
from attnverify.reference import attention
from attnverify.reference.attention import exponentials
from attnverify.reference.staged_attention import StagedAttention

STARTS = tuple(10.0**k for k in range(-12, 5))
"""Where each number is looked for."""
BOTH_SIGNS = (0.0, *(sign * 10.0**k for k in range(-3, 5) for sign in (-1, 1)))


def rescored(rescore: Callable[[ndarray, float], ndarray], s: StagedAttention, g: float) -> Any:
    return replace(s, rescore=lambda score: rescore(score, g))


def added_to_the_sum(shifted: bool, s: StagedAttention, g: float) -> StagedAttention:
    """Put the stages with g added to the sum of exponentials, whose maximum is taken off or not."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        most = np.where(visible, score, -np.inf).max(axis=-1, keepdims=True)
        unit = g * (1.0 if shifted else np.exp(-most))
        e = exponentials(score, visible)
        return np.where(visible, e / (e.sum(axis=-1, keepdims=True) + unit), 0.0)

    return replace(s, weigh=weigh)


def added_to_weights(hidden: bool, s: StagedAttention, g: float) -> StagedAttention:
    """Put the stages with g added to each weight, or to those of visible keys alone."""
    return replace(
        s, weigh=lambda score, seen: attention.weigh(score, seen) + np.where(seen | hidden, g, 0.0)
    )


def hidden_at(
    place: str, is_guarded: bool, by_any: bool, s: StagedAttention, g: float
) -> StagedAttention:
    """
    Put the stages with g in place of minus infinity, that of a float mask too or not; rows that the
    mask empties are guarded.
    """
    zeroed = emptied_by_mask if is_guarded else nothing
    if s.bias is not None and not by_any:
        return s
    return Sentinel(lambda dtype: g, place, zeroed=zeroed)(replace(s, dtype="float64"))


def nothing(s: StagedAttention) -> Any:
    return False


def without_small(s: StagedAttention, g: float) -> StagedAttention:
    """Put the stages with 0 for each weight below g."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        weights = attention.weigh(score, visible)
        return np.where(weights < g, 0.0, weights)

    return replace(s, weigh=weigh)


def clipped_gradient(s: StagedAttention, g: float) -> StagedAttention:
    """Put the stages with the gradient of the scores between -g and g."""

    def score_grad(weights: ndarray, visible: ndarray, d: ndarray, mean: ndarray) -> ndarray:
        return np.where(visible, np.clip(weights * (d - mean), -g, g), 0.0)

    return replace(s, backward={"score_grad": score_grad} if s.operation.is_gradient else None)


StageNumber = Callable[[StagedAttention, Any], StagedAttention]
STAGE_NUMBERS: tuple[tuple[str, StageNumber], ...] = (
    (say.CAPPED, partial(rescored, lambda score, g: g * np.tanh(score / g))),
    (say.CLIPPED, partial(rescored, lambda score, g: np.clip(score, -g, g))),
    (say.NEGATIVE_TIMES, partial(rescored, lambda score, g: np.where(score < 0, g * score, score))),
    (say.SMALL_WEIGHTS, without_small),
    (say.CLIPPED_GRADIENT, clipped_gradient),
    (say.CLIPPED_ABOVE, partial(rescored, lambda score, g: np.minimum(score, g))),
    (say.ADDED_TO_SHIFTED, partial(added_to_the_sum, True)),
    (say.ADDED_TO_SUM, partial(added_to_the_sum, False)),
    (say.ADDED_TO_WEIGHTS, partial(added_to_weights, True)),
    (say.ADDED_TO_SEEN, partial(added_to_weights, False)),
)
HIDDEN_NUMBERS: tuple[tuple[str, StageNumber], ...] = tuple(
    (words, partial(hidden_at, place, is_guarded, by_any))
    for words, place in ((say.HIDDEN_AT, "for the score"), (say.ADDED_TO_HIDDEN, "added"))
    for is_guarded in (True, False)
    for by_any in (True, False)
)


def fit_stage_number(
    wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """Return the number in a stage that explains all observations, in words."""
    found = fitted_numbers(STAGE_NUMBERS, STARTS, wrong, seen)
    words, g, _ = next(found, ("", 0.0, []))
    return Explanation.of(words.format(number=g)) if words else None


def fit_hidden_number(
    wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """
    Return the number that stands for minus infinity and explains all observations; without its
    digits where half of it, or twice, explains them too.
    """
    if all(o.stages.sees.all() for o in wrong):
        return None
    for words, g, models in fitted_numbers(HIDDEN_NUMBERS, BOTH_SIGNS, wrong, seen):
        is_open = any(all_fit(models, other) for other in (g / 2 - 0.01 * (g == 0), 2 * g + 0.01))
        return Explanation.of(say.HIDDEN_AT_SOME if is_open else words.format(number=g))
    return None


def fitted_numbers(
    among: Sequence[tuple[str, StageNumber]],
    starts: Sequence[float],
    wrong: Sequence[Observation],
    seen: Sequence[Observation],
) -> Iterator[tuple[str, float, list[FactorModel]]]:
    """Words, number and functions of each stage in which a number explains all observations."""
    for words, change in among:
        models, every = (
            [fit_of(o, lambda s: not s.operation.is_score, change) for o in few]
            for few in (wrong, seen)
        )
        g = fewest_digits(fit_least_squares(models, starts), partial(all_fit, every))
        if g is not None:
            yield words, g, every


def all_fit(models: Sequence[FactorModel], g: float) -> bool:
    """
    Tell whether a number explains all: within a few roundings where the specification is a hundred
    times as far away, for a bound of the specification knows no rounding of this stage.
    """
    far = (min(ROUNDINGS, max(1.0, model.observation.ratio / 100)) for model in models)
    return all(m.observation.distance(m.of(g)) <= most for m, most in zip(models, far, strict=True))
