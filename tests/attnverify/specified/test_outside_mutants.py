"""Sixty wrong kernels from outside: what the record says of them, and three of them again."""

import json
from random import Random
from typing import Any

import pytest

from tests.outside import mutants
from tests.outside.mutants import SLIPS, judge_slip, tell
from tests.support.run_attnverify import ROOT

SLOW = ("gated_delta_rule", "group_norm", "linear_attention", "shared_heads_attention")
"""Their slips take up to half a minute each: the record has them."""

KINDS = {
    (mutants.rotary_by_position, "base 1000"): "a number of a line, of many local minima",
    (mutants.swiglu, "quick"): "a factor of 1 that no line spells",
    (mutants.swiglu, "tail lost"): "whole tiles, when an axis of another letter is longer",
    (mutants.swiglu, "gelu"): "another activation",
    (mutants.layer_norm_backward, "sign"): "a sign in the middle of a long line",
    (mutants.rotary, "next position"): "two tables read at another place",
    (mutants.int8_product, "weights in half"): "a step stored in half precision",
    (mutants.cross_entropy, "no maximum"): "a maximum that is added again",
}
"""Kinds of slips that were vague when the table was first run."""


def recorded() -> dict[str, Any]:
    path = ROOT / "docs/data/outside_mutants.json"
    if not path.exists():
        pytest.skip("a wheel has no book")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _judged(kernel: Any, slip: str) -> dict[str, Any]:
    return judge_slip(kernel, slip, SLIPS[kernel][slip])


def test_the_record_is_of_these_kernels_and_says_what_was_found() -> None:
    found = recorded()
    told = {(row["kernel"], row["slip"]): row["found"] for row in found["told"]}
    assert [*told] == [(kernel.__name__, slip) for kernel in SLIPS for slip in SLIPS[kernel]]
    for what in ("alive", "right", "vague", "otherwise"):
        assert found[what] == [*told.values()].count(what)
    assert found["alive"] == 0
    assert found["accused"] == []


def test_a_drawn_three_are_told_as_recorded() -> None:
    found = recorded()
    quick = [row for row in found["told"] if row["kernel"] not in SLOW]
    kernels = {kernel.__name__: kernel for kernel in SLIPS}
    for row in Random(found["commit"]).sample(quick, 3):
        assert _judged(kernels[row["kernel"]], row["slip"]) == row


@pytest.mark.parametrize(("kernel", "slip"), KINDS)
def test_a_kind_that_was_vague_is_told(kernel: Any, slip: str) -> None:
    assert _judged(kernel, slip)["found"] == "right", KINDS[kernel, slip]


@pytest.mark.parametrize("kernel", [k for k in SLIPS if k.__name__ not in SLOW])
def test_a_right_kernel_is_not_accused(kernel: Any) -> None:
    assert not tell(kernel).killed
