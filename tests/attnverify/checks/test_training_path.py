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

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import DTYPES
from attnverify.checks.registry import checks, concerns
from attnverify.checks.training_path import (
    float_inputs,
    forward_of,
    has_training_path,
    subsets,
    training_checks,
    training_recipes,
)
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import is_right, judge

SAMPLE = str(Path(__file__).parents[2] / "sample_backends/training_faults.py")
OWN = {i.how: i for i in load(SAMPLE).implementations if i.operation.is_gradient}
FORWARD = {i.how: i for i in load(SAMPLE).implementations if not i.operation.is_gradient}
FAULTS = [how for how in OWN if how != "sound"]
ELSEWHERE = str(Path(__file__).parents[2] / "sample_backends/training_elsewhere.py")
LATER = {i.how: i for i in load(ELSEWHERE).implementations if i.operation.is_gradient}
UNDER_MASKS = (
    "forgets_a_frozen_float_mask",
    "key_hangs_on_query_under_a_mask",
    "forgets_long_calls_after_one_backward",
    "replaces_what_is_there_in_long_calls",
    "key_hangs_on_query_on_the_fast_path",
    "forgets_the_fast_path_after_one_backward",
    "replaces_what_is_there_on_the_fast_path",
)
WHILE_RECORDING = [how for how in LATER if how.startswith("other_output")]
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


@pytest.mark.parametrize("how", [how for how in FAULTS if not how.startswith("other_forward")])
def test_a_fault_of_the_training_path_survives_every_other_case(how: str) -> None:
    for implementation in (OWN[how], FORWARD[how]):
        for recipe in fixed_cases(implementation.operation.name)[::4]:
            assert judge(implementation, case_of(recipe, "float32")).budget <= 1


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_of_the_training_path_is_noticed(how: str) -> None:
    alone = is_right(OWN[how], case_of(fixed_cases(OWN[how].operation.name)[0], "float32"))
    assert objections(OWN[how]) if alone else how == "other_forward_while_recording"


@pytest.mark.parametrize("how", UNDER_MASKS)
def test_a_fault_under_masks_or_of_several_tiles_is_noticed(how: str) -> None:
    assert objections(LATER[how])


@pytest.mark.parametrize("how", WHILE_RECORDING)
def test_outputs_are_compared_wherever_gradients_are(how: str) -> None:
    found = set[str]()
    for recipe in draw_recipes(LATER[how].operation.name, "any", 20, 0):
        try:
            judge(LATER[how], case_of(recipe, "float32"))
        except Disagreement as error:
            found.add(error.kind)
    assert found and all(kind.endswith(" while a graph is recorded") for kind in found)


def test_their_sound_twin_passes() -> None:
    assert objections(LATER["sound"]) == []
    for recipe in draw_recipes(LATER["sound"].operation.name, "any", 20, 0):
        judge(LATER["sound"], case_of(recipe, "float32"))


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


@pytest.mark.parametrize("name", ["softmax_grad", "additive_attention_grad", "self_attention_grad"])
def test_each_input_may_be_alone_and_may_be_left_out(name: str) -> None:
    case = case_of(training_recipes(name, 0)[0], "float32")
    count = len(list(float_inputs(case)))
    found = [subset for _, subset in subsets(case, Random(1), OWN["sound"])]
    assert frozenset() in found and frozenset(range(count)) in found
    assert sum(len(subset) == 1 for subset in found) >= min(count, 4)
    assert sum(len(subset) == count - 1 for subset in found) >= min(count, 4)


def test_a_float_mask_is_left_out_and_alone_in_calls_of_several_tiles() -> None:
    recipe = next(r for r in training_recipes("softmax_grad", 0) if "finite" in str(r.mask))
    case = case_of(recipe, "float32")
    (number,) = (n for n, (path, _) in enumerate(float_inputs(case)) if path == "mask")
    found = [subset for _, subset in subsets(case, Random(1), OWN["sound"], few=True)]
    assert min(recipe.sizes["N"], recipe.sizes["M"]) > 64
    assert frozenset([number]) in found and frozenset([0]) in found


def test_only_pytorchs_own_gradients_are_asked() -> None:
    numpy = next(i for i in load("numpy_ref").implementations if i.operation.is_gradient)
    names = [name for name, _ in training_checks(numpy.operation.name, 0)]
    assert not any(concerns(name, numpy) for name in names)
    assert all(concerns(name, OWN["sound"]) for name in names)
    assert all(
        name in checks(OWN["sound"].operation.name, "gradients", "default", 0) for name in names
    )
    assert not training_checks("softmax", 0) and CATALOGUE["softmax_grad"].is_gradient


OVER_ITS_INPUT = """
import torch

class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, score):
        ctx.save_for_backward(score)
        return torch.softmax(score, -1)

    @staticmethod
    def backward(ctx, d_output):
        (score,) = ctx.saved_tensors
        p = torch.softmax(score, -1)
        d = p * (d_output - (d_output * p).sum(-1, keepdim=True))
        score.data.copy_(d)
        return d

def softmax(score):
    return Rows.apply(score)
"""


def test_a_backward_pass_that_writes_over_its_inputs_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OVER_ITS_INPUT)
    own = next(
        x for x in load(str(tmp_path / "mine.py")).implementations if x.operation.is_gradient
    )
    found = objections(own)
    assert len(found) == 2
    assert all("the backward pass writes over score; " in words for words in found)
