"""
Operands in a narrower format than the dtype are told by a probe, with the declaration under which
they pass; a small fault that reads every digit is not taken for them.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref
from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.factors.fit import describe_zeros, fit_factor, scaled_output_model
from attnverify.diagnosis.factors.least_squares import fit_common_factor, is_no_rounding
from attnverify.diagnosis.mistakes.arithmetic import to_tf32
from attnverify.diagnosis.mistakes.narrow_operands import to_tf32_by_truncation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.judge.observation import Observation
from tests.attnverify.verdicts.test_found_out import judge_file

SDPA = CATALOGUE["scaled_dot_product_attention"]


def implementation(function: Callable[..., Any], precision: Any = "wide") -> Implementation:
    backend = Backend("made", "made", library=array_library("numpy"), precision=precision)
    return Implementation(backend, SDPA, "made", adapt_signature(function, SDPA))


def with_operands(narrow: Callable[[ndarray], ndarray]) -> Callable[..., Any]:
    """
    A flash-style kernel: the scale in the query, weights not yet normalised, every operand of both
    products narrow.
    """

    def attend(
        query: Any, key: Any, value: Any, mask: Any = None, keep: Any = None, p: Any = 0.0
    ) -> Any:
        query, key, value = (x.astype(np.float64) for x in (query, key, value))
        score = narrow(query / query.shape[-1] ** 0.5) @ narrow(key).mT
        weights = np.exp(score - score.max(axis=-1, keepdims=True))
        total = weights.sum(axis=-1, keepdims=True)
        return (narrow(weights) @ narrow(value) / total).astype(np.float32)

    return attend


def float16(x: ndarray) -> ndarray:
    return x.astype(np.float16).astype(np.float64)


def plain_cases() -> list[Case]:
    """Cases without a mask and without dropout."""
    drawn = draw_recipes(SDPA.name, "any", 40, 0)
    plain = [r for r in drawn if r.mask is None and r.dropout is None]
    return [case_of(recipe, "float32") for recipe in (fixed_recipe(SDPA, {}, "normal"), *plain)]


def failing(function: Callable[..., Any], precision: Any = "wide") -> list[Case]:
    found, made = [], implementation(function, precision)
    for case in plain_cases():
        try:
            judge(made, case)
        except Disagreement:
            found.append(case)
    return found


@pytest.mark.parametrize(
    "narrow, name, declared",
    [
        (to_tf32, "TF32", "tf32"),
        (to_tf32_by_truncation, "TF32", "tf32"),
        (float16, "float16", "float16"),
    ],
)
def test_narrow_operands_are_told_with_the_declaration_under_which_they_pass(
    narrow: Callable[[ndarray], ndarray], name: str, declared: str
) -> None:
    kernel = with_operands(narrow)
    cases = failing(kernel)
    cause = diagnose(implementation(kernel), cases)
    assert str(cause) == (
        f"operands in {name}: the answer is the same, bit for bit, when value is rounded to it; "
        'declare PRECISION = {"*": "wide", "float32": '
        f'{{"preset": "wide", "operand": "{declared}"}}}}, under which these cases pass'
    )
    told = re.search(r"PRECISION = (\{.*\}), under", str(cause))
    assert cases and told and failing(kernel, json.loads(told[1])) == []


def with_subnormals_as_zero(**given: Any) -> Any:
    """A kernel compiled with -ftz=true."""
    given = {name: flush(x) if isinstance(x, ndarray) else x for name, x in given.items()}
    return flush(numpy_ref.scaled_dot_product_attention(**given))


def flush(x: ndarray) -> ndarray:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x) if x.dtype.kind == "f" else x


def test_subnormal_numbers_that_count_as_0_are_told_and_no_narrow_operands() -> None:
    cases = [case_of(fixed_recipe(SDPA, {"N": 4, "M": 4}, "subnormal"), "float32")]
    made = implementation(with_subnormals_as_zero)
    with pytest.raises(Disagreement):
        judge(made, cases[0])
    cause = diagnose(made, cases)
    assert str(cause).startswith("subnormal numbers count as 0, as with -ftz=true")
    told = re.search(r"PRECISION = (\{.*\})", str(cause))
    assert told
    declared = {"preset": "wide"} | json.loads(told[1])["float32"]
    judge(implementation(with_subnormals_as_zero, declared), cases[0])


def test_a_wrong_number_that_is_subnormal_was_not_taken_for_0() -> None:
    def half(**given: Any) -> Any:
        return numpy_ref.scaled_dot_product_attention(**given) * np.float32(0.5)

    cases = [case_of(fixed_recipe(SDPA, {"N": 4, "M": 4}, "subnormal"), "float32")]
    made = implementation(half)
    with pytest.raises(Disagreement):
        judge(made, cases[0])
    assert "subnormal" not in str(diagnose(made, cases))


def test_a_wrong_number_beside_subnormal_ones_is_not_taken_for_them() -> None:
    def half(**given: Any) -> Any:
        return with_subnormals_as_zero(**given) * np.float32(0.5)

    made = implementation(half)
    plain = fixed_recipe(SDPA, {"N": 4, "M": 4}, "normal")
    cause = diagnose(made, [case_of(plain, "float32")])
    assert "subnormal" not in str(cause) and "operands" not in str(cause)


def test_a_small_fault_that_reads_every_digit_is_not_taken_for_narrow_operands() -> None:
    def slightly_wide(**given: Any) -> Any:
        return numpy_ref.scaled_dot_product_attention(**given) * np.float32(1.0003)

    cause = diagnose(implementation(slightly_wide), failing(slightly_wide))
    assert str(cause) == "every output is 0.03% high"


def test_what_does_not_read_the_values_is_not_taken_for_narrow_operands() -> None:
    def zero(**given: Any) -> Any:
        return 0 * numpy_ref.scaled_dot_product_attention(**given)

    assert "operands" not in str(diagnose(implementation(zero), failing(zero)))


@pytest.mark.parametrize(
    "factor, dtype",
    [(1 + 4e-6, "float32"), (1 - 1e-5, "float64"), (1.01, "bfloat16"), (0.999, "float16")],
)
def test_a_factor_that_roundings_make_is_never_told(factor: float, dtype: str) -> None:
    assert not is_no_rounding(factor, dtype)


@pytest.mark.parametrize(
    "factor, dtype", [(0.9981, "float32"), (1.44, "bfloat16"), (-1, "float16")]
)
def test_a_factor_beyond_roundings_is_one(factor: float, dtype: str) -> None:
    assert is_no_rounding(factor, dtype)


@pytest.mark.parametrize("factor, told", [(1 + 4e-6, None), (1.01, "1.00% high")])
def test_only_a_factor_beyond_roundings_is_told_of_what_it_fits(
    factor: float, told: str | None
) -> None:
    case = case_of(fixed_recipe(SDPA, {}, "normal"), "float32")
    bounds = (1e-5 * np.abs(case.expected),)
    seen = Observation(case, (factor * case.expected,), (case.expected,), bounds, 2.0)
    fit = scaled_output_model(seen)
    found = fit_common_factor([fit], [fit])
    assert (found.words if found else None) == told


@pytest.mark.parametrize(
    "shares, told",
    [
        ((0.25,), "off by a factor of 0.75"),
        ((0.25, 0.5), "off by a factor of 1 - p, p the share that dropout drops"),
    ],
)
def test_a_constant_is_no_share_of_a_draw(shares: tuple[float, ...], told: str) -> None:
    plain = fixed_recipe(SDPA, {}, "normal")
    fits = []
    for p in shares:
        case = case_of(replace(plain, dropout={"p": p, "seed": 2}), "float32")
        bounds = (1e-5 * np.abs(case.expected),)
        seen = Observation(case, ((1 - p) * case.expected,), (case.expected,), bounds, 9.0)
        fits.append(scaled_output_model(seen))
    found = fit_common_factor(fits, fits)
    assert found and found.words == told


@pytest.mark.parametrize("sizes, told", [({"E": 1}, False), ({"E": 6}, True)])
def test_a_factor_is_not_fitted_to_a_single_number(sizes: dict[str, int], told: bool) -> None:
    one = {"B": 1, "H": 1, "N": 1, "M": 2} | sizes
    case = case_of(fixed_recipe(SDPA, one, "normal"), "float32")
    bounds = (1e-3 * np.abs(case.expected),)
    seen = Observation(case, (8.5 * case.expected,), (case.expected,), bounds, 9.0)
    assert (fit_factor(SDPA, [seen]) is not None) is told


@pytest.mark.parametrize(
    "names, told",
    [
        (["the gradient by query"], "no gradient reaches query: 0 everywhere"),
        (
            ["the gradient by query", "the gradient by key", "the gradient by mask"],
            "no gradient reaches query, key and mask: 0 everywhere",
        ),
        (["output 3"], "nothing but zeros in output 3"),
        (["the output", "the weights"], "nothing but zeros in the output and the weights"),
    ],
)
def test_outputs_of_zeros_are_told_in_one_sentence(names: list[str], told: str) -> None:
    assert describe_zeros(names) == told


WRITTEN_OUT = """
import torch
FEATURES = {"mask": False, "dropout": False}

def scaled_dot_product_attention(query, key, value):
    score = query @ key.mT / query.shape[-1] ** 0.5
    lse = torch.logsumexp(score, -1, keepdim=True)
    return torch.exp(score - lse) @ value
"""


def test_an_lse_in_half_precision_is_told_with_its_line(tmp_path: Path) -> None:
    """It was told as weights that are wrong, and right where query is 0."""
    result = judge_file(tmp_path, WRITTEN_OUT, "bfloat16")
    (finding,) = result.findings
    line = str(finding.cause).partition("declare ")[2].partition("}}")[0] + "}}"
    assert line.startswith('PRECISION = {"bfloat16": {"step": ') and '"weights": "lse"' in line
    again = judge_file(tmp_path, f"{WRITTEN_OUT}\n{line}\n", "bfloat16")
    assert again.verdict == "passed"
