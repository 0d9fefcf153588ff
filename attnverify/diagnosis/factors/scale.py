"""
The scale of the scores as a number of its own: the same whatever D is, or the root of another size.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.factors.least_squares import (
    NEAR,
    FactorModel,
    fit_least_squares,
    power_of_size,
)
from attnverify.judge.observation import Observation
from attnverify.reference import layers
from attnverify.reference.staged_attention import evaluate, spec_stages


def fit_scale(
    operation: Operation, wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """Return the number that is the scale of every observation, or the power of a size."""
    make = model_of(operation)
    if make is None:
        return None
    models = [make(o) for o in wrong]
    each = [fit_least_squares([model]) for model in models]
    if not all(model.fits(g) for model, g in zip(models, each, strict=True)):
        return None
    others = [make(o) for o in seen]
    g = float(np.median(each))
    widths = {head_width(o) for o in wrong}
    if np.ptp(each) < NEAR * g and len(widths) > 1 and all(m.fits(g) for m in (*models, *others)):
        words = say.CONSTANT_SCALE.format(scale=g)
        return Explanation(words, words)
    power = power_of_size([o.recipe.sizes for o in wrong], each)
    if power is None or power == ("D", -0.5):
        return None
    letter, exponent = power
    if not all(m.fits(m.observation.recipe.sizes.get(letter, 1) ** exponent) for m in others):
        return None
    words = say.SCALE_OF_SIZE.format(letter=letter, exponent=exponent)
    return Explanation(words, words)


def head_width(o: Observation) -> float:
    """D, which a layer has as F/H."""
    sizes = o.recipe.sizes
    return sizes["D"] if "D" in sizes else sizes["F"] / sizes["H"]


def model_of(operation: Operation) -> Callable[[Observation], FactorModel] | None:
    """Return how an operation is computed with a scale; None for one that has no scale."""
    if operation.is_staged and {"query", "key"} <= set(operation.arguments):
        return None if "D" not in operation.sizes else staged_model
    layer = getattr(layers, operation.name, None)
    if layer is None or "scale" not in inspect.signature(layer).parameters:
        return None
    return lambda o: FactorModel(o, lambda g: layer(**o.inputs, scale=lambda width: g))


def staged_model(o: Observation) -> FactorModel:
    law = spec_stages(o.case.operation, o.inputs, o.dtype)

    def of(g: Any) -> Any:
        return evaluate(replace(law, scale=g))

    return FactorModel(o, of)
