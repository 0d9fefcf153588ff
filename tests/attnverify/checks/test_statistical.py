"""
The statistical bound of layers: no legal evaluation comes near it in a search, a sabotaged one
passes it, and where rounding is not of mean zero nothing is said.

More draws by hand: ``ATTNVERIFY_STATISTICAL_DRAWS=100 pytest .../test_statistical.py``.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.checks.projected_factors import project
from attnverify.checks.width import model_width
from attnverify.checks.width.model_width import Call, drawn_call
from attnverify.checks.width.statistical import (
    IMPROBABLE,
    TANGENTS,
    NothingSaid,
    factor_of_root,
    statistical_bound,
    tangents_of,
)
from attnverify.derived import Derived, derive
from attnverify.derived.budgets.state import Errors
from attnverify.derived.enclosure import enclose_constants
from attnverify.derived.legal import evaluations as legal_evaluations
from attnverify.derived.legal.evaluations import Evaluation, rounded
from attnverify.precision import BFLOAT16, FLOAT32, FORMATS, PRESETS, TF32, Format, Precision
from attnverify.reference import layers

LAYERS = [name for name, op in CATALOGUE.items() if op.traits.parameters and not op.is_gradient]
ARITHMETICS = [
    *(("eager", dtype) for dtype in ("float32", "float16", "bfloat16")),
    ("fused", "bfloat16"),
]
DRAWS = int(os.environ.get("ATTNVERIFY_STATISTICAL_DRAWS", "1"))
EVALUATIONS = 8
"""Of each draw; of every second one ties are broken away from zero."""
NARROW = {"D": 16, "E": 16, "K": 16}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Heads of 16 in place of 64, so that a search takes seconds."""
    monkeypatch.setattr(model_width, "ROWS", model_width.ROWS | NARROW)
    drawn_call.cache_clear()
    yield
    drawn_call.cache_clear()


def grid(x: ndarray, fmt: Format, whole: Callable[[ndarray], ndarray]) -> ndarray:
    """Round to a format by what ``whole`` makes of numbers of its units."""
    if fmt.p >= 53:
        return x
    _, exponent = np.frexp(x)
    unit = np.ldexp(1.0, np.maximum(exponent, fmt.emin + 1) - fmt.p)
    return np.where(np.isfinite(x), whole(x / unit) * unit, x)


def ties_away(x: ndarray, fmt: Format) -> ndarray:
    return grid(x, fmt, lambda y: np.copysign(np.floor(np.abs(y) + 0.5), y))


def cut_off(x: ndarray, fmt: Format) -> ndarray:
    return grid(x, fmt, np.trunc)


def evaluate(derived: Derived, precision: Precision, seed: int) -> list[ndarray]:
    """One legal evaluation: orders, places and roundings that a seed chooses."""
    made = enclose_constants(derived.graph, precision)
    rng, at = Random(seed), Errors(derived.graph, precision, made=made)
    at.E.update({node: np.zeros(node.shape) for node in derived.graph.order})
    return Evaluation(derived, at, {n: rng.randrange(2**30) for n in derived.graph.order}).run()


def shares(call: Call, derived: Derived, got: list[ndarray]) -> tuple[float, float]:
    """The worst share that an evaluation has of the bounds of elements, and of factors."""
    bounds = zip(derived.nodes, leaves(call.bounds), got, strict=True)
    elements = max(
        float((np.abs(x - node.value) / np.maximum(E, 1e-300)).max()) for node, E, x in bounds
    )
    factors = (
        abs(project(got[0] - expected, column)[0]) / call.allowed[name]
        for name, (_, expected, column) in call.directions.items()
    )
    return elements, max(factors)


def search(
    name: str, arithmetic: str, dtype: str, rounding: tuple[Callable[..., ndarray], ...]
) -> tuple[float, float]:
    """The worst shares of some draws, each evaluated in some ways."""
    worst, precision = (0.0, 0.0), PRESETS[arithmetic](FORMATS[dtype])
    fed = 2 if CATALOGUE[name].traits.option else 0
    for draw in range(DRAWS):
        call = drawn_call(name, (64, 1, fed), dtype, 5000 + draw, precision)
        derived = derive(getattr(layers, name), call.inputs)
        for seed in range(EVALUATIONS):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(legal_evaluations, "rounded", rounding[seed % len(rounding)])
                found = shares(call, derived, evaluate(derived, precision, seed))
            worst = max(worst[0], found[0]), max(worst[1], found[1])
    return worst


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("arithmetic", "dtype"), ARITHMETICS)
@pytest.mark.parametrize("name", LAYERS)
def test_no_legal_evaluation_exceeds_half_of_it_nor_stays_far_below(
    name: str, arithmetic: str, dtype: str
) -> None:
    """In float32 sums are rounded at what they have come to, the bound at what all terms are."""
    elements, factors = search(name, arithmetic, dtype, (rounded, ties_away))
    assert elements < 0.5 and factors < 0.5
    assert elements > (2e-3 if dtype == "float32" else 0.05)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["multi_head_attention", "multi_head_self_attention"])
def test_bits_that_are_cut_off_everywhere_exceed_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What is not to nearest is not of mean zero: the bound is near enough to see it where each use of
    a number reads what was cut off.
    """
    monkeypatch.setattr(legal_evaluations, "READ_BEFORE", 0.0)
    assert search(name, "eager", "bfloat16", (cut_off,))[1] > 1


def test_sums_of_independent_signs_exceed_it_no_more_often_than_it_says() -> None:
    """The worst that Hoeffding allows: each error is as large as it can be."""
    rng, count, trials = np.random.default_rng(0), 400, 4000
    J = rng.standard_normal(count)
    precision = PRESETS["eager"](FORMATS["float32"])
    tangents = rng.standard_normal((TANGENTS, count)) @ J
    bound = statistical_bound(tangents, np.zeros(()), 1, precision)
    sums = rng.choice([-1.0, 1.0], (trials, count)) @ J
    assert np.mean(np.abs(sums) > bound) <= IMPROBABLE
    assert np.mean(np.abs(sums) > bound / 3) > IMPROBABLE


def test_more_numbers_have_a_wider_bound_and_it_grows_slowly() -> None:
    one, many = factor_of_root(1), factor_of_root(10**6)
    assert np.sqrt(2 * np.log(2 / IMPROBABLE)) < one < many < 2 * one


def small_call() -> Call:
    return drawn_call(
        "self_attention", (64, 1, 0), "bfloat16", 1, PRESETS["eager"](FORMATS["bfloat16"])
    )


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    "change",
    [
        {"operand": TF32},
        {"acc_unit": 2.0**-22},
        {"stage": replace(BFLOAT16, truncates=True)},
        {"acc": replace(FLOAT32, truncates=True)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_of_what_is_not_rounded_to_nearest_nothing_is_said(change: dict[str, object]) -> None:
    precision = replace(PRESETS["eager"](FORMATS["bfloat16"]), **change)  # type: ignore[arg-type]
    with pytest.raises(NothingSaid, match="nearest"):
        tangents_of("self_attention", small_call().inputs, precision)


@pytest.mark.usefixtures("narrow")
def test_where_a_derivative_does_not_tell_what_rounding_does_nothing_is_said() -> None:
    precision = PRESETS["eager"](FORMATS["bfloat16"])
    (tangents,), (rest,) = tangents_of("self_attention", small_call().inputs, precision)
    bound = statistical_bound(tangents, rest, rest.size, precision)
    assert (np.abs(rest) < 0.1 * bound).all() and rest.any()
    rest.flat[5] = 0.3 * bound.flat[5]
    with pytest.raises(NothingSaid, match="too large for a derivative"):
        statistical_bound(tangents, rest, rest.size, precision)
