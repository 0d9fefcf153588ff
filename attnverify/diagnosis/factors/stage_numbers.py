"""
A number in a stage where the specification has none: a cap, a clip, what is added to a softmax's
sum.
"""

from collections.abc import Callable, Sequence
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
from attnverify.judge.observation import Observation
from attnverify.reference.attention import exponentials
from attnverify.reference.staged_attention import StagedAttention

STARTS = tuple(10.0**k for k in range(-12, 5))
"""Where each number is looked for."""


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


STAGE_NUMBERS: dict[str, Callable[[StagedAttention, Any], StagedAttention]] = {
    say.CAPPED: partial(rescored, lambda score, g: g * np.tanh(score / g)),
    say.CLIPPED: partial(rescored, lambda score, g: np.clip(score, -g, g)),
    say.CLIPPED_ABOVE: partial(rescored, lambda score, g: np.minimum(score, g)),
    say.ADDED_TO_SHIFTED: partial(added_to_the_sum, True),
    say.ADDED_TO_SUM: partial(added_to_the_sum, False),
}


def fit_stage_number(
    wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """Return the number in a stage that explains all observations, in words."""
    for words, change in STAGE_NUMBERS.items():
        models, every = ([fit_of(o, has_a_softmax, change) for o in few] for few in (wrong, seen))
        g = fewest_digits(fit_least_squares(models, STARTS), partial(all_fit, every))
        if g is not None:
            told = words.format(number=g)
            return Explanation(told, told)
    return None


def all_fit(models: Sequence[FactorModel], g: float) -> bool:
    """
    Tell whether a number explains all: within a few roundings where the specification is a hundred
    times as far away, for a bound of the specification knows no rounding of this stage.
    """
    far = (min(ROUNDINGS, max(1.0, model.observation.ratio / 100)) for model in models)
    return all(m.observation.distance(m.of(g)) <= most for m, most in zip(models, far, strict=True))


def has_a_softmax(s: StagedAttention) -> bool:
    return not s.operation.is_score
