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

from tests.attnverify.specified.told import answered, cases, failing, told


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


def told_of(law: Any, kernel: Any) -> str:
    return told(answered(law, kernel)[0], cases(law.__name__, drawn=20))


@pytest.mark.parametrize(("law", "kernel"), ALLOWED)
def test_what_a_declaration_allows_is_told_with_it(law: Any, kernel: Any) -> None:
    words = told_of(law, kernel)
    declared = re.findall(r"declare PRECISION = ({.*}), under", words)
    assert [loads(each) for each in declared] == [{"float32": ALLOWED[law, kernel]}], words
    own = answered(law, kernel, loads(declared[0]))[0]
    assert failing(own, cases(law.__name__, drawn=20)) == []


@pytest.mark.parametrize(
    ("law", "kernel"),
    [(squashed, in_half), (squashed, off_by_fifty_ulps), (smooth_below, with_another_limit)],
)
def test_what_no_declaration_allows_is_told_none(law: Any, kernel: Any) -> None:
    assert "declare" not in told_of(law, kernel)
