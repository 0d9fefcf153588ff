"""
Arithmetic that a file may declare and did not: it is told with the line that allows it, and right
with that line.
"""

import re
from json import loads
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from numpy import ndarray

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import implementation_of_function
from attnverify.diagnosis.diagnose import diagnose
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.judging import is_right
from attnverify.specified import register


def smooth_below(x: Float[ndarray, "R C"]) -> Float[ndarray, "R C"]:
    """Linear above 0, an exponential below."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


def soft_rectified(x: Float[ndarray, "R C"]) -> Float[ndarray, "R C"]:
    """A smooth step from 0 to x."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def squashed(x: Float[ndarray, "R C"]) -> Float[ndarray, "R C"]:
    """Between -1 and 1."""
    return np.tanh(x)


def by_exponential(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)


def by_logarithm(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=0) + torch.log(1 + torch.exp(-x.abs()))


def by_two_exponentials(x: torch.Tensor) -> torch.Tensor:
    return 1 - 2 / (1 + torch.exp(2 * x))


def in_half(x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x) * 1.0).to(torch.float16).to(x.dtype)


def with_another_limit(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1.001)


def off_by_fifty_ulps(x: torch.Tensor) -> torch.Tensor:
    """Far within what a tanh of few digits may err, and no sign of one."""
    return torch.tanh(x) * (1 + 3e-6 * torch.cos(1000 * x))


ALLOWED = {
    (smooth_below, by_exponential): {"tanh_form": "exponential"},
    (soft_rectified, by_logarithm): {"tanh_form": "exponential"},
    (squashed, by_two_exponentials): {"tanh_form": "exponential"},
}


def judged(law: Any, kernel: Any, declared: Any = None) -> tuple[Implementation, list[Case]]:
    """An implementation in NumPy's place, and the cases that it fails."""
    register(law)
    backend = Backend("mine", "mine", precision=declared)
    implementation_of_function(backend, kernel, law.__name__, "torch")
    drawn = (*fixed_cases(law.__name__), *draw_recipes(law.__name__, "any", 20, 0))
    cases = [case_of(recipe, "float32") for recipe in drawn]
    mine = backend.implementations[0]
    return mine, [case for case in cases if not is_right(mine, case)]


@pytest.mark.parametrize(("law", "kernel"), ALLOWED)
def test_what_a_declaration_allows_is_told_with_it(law: Any, kernel: Any) -> None:
    mine, failing = judged(law, kernel)
    assert failing
    told = str(diagnose(mine, failing))
    declared = re.findall(r"declare PRECISION = ({.*}), under", told)
    assert [loads(each) for each in declared] == [{"float32": ALLOWED[law, kernel]}], told
    assert judged(law, kernel, loads(declared[0]))[1] == []


@pytest.mark.parametrize(
    ("law", "kernel"),
    [(squashed, in_half), (squashed, off_by_fifty_ulps), (smooth_below, with_another_limit)],
)
def test_what_no_declaration_allows_is_told_none(law: Any, kernel: Any) -> None:
    mine, failing = judged(law, kernel)
    assert failing
    assert "declare" not in str(diagnose(mine, failing))
