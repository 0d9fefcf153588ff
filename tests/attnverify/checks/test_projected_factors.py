"""
Factors of gradients and layers: one that is off by 1 % is found in bfloat16, where no element shows
it, and rounding alone is never taken for one.
"""

from contextlib import suppress
from dataclasses import asdict
from itertools import product
from random import Random

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.checks.projected_factors import (
    ROW_MEAN,
    has_projected_factors,
    judge_factors,
    measure_projected,
    projected_factor_checks,
)
from attnverify.faults.registry import read_faults
from attnverify.judge.errors import Disagreement, Unsupported
from tests.attnverify.faults.first_failure import implementation_of
from tests.rounding_variants.grammar import arithmetics_of, derive, draw_derivation
from tests.sight.planted import NOTHING, planted, planted_in

FAULTS = {
    name: fault
    for name, fault in read_faults().items()
    if name.endswith("_off") and has_projected_factors(fault.operation)
}
MEASURED = [name for name, operation in CATALOGUE.items() if has_projected_factors(operation)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_factor_that_is_one_percent_off_is_found_in_bfloat16(name: str) -> None:
    with pytest.raises(Disagreement, match=r"is 0\.9\d% high|is 1\.\d+% high|standard errors"):
        judge_factors(FAULTS[name].operation.name, 0, implementation_of(FAULTS[name]), "bfloat16")


GRADIENTS = [name for name in MEASURED if CATALOGUE[name].is_attention]
EVERY_ARITHMETIC = [
    pytest.param(name, dtype, marks=() if dtype == "bfloat16" else pytest.mark.thorough)
    for name, dtype in product(GRADIENTS, DTYPES)
]


@pytest.mark.parametrize("operation", GRADIENTS)
def test_a_row_mean_that_is_off_is_found_and_named_in_bfloat16(operation: str) -> None:
    """Half a per cent of it is two per mille of a gradient."""
    for arithmetic in ("eager", "fused"):
        with pytest.raises(Disagreement, match=r"^row mean is 0\.[45]\d?% high"):
            judge_factors(
                operation, 0, planted(operation, arithmetic, "bfloat16", ROW_MEAN, 5e-3), "bfloat16"
            )


@pytest.mark.parametrize(("operation", "dtype"), EVERY_ARITHMETIC)
def test_no_legal_order_of_a_gradient_is_accused(operation: str, dtype: str) -> None:
    rng = Random(operation)
    for arithmetic in arithmetics_of(operation, dtype):
        order = draw_derivation(rng.choice, operation, dtype).order
        right = planted_in(derive(operation, arithmetic, **asdict(order)), dtype, NOTHING, 0.0)
        assert not accused(right, dtype, 0), (arithmetic, order)


EACH_COMMIT = {("numpy_ref", "bfloat16"), ("torch_impl", "float64")}
"""Where rounding is largest, and where the reference itself rounds as much; others nightly."""
OWN = [
    pytest.param(*own, marks=() if own in EACH_COMMIT else pytest.mark.thorough)
    for own in product(("numpy_ref", "torch_impl"), DTYPES)
]


@pytest.mark.parametrize(("column", "dtype"), OWN)
def test_none_of_our_own_is_accused(column: str, dtype: str) -> None:
    own = [
        i
        for i in load(column).implementations
        if has_projected_factors(i.operation) and i.how in ("", "eager")
    ]
    assert len(own) >= len(MEASURED) - 4
    for implementation in own:
        with suppress(Unsupported):
            assert not accused(implementation, dtype, 1)


def accused(implementation: Implementation, dtype: str, seed: int) -> list[str]:
    """The factors that are told to be off."""
    found = measure_projected(implementation, dtype, seed)
    return [f"{name}: {each}" for name, each in found.items() if each.significant]


def test_the_quick_profile_does_not_pay_for_it() -> None:
    assert not projected_factor_checks("multi_head_attention", "quick", 0)
    assert projected_factor_checks("multi_head_attention", "default", 0)
    assert not projected_factor_checks("softmax", "default", 0)
