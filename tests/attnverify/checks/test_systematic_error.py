"""
Systematic errors: 0.3 % of a factor is found in every dtype, and rounding alone is never taken for
one.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.backends.source import PROJECT_BACKENDS
from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.checks.systematic_error import (
    Measurement,
    factors_of,
    judge_factors,
    measure_factors,
)
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.reference.staged_attention import evaluate, spec_stages
from tests.rounding_variants import compute
from tests.rounding_variants.grammar import Derivation, arithmetics_of, derive, draw_derivation
from tests.sight.planted import planted

SCALED = {
    "scaled_dot_product_score": ("query",),
    "additive_score": ("w_score",),
    "transformer_xl_score": ("key", "position"),
    "learned_relative_score": ("key", "key_pos_embeddings", "key_pos_bias"),
    "scaled_dot_product_attention": ("query",),
    "additive_attention": ("w_score",),
    "alibi_attention": ("query",),
    "transformer_xl_attention": ("key", "position"),
    "learned_relative_attention": ("key", "key_pos_embeddings", "key_pos_bias"),
}
"""What is multiplied to multiply the scores."""
MEASURED = list(SCALED)
BIASES = "get_alibi_biases"


def made(
    operation: str, function: Callable[..., ndarray], declared: Any, of_table: str = ""
) -> Implementation:
    """A zoo function as an implementation; a table has no argument that tells its dtype."""
    backend = Backend("zoo", "zoo", library=array_library("numpy"), precision=declared)
    library = backend.library
    assert library is not None

    def run(**inputs: Any) -> ndarray:
        dtype = of_table or str(inputs["query"].dtype)
        wide = {
            name: library.to_numpy(x) if isinstance(x, ndarray) else x for name, x in inputs.items()
        }
        return library.from_numpy(function(wide, dtype), dtype)

    return Implementation(backend, CATALOGUE[operation], "", run)


def with_gain(derived: Derivation, dtype: str, gain: float = 1.0) -> Implementation:
    """A correct implementation, but for a gain on its scores."""
    names = SCALED[derived.operation]
    return made(
        derived.operation,
        lambda inputs, dtype: compute(
            derived, inputs | {name: gain * inputs[name] for name in names}, dtype
        ),
        derived.declaration(dtype),
    )


def scaled(operation: str, arithmetic: str, dtype: str, gain: float = 0.997) -> Implementation:
    return with_gain(derive(operation, arithmetic), dtype, gain)


SEEDS = [0, pytest.param(1, marks=pytest.mark.thorough)]


def dealt(names: Sequence[str], dtypes: Sequence[str]) -> list[Any]:
    """Every name in every dtype: in one of them, in turn, with each commit, the others nightly."""
    return [
        pytest.param(name, dtype, marks=() if (i + j) % len(dtypes) == 0 else pytest.mark.thorough)
        for i, name in enumerate(names)
        for j, dtype in enumerate(dtypes)
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("style", ["eager", "wide"])
@pytest.mark.parametrize(("operation", "dtype"), dealt(MEASURED, DTYPES[1:]))
def test_a_scale_that_is_off_by_three_in_a_thousand_is_found(
    operation: str, style: str, dtype: str, seed: int
) -> None:
    with pytest.raises(
        Disagreement, match=r"scale is 0\.[1-6]\d? ?\d?% low \(\d+ standard errors\)"
    ):
        judge_factors(operation, seed, False, scaled(operation, style, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_element_shows_what_is_found(dtype: str) -> None:
    implementation = scaled("scaled_dot_product_attention", "eager", dtype)
    if dtype == "bfloat16":
        operation = CATALOGUE["scaled_dot_product_attention"]
        case = case_of(fixed_recipe(operation, {"N": 40, "M": 60}, "normal"), dtype)
        assert judge(implementation, case).budget < 1
    assert measure_factors(implementation, dtype, 0)["scale"].significant


@pytest.mark.parametrize(("operation", "dtype"), dealt(MEASURED, DTYPES))
def test_no_legal_order_of_evaluation_is_accused(operation: str, dtype: str) -> None:
    rng = Random(operation)
    for arithmetic in arithmetics_of(operation, dtype):
        drawn = draw_derivation(rng.choice, operation, dtype)
        order = replace(drawn.order, functions="library", sums="library", projection="apart")
        derived = derive(operation, arithmetic, **asdict(order))
        assert accused(with_gain(derived, dtype), dtype, range(1)) == [], derived


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "dtype"), dealt(PROJECT_BACKENDS, DTYPES))
def test_none_of_our_own_is_accused(name: str, dtype: str, seed: int) -> None:
    own = [
        i
        for i in load(name).implementations
        if factors_of(i.operation) and not i.how.startswith(("flex", "module"))
    ]
    assert len(own) >= len(MEASURED) + 1
    for implementation in own:
        assert accused(implementation, dtype, range(seed, seed + 1)) == []


def test_every_operation_with_a_factor_is_measured() -> None:
    assert {name for name, op in CATALOGUE.items() if factors_of(op)} == {*MEASURED, BIASES}


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_that_are_off_show_in_a_table_of_biases(dtype: str) -> None:
    off = planted(BIASES, "eager", dtype, "slopes", 1e-3)
    with pytest.raises(Disagreement, match=r"slopes is 0\.(1\d?|09)% high"):
        judge_factors(BIASES, 0, False, off, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_legal_order_of_a_table_of_biases_is_accused(dtype: str) -> None:
    orders = ("running product", "power", "base 2", "exponential")
    for arithmetic, slopes in product(arithmetics_of(BIASES, dtype), orders):
        derived = derive(BIASES, arithmetic, slopes=slopes)
        right = made(
            BIASES,
            lambda inputs, dtype, derived=derived: compute(derived, inputs, dtype),
            derived.declaration(dtype),
            dtype,
        )
        assert accused(right, dtype, range(1)) == [], derived


def accused(implementation: Implementation, dtype: str, seeds: range) -> list[str]:
    """The factors that are told to be off."""
    masked = [False, True] if "float mask" in factors_of(implementation.operation) else [False]
    found = []
    for seed, mask in product(seeds, masked):
        with suppress(Unsupported):
            found.append(measure_factors(implementation, dtype, seed, mask))
    return [
        f"{implementation.name} {factor}: {value}"
        for one in found
        for factor, value in one.items()
        if value.significant
    ]


def test_slopes_and_mask_and_output_are_told_from_the_scale() -> None:
    def steep(inputs: Any, dtype: str) -> ndarray:
        return alibi_with(inputs, dtype, slope=1.004)

    found = measure_factors(made("alibi_attention", steep, "wide"), "bfloat16", 1)
    assert (
        found["slopes"].significant
        and not found["scale"].significant
        and not found["output"].significant
    )


def alibi_with(inputs: Any, dtype: str, slope: float) -> ndarray:
    s = spec_stages(CATALOGUE["alibi_attention"], inputs)
    return round_to(evaluate(replace(s, slopes=s.slopes * slope)), dtype)


def test_an_output_that_is_cut_off_instead_of_rounded_is_found() -> None:
    """
    Truncation loses half a unit in the last place on average: every element is within its bound.
    """

    def cut(inputs: Any, dtype: str) -> ndarray:
        x = CATALOGUE["alibi_attention"].reference(**inputs).astype(np.float32)
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    found = measure_factors(made("alibi_attention", cut, "eager"), "bfloat16", 1)["output"]
    assert found.significant and found.alpha < 0


def test_what_the_declared_arithmetic_rounds_is_no_error() -> None:
    sloppy = scaled("scaled_dot_product_attention", "sloppy", "bfloat16")
    assert sloppy.precision("bfloat16").scale_const is not None
    assert not measure_factors(sloppy, "bfloat16", 0)["scale"].significant


def test_a_measurement_speaks() -> None:
    assert str(Measurement(-0.0036, 0.00012, 0)) == "0.36% low (30 standard errors)"
    assert str(Measurement(2e-6, 1e-7, 0)) == "2.0e-06 of itself high (20 standard errors)"
