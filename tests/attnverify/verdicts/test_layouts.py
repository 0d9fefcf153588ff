"""The order of axes is found out, and the line that says so works when pasted."""

import re
from pathlib import Path

import pytest

from tests.attnverify.verdicts.test_found_out import judge_file

BEHIND = """
import torch
{declared}

def scaled_dot_product_attention(query, key, value):
    if not query.shape == key.shape == value.shape:
        raise NotImplementedError("one shape alone")
    q, k, v = ({exchanged} for x in (query, key, value))
    x = torch.softmax(q @ k.mT / query.shape[-1] ** 0.5, -1) @ v
    return {exchanged}{change}
"""
"""A kernel with heads behind positions, or in front of them."""


@pytest.mark.parametrize("aspect", ["values", "gradients"])
@pytest.mark.parametrize(
    ("exchanged", "declared", "line"),
    [
        ("x.transpose(1, 2)", "", 'LAYOUT = "BNHD"'),
        ("x.transpose(1, 2)", 'LAYOUT = "BHND"', 'LAYOUT = "BNHD"'),
        ("x", 'LAYOUT = "BNHD"', 'LAYOUT = "BHND"'),
    ],
)
def test_the_line_that_is_told_works_when_pasted(
    exchanged: str, declared: str, line: str, aspect: str, tmp_path: Path
) -> None:
    text = BEHIND.format(exchanged=exchanged, declared=declared, change="")
    before = judge_file(tmp_path, text, "float32", aspect)
    (finding,) = before.findings
    found = re.search("LAYOUT = .*", finding.notes[0])
    assert before.verdict == "failed" and found and found[0] == line
    other = tmp_path / "other"
    other.mkdir()
    after = judge_file(other, f"{text}\n{found[0]}\n", "float32", aspect)
    assert (after.verdict, after.cases >= 20) == ("passed", True)


@pytest.mark.parametrize("exchanged", ["x", "x.transpose(1, 2)"])
def test_a_wrong_kernel_is_told_no_order(exchanged: str, tmp_path: Path) -> None:
    text = BEHIND.format(exchanged=exchanged, declared="", change=" * 1.5")
    result = judge_file(tmp_path, text, "float32")
    assert result.verdict == "failed"
    assert not any("LAYOUT" in note for finding in result.findings for note in finding.notes)
