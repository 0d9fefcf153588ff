"""
The training path: what is right where all inputs need a gradient and each graph goes back once, and
wrong elsewhere, is noticed by these checks alone.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from attnverify.backends.loader import Implementation, load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.checks.registry import checks, concerns
from attnverify.checks.training_path import (
    forward_of,
    has_training_path,
    subsets,
    training_checks,
)
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge

SAMPLE = str(Path(__file__).parents[2] / "sample_backends/training_faults.py")
OWN = {i.how: i for i in load(SAMPLE).implementations if i.operation.is_gradient}
FORWARD = {i.how: i for i in load(SAMPLE).implementations if not i.operation.is_gradient}
FAULTS = [how for how in OWN if how != "sound"]
TORCH = [i for i in load("torch_impl").implementations if has_training_path(i) and i.how == ""]


def objections(implementation: Implementation, dtype: str = "float32") -> list[str]:
    """What the checks of the training path have against an implementation."""
    found = []
    for _, check in training_checks(implementation.operation.name, 0):
        try:
            check(implementation, dtype)
        except Disagreement as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_of_the_training_path_survives_every_other_case(how: str) -> None:
    for implementation in (OWN[how], FORWARD[how]):
        for recipe in fixed_cases(implementation.operation.name)[::4]:
            assert judge(implementation, case_of(recipe, "float32")).budget <= 1


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_of_the_training_path_is_noticed(how: str) -> None:
    assert objections(OWN[how])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_right_is_not_accused(dtype: str) -> None:
    assert objections(OWN["sound"], dtype) == []


class Pretended:
    """A machine on which alone a kernel runs."""

    inside = False

    def runs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **given: Any) -> Any:
            self.inside = True
            try:
                return function(*args, **given)
            finally:
                self.inside = False

        return called


def test_a_step_is_made_on_the_machine_that_a_kernel_needs() -> None:
    machine, forward = Pretended(), forward_of(OWN["sound"])
    assert forward is not None

    def kernel(**given: Any) -> Any:
        if not machine.inside:
            raise RuntimeError("0 active drivers")
        return forward(**given)

    kernel.forward = kernel  # type: ignore[attr-defined]
    backend = replace(OWN["sound"].backend, machine=machine)  # type: ignore[arg-type]
    assert objections(replace(OWN["sound"], function=kernel, backend=backend)) == []


@pytest.mark.parametrize("own", TORCH, ids=lambda own: own.name)
def test_none_of_our_own_is_accused(own: Implementation) -> None:
    with suppress(Unsupported):
        assert objections(own) == []


@pytest.mark.parametrize("count", [1, 3, 20])
def test_each_input_may_be_alone_and_may_be_left_out(count: int) -> None:
    found = [subset for _, subset in subsets(count, Random(1), OWN["sound"])]
    assert frozenset() in found and frozenset(range(count)) in found
    assert sum(len(subset) == 1 for subset in found) >= min(count, 4)
    assert sum(len(subset) == count - 1 for subset in found) >= min(count, 4)


def test_only_pytorchs_own_gradients_are_asked() -> None:
    numpy = next(i for i in load("numpy_ref").implementations if i.operation.is_gradient)
    names = [name for name, _ in training_checks(numpy.operation.name, 0)]
    assert not any(concerns(name, numpy) for name in names)
    assert all(concerns(name, OWN["sound"]) for name in names)
    assert all(
        name in checks(OWN["sound"].operation.name, "gradients", "default", 0) for name in names
    )
    assert not training_checks("softmax", 0) and CATALOGUE["softmax_grad"].is_gradient
