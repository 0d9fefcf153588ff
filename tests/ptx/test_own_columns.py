"""
The judge on the project's own kernels as a GPU would be given them: each column imported where
``--device`` names the machine, launched by its own code. One discriminating case of every kernel
and gradient in bfloat16 here, as part of the main job; the rest is ``-m thorough``.
"""

from itertools import product

import pytest

from tests.ptx.own_kernels.columns import HOW, judge_column

OPERATIONS = 5
"""With fused kernels, in each column; each of them has a gradient."""


@pytest.mark.differential
@pytest.mark.parametrize("column", HOW)
def test_compiled_kernels_are_right_in_every_column(column: str) -> None:
    told = judge_column(column, "--cases", "1")
    assert len({line["kernel"] for line in told}) == 2 * OPERATIONS
    assert {line["on"] for line in told} == {"PTX sm_90a, machine"}
    assert [line for line in told if "failed" in line or not line["launched"]] == []
    assert all(0 <= line["budget"] <= 1 for line in told) and any(line["budget"] for line in told)


@pytest.mark.thorough
@pytest.mark.parametrize(("column", "target"), list(product(HOW, ["80", "90"])))
def test_compiled_kernels_are_right_in_every_dtype(column: str, target: str) -> None:
    dtypes = "float32", "float16", "bfloat16"
    told = judge_column(column, "--target", target, "--cases", "12", "--dtypes", *dtypes)
    assert len({(line["kernel"], line["dtype"]) for line in told}) == 6 * OPERATIONS
    assert [line for line in told if "failed" in line or not line["launched"]] == []
