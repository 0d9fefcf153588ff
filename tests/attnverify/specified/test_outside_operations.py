"""
Operations from outside, judged by their specification: right kernels pass, wrong are told. A right
one is judged in one dtype in every run, of which the next has another (each dtype is that of five
operations; wrong ones are held to bounds in float32), and nightly in all of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from attnverify.backends.implementation import Implementation
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import Case, case_of
from attnverify.judge.judging import is_right, judge
from tests.attnverify.specified import told as asked
from tests.outside import specifications
from tests.outside.kernels import KERNELS

SLOW = ("gated_delta_rule",)
"""Recurrences, whose graph is long: few cases."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def implementations(operation: str, wrong: str = "") -> list[Implementation]:
    """A kernel of an operation from outside, and its gradient by autograd."""
    kernel = KERNELS[operation][0]
    own = partial(kernel, wrong=wrong) if wrong else kernel
    return asked.answered(getattr(specifications, operation), own)


def cases(operation: str, dtype: str = "float32") -> list[Case]:
    few = operation.removesuffix("_grad") in SLOW
    every = asked.cases(operation, dtype, drawn=10)
    return [case for case in every if not few or case.recipe.sizes["N"] < 9]


def in_turn() -> Iterator[Any]:
    for number, operation in enumerate(KERNELS):
        for place, dtype in enumerate(("float32", "bfloat16", "float16")):
            rare = [] if place == number % 3 else [pytest.mark.thorough]
            yield pytest.param(operation, dtype, marks=rare)


@pytest.mark.parametrize(("operation", "dtype"), [*in_turn()])
def test_a_right_kernel_and_its_gradient_keep_within_the_derived_bounds(
    operation: str, dtype: str
) -> None:
    with np.errstate(all="ignore"):
        for implementation in implementations(operation):
            verdicts = [
                judge(implementation, c) for c in cases(implementation.operation.name, dtype)
            ]
            assert any(verdict.discriminating for verdict in verdicts)


def test_a_large_call_is_bounded_whole() -> None:
    """What the letter B stands for is the user's: a mask has it too, and a mean may go over it."""
    (kernel, *_), sizes = implementations("masked_mean"), {"B": 9, "N": 2**15, "F": 2}
    recipe = replace(fixed_cases("masked_mean")[0], sizes=sizes)
    assert recipe.is_large
    judge(kernel, case_of(recipe, "float32"))


CAUSES = {
    ("rms_norm", "sum"): "as `np.sum(x * x, axis=-1, keepdims=True)`, specifications.py:",
    ("rms_norm", "eps"): "`eps` as 0.01",
    ("layer_norm", "bessel"): "the mean of n - 1",
    ("layer_norm_backward", "first term"): "`d - d.mean(axis=-1, keepdims=True)` as `d`",
    ("rotary", "interleaved"): "the two halves of H interleaved in `x` and in the output",
    ("rotary", "sign"): "`a * cos - b * sin` as `a * cos + b * sin`",
    ("rotary_by_position", "base"): "`10000.0` as `1000.0`",
    ("rotary_by_position", "half"): "`10000.0 ** (-np.arange(H) / H)` as `10000.0 ** (",
    ("rotary_by_position", "backwards"): "`np.sin(angle)` as `-np.sin(angle)`",
    ("swiglu", "swapped"): "`w_gate` and `w_up` exchanged",
    ("cross_entropy", "not smoothed"): "`smoothing` left out (0)",
    ("cross_entropy", "not ignored"): "`np.where(kept, loss[:, 0], 0.0)` as `loss[:, 0]`",
    ("shared_heads_attention", "window"): "`window` plus 1",
    ("shared_heads_attention", "heads"): "np.tile(k, H // G",
    ("gated_delta_rule", "no delta"): "`v[n] - keys[n] @ state` as `v[n]`",
    ("top_k_gating", "one more"): "`k` plus 1",
    ("int8_product", "zero point"): "`w` with 128 added",
    ("gelu_layer", "no cube"): "`z + 0.044715 * z ** 3` as `z`",
    ("masked_mean", "inverted"): "`seen` inverted",
}


UNTOLD = [
    (operation, wrong)
    for operation, (_, names) in KERNELS.items()
    for wrong in names
    if (operation, wrong) not in CAUSES
]


@pytest.mark.parametrize(("operation", "wrong"), UNTOLD)
def test_a_wrong_kernel_is_noticed(operation: str, wrong: str) -> None:
    own = implementations(operation, wrong)[0]
    assert not all(is_right(own, case) for case in cases(operation))


@pytest.mark.parametrize(("operation", "wrong"), CAUSES)
def test_the_cause_is_told_in_the_words_of_the_line(operation: str, wrong: str) -> None:
    own = implementations(operation, wrong)[0]
    assert CAUSES[operation, wrong] in asked.told(own, cases(operation))
