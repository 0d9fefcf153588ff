"""
The scale of the scores as a number of its own: the same whatever D is, the root of another size, or
that of the specification with a number added to the width or its root, or with the width of a tile.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import IN_BACKWARD, Explanation
from attnverify.diagnosis.factors.least_squares import (
    NEAR,
    FactorModel,
    fit_least_squares,
    power_of_size,
)
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.diagnosis.layers.stages import takes
from attnverify.diagnosis.mistakes.today.rows import OF_TODAY
from attnverify.diagnosis.mistakes.today.steps import in_backward_alone
from attnverify.inputs.recipe import Inputs
from attnverify.judge.observation import Observation
from attnverify.reference import attention, layers
from attnverify.reference.staged_attention import evaluate

Model = Callable[[Observation], FactorModel]


def fit_scale(
    operation: Operation, wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """Return the number that is the scale of every observation, or the power of a size."""
    for make, place in models_of(operation):
        if found := fit_by(make, wrong, seen):
            return Explanation.of(f"{found.words}{place}")
    return None


def fit_by(
    make: Model, wrong: Sequence[Observation], seen: Sequence[Observation]
) -> Explanation | None:
    """Return the same of one way to compute the operation with a scale."""
    models = [make(o) for o in wrong]
    found = [(m.observation, g) for m in models if m.fits(g := fit_least_squares([m]))]
    if 2 * len(found) < len(models):  # steep ones may be fitted by none, and must be explained too
        return None
    each, every = [g for _, g in found], [*models, *map(make, seen)]
    g = float(np.median(each))
    widths = [head_width(o) for o, _ in found]
    if np.ptp(each) < NEAR * g and len({*widths}) > 1 and all(m.explains(g) for m in every):
        return Explanation.of(say.CONSTANT_SCALE.format(scale=g))
    power = power_of_size([o.recipe.sizes for o, _ in found], each)
    if power is None or power == ("D", -0.5):
        return near_the_law(every, widths, each)
    letter, exponent = power
    if not all(m.explains(m.observation.recipe.sizes.get(letter, 1) ** exponent) for m in every):
        return None
    return Explanation.of(say.SCALE_OF_SIZE.format(letter=letter, exponent=exponent))


Scale = Callable[[float], float]
WITH_NUMBER: tuple[tuple[str, Callable[..., float], Callable[..., Any]], ...] = (
    ("{k:g}/sqrt(D)", lambda D, k: k * D**-0.5, lambda D, g: g * D**0.5),
    ("1/sqrt(D {k:+g})", lambda D, k: (D + k) ** -0.5, lambda D, g: g**-2 - D),
    ("1/(sqrt(D) {k:+g})", lambda D, k: 1 / (D**0.5 + k), lambda D, g: 1 / g - D**0.5),
    ("1/sqrt(D), D at least {k:g},", lambda D, k: np.maximum(D, k) ** -0.5, lambda D, g: g**-2),
    ("1/sqrt(D), D at most {k:g},", lambda D, k: np.minimum(D, k) ** -0.5, lambda D, g: g**-2),
)
"""In words, the scale with another number k in it, and the k of a scale g."""
TILES = (2, 4, 8, 16, 32, 64, 128, 256)


def near_the_law(
    models: Sequence[FactorModel], widths: Sequence[float], fitted: Sequence[float]
) -> Explanation | None:
    """Return the scale that is nearly 1/sqrt(D) and fits every observation."""
    with np.errstate(all="ignore"):
        for law, scale in laws_near(np.array(widths), np.array(fitted)):
            if all(m.explains(scale(np.float64(head_width(m.observation)))) for m in models):
                return Explanation.of(say.SCALE_IS.format(law=law))
    return None


def laws_near(widths: ndarray, fitted: ndarray) -> Iterator[tuple[str, Scale]]:
    """Yield the scales that are tried, each in words: k as a whole number too, tiles of a width."""
    for words, scale, k_of in WITH_NUMBER:
        k = float(np.median(k_of(widths, fitted)))
        for digits in ("{:.0f}", "{:.1g}", "{:.3g}"):
            rounded = float(digits.format(k))
            yield words.format(k=rounded), partial(scale, k=rounded)
    for tile in TILES:
        yield say.WIDTH_OF_TILES.format(tile=tile), partial(scale_of_tiles, tile)
    yield say.WIDTH_OF_POWER, lambda D: float(2 ** np.ceil(np.log2(D))) ** -0.5


def scale_of_tiles(tile: int, D: float) -> float:
    return float(np.ceil(D / tile) * tile) ** -0.5


def head_width(o: Observation) -> float:
    """D, which a layer has as F/H."""
    sizes = o.recipe.sizes
    return sizes["D"] if "D" in sizes else sizes["F"] / sizes["H"]


def models_of(operation: Operation) -> Iterator[tuple[Model, str]]:
    """Yield how an operation is computed with a scale, and where that is; nothing without one."""
    layer = getattr(layers, operation.name, None)
    if operation.is_staged and {"query", "key"} <= set(operation.arguments):
        yield from [(staged_model, "")] if "D" in operation.sizes else []
    elif layer is not None and "scale" in inspect.signature(layer).parameters:
        yield lambda o: FactorModel(o, lambda g: layer(**o.inputs, scale=lambda width: g)), ""
    elif takes(operation, "weigh") and "H" in operation.sizes and not operation.traits.slopes:
        yield rescaled_model, ""
    elif operation.shares_keys and not operation.requires("scale"):
        yield lambda o: FactorModel(o, partial(given_scale, o)), ""
    if operation.is_gradient and operation.forward.name in RECOMPUTES:
        yield lambda o: FactorModel(o, partial(recomputed, o)), IN_BACKWARD


def given_scale(o: Observation, g: float) -> Any:
    """Return what the operation gives with a scale, where it is left to the operation."""
    return o.case.operation.reference(**with_scale(o.inputs, g))


def with_scale(inputs: Inputs, g: float) -> Inputs:
    return inputs if inputs.get("scale") is not None else inputs | {"scale": g}


RECOMPUTES = ("scaled_dot_product_attention", *OF_TODAY)
"""What :func:`in_backward_alone` can be asked of."""


def recomputed(o: Observation, g: float) -> Any:
    """Return the gradients by weights exp(score - lse), of scores with another scale."""
    return in_backward_alone(
        np.inf, {"given": lambda call: with_scale(call.x, g)}, o.case.operation, o.inputs
    )


def rescaled_model(o: Observation) -> FactorModel:
    """A layer whose scores are scaled otherwise before they are weighed."""
    layer, law = in_stages(o.case.operation), head_width(o) ** -0.5

    def weigh(g: float, score: ndarray, visible: ndarray) -> ndarray:
        return attention.weigh(score * (g / law), visible)

    return FactorModel(o, lambda g: layer(**o.inputs, weigh=partial(weigh, g)))


def staged_model(o: Observation) -> FactorModel:
    return FactorModel(o, lambda g: evaluate(replace(o.stages, scale=g)))
