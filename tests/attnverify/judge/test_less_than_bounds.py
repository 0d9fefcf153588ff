"""
Calls of real size are held to less than their bounds first, which costs a tenth: what keeps within
that keeps within the bounds, and what does not is judged by these.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import attnverify.derived
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.bounds import error
from attnverify.catalogue.pytrees import leaves
from attnverify.derived import Derived
from attnverify.derived.today import BOUNDS, ROWS
from attnverify.inputs.real.calls import everyday_calls
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.judge.case import Case, case_of, errors_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.precision import resolve

GROUPED = "grouped_attention"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operation", BOUNDS)
def test_no_bound_is_less(operation: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attnverify.derived, "MANY", 0)
    everyday = min(everyday_calls(operation, "quick", 1), key=lambda r: _pairs(r.sizes))
    known = 0
    for number, recipe in enumerate([*required_cases(operation)[::3], everyday]):
        case = case_of(recipe, dtype)
        preset = (None, "stepwise", "fused")[number % 3]
        precision = resolve(preset, operation, operation, dtype)
        errors = errors_of(case)
        with np.errstate(all="ignore"):
            least, bounds = errors(precision, Derived.least), errors(precision)
        if least is not None:
            pairs = zip(leaves(least), leaves(bounds), strict=True)
            assert all(x is y is None or (x <= y * (1 + 1e-9)).all() for x, y in pairs)
            known += 1
    assert known > 0 or operation == "latent_attention_grad"  # whose latents are more than weights


def _pairs(sizes: dict[str, int]) -> float:
    return float(np.prod([sizes.get(letter, 1) for letter in "BHNMTU"]))


@cache
def real_case() -> Case:
    calls = (r for r in everyday_calls(GROUPED, "quick", 1) if r.sizes["N"] > 100)
    return Case(min(calls, key=lambda r: _pairs(r.sizes)), "float32")


def kernel(factor: float) -> Implementation:
    found = next(each for each in load("numpy_ref").implementations if each.name == GROUPED)
    right = found.function

    def wrong(*args: object, **options: object) -> object:
        output, lse = right(*args, **options)
        return (output * factor).astype(output.dtype), lse

    return found if factor == 1 else replace(found, function=wrong, precisions={}, shown={})


def test_a_right_call_is_judged_without_its_bounds() -> None:
    case = Case(real_case().recipe, "float32")
    found = judge(kernel(1), case, known=1.0)
    assert found.judged and found.discriminating and not case._errors
    assert judge(kernel(1), case).budget < found.budget < 1 and case._errors


def test_an_answer_that_is_right_is_not_rejected_by_rows() -> None:
    case, precision = (
        Case(real_case().recipe, "float32"),
        resolve(None, GROUPED, GROUPED, "float32"),
    )
    zeros = [np.zeros_like(x) for x in case.expected]
    assert case._rejects_in_rows([zeros], precision)
    assert not case._rejects_in_rows([zeros, case.expected], precision)


def test_what_has_used_more_than_others_is_held_to_its_bounds() -> None:
    case = Case(real_case().recipe, "float32")
    assert judge(kernel(1), case, known=1e-9).budget == judge(kernel(1), real_case()).budget


def test_a_wrong_call_is_as_wrong() -> None:
    case = Case(real_case().recipe, "float32")
    with pytest.raises(Disagreement, match="x of it"):
        judge(kernel(1.001), case, known=1.0)


@pytest.mark.parametrize("operation", [name for name in BOUNDS if "latent" not in name])
def test_the_bound_of_some_rows_is_that_of_all(operation: str) -> None:
    """Of a gradient it may be of a narrower form, of which the judge takes twice."""
    precision, some = resolve(None, operation, operation, "float32"), slice(0, None, 2)
    recipes = [r for r in required_cases(operation) if (r.mask or {}).get("form") != "bool"]
    masked = [r for r in recipes if r.mask and operation.startswith("grouped")]
    for recipe in [*recipes[::9], *masked[:4]]:
        inputs = dict(case_of(recipe, "float32").inputs)
        whole = error(operation, inputs, precision)[0]
        found = error(operation, inputs | {ROWS: some}, precision)[0]
        rows = whole[some] if whole.ndim == 3 else whole[..., some, :]
        if operation.endswith("_grad"):
            assert (found <= rows * (1 + 1e-12)).all() and (rows <= 2 * found).all()
        else:
            np.testing.assert_allclose(found, rows, rtol=1e-12)
