"""
A factor of one stage: of the scale, the slopes, the float mask; or of the slope of each head.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.factors.least_squares import (
    FactorModel,
    factor_in_words,
    fit_common_factor,
    fit_least_squares,
)
from attnverify.judge.observation import Observation
from attnverify.reference.staged_attention import StagedAttention, evaluate

Gained = Callable[[StagedAttention, Any], StagedAttention]
STAGE_FACTORS: dict[str, tuple[Callable[[StagedAttention], bool], Gained]] = {
    "the scale is": (lambda s: True, lambda s, g: replace(s, scale=s.scale * g)),
    "the slopes are": (
        lambda s: s.slopes is not None,
        lambda s, g: replace(s, slopes=s.slopes * g),
    ),
    "the position scores are": (lambda s: s.place is not None, lambda s, g: replace(s, position=g)),
    "the float mask is": (lambda s: s.bias is not None, lambda s, g: replace(s, bias=s.bias * g)),
    "the exponent is": (
        lambda s: "score" not in s.operation.name,
        lambda s, g: replace(s, exponent=g),
    ),
    "the kept weights are": (
        lambda s: s.inputs.get("keep") is not None,
        lambda s, g: replace(s, kept=s.kept * g),
    ),
}


def fit_stage_factor(
    wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """One stage with a factor, the same for all or a power of a size."""
    for words, (applies, change) in STAGE_FACTORS.items():
        if any(applies(o.stages) for o in wrong):
            factor = fit_common_factor(
                [fit_of(o, applies, change) for o in wrong],
                [fit_of(o, applies, change) for o in seen],
            )
            if factor:
                name, told = (
                    say.HAS_FACTOR.format(what=words, factor=each)
                    for each in (factor.name, factor.words)
                )
                return Explanation(name, told)
    return None


def fit_of(
    o: Observation, applies: Callable[[StagedAttention], bool], change: Gained
) -> FactorModel:
    law = o.stages
    return FactorModel(o, lambda g: evaluate(change(law, g) if applies(law) else law))


def slopes_of_heads(wrong: Sequence[Observation]) -> Explanation | None:
    """Return a factor for each head's slope, where the operation has slopes."""
    if wrong[0].stages.slopes is None or wrong[0].recipe.operation.endswith("_grad"):
        return None
    found = [(o, fit_per_head(o)) for o in wrong]
    slopes = STAGE_FACTORS["the slopes are"][1]
    if not all(fit_of(o, lambda s: True, slopes).fits(g) for o, g in found):
        return None
    o, factors = max(found, key=lambda pair: len(pair[1]))
    if np.ptp(factors) < 1e-3:  # one factor for all is not a matter of heads
        return None
    off = [h for h, g in enumerate(factors) if abs(g - 1) > 0.2 * max(abs(factors - 1))]
    return Explanation(say.SLOPES, describe_slopes(factors, off))


def describe_slopes(factors: ndarray, off: Sequence[int]) -> str:
    """Describe the slopes that are off: of three heads at most, and how many there are."""
    told = ", ".join(
        say.HEAD_HAS_FACTOR.format(head=h, factor=factor_in_words(factors[h]).words)
        for h in off[:3]
    )
    if len(off) <= 3:
        return say.SLOPES_OF_HEADS.format(told=told, heads=len(factors))
    more = len(off) - 3
    return say.SLOPES_OF_MORE_HEADS.format(told=told, more=more, heads=len(factors))


def fit_per_head(o: Observation) -> ndarray:
    """
    Fit the factor of each head's slope: heads do not know of each other. A head that is right has
    the factor 1, also where its slope moves nothing, as with a single key.
    """
    law = o.stages
    models = [slope_model(o, law, head) for head in range(len(law.slopes))]
    return np.array([1.0 if m.fits(1.0) else fit_least_squares([m]) for m in models])


def slope_model(o: Observation, law: StagedAttention, head: int) -> FactorModel:
    """The output of one head as a function of the factor of its slope."""
    actual, expected = (tuple(x[:, head] for x in part) for part in (o.actual, o.expected))
    bounds = tuple(None if x is None else x[:, head] for x in o.bounds)
    one = replace(o, actual=actual, expected=expected, bounds=bounds)
    own = np.arange(len(law.slopes)) == head

    return FactorModel(
        one, lambda g: evaluate(replace(law, slopes=np.where(own, g, 1) * law.slopes))[:, head]
    )
