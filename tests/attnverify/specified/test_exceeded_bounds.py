"""
Where a legal evaluation of somebody's own specification is beyond our bound, nothing is said
against an implementation: the bound is wrong, and a wrong kernel under a right one stays wrong.
"""

from typing import Any

import pytest
import torch
from jaxtyping import Float
from numpy import ndarray

from attnverify.backends.implementation import Backend
from attnverify.backends.loader import implementation_of_function
from attnverify.derived.budgets import sums
from attnverify.specified import register
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options


def sum_of_squares(x: Float[ndarray, "R C"]) -> Float[ndarray, "R"]:
    """Sum the squares of each row."""
    return (x * x).sum(-1)


def in_order(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0], dtype=x.dtype)
    for column in range(x.shape[1]):
        total = total + x[:, column] * x[:, column]
    return total


def without_the_last(x: torch.Tensor) -> torch.Tensor:
    return (x * x)[:, :-1].sum(-1)


def judged(kernel: Any) -> CellResult:
    register(sum_of_squares)
    backend = Backend("mine", "mine")
    implementation_of_function(backend, kernel, "sum_of_squares", "torch")
    cell = Cell(backend.implementations[0], None, "float32", "values")
    return judge_cell(cell, Options(profile="quick"))


@pytest.fixture
def too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of sums that forgets what accumulating costs."""
    monkeypatch.setattr(sums, "accumulation_error", lambda n, precision: 0.0)
    monkeypatch.setattr(sums, "underflow", lambda n, precision: 0.0)


def test_a_right_and_a_wrong_kernel_have_their_verdicts() -> None:
    assert judged(in_order).verdict == "passed"
    assert judged(without_the_last).verdict == "failed"


@pytest.mark.usefixtures("too_small")
def test_a_bound_that_is_exceeded_accuses_nobody() -> None:
    result = judged(in_order)
    assert result.verdict == "unsupported"
    assert result.reason.startswith("not judged: our bound is wrong here")
