"""The order of axes is found out, and the line that says so works when pasted."""

import re
from pathlib import Path

import pytest

from tests.attnverify.verdicts.test_found_out import judge_file
from tests.support.nightly import covering

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


@pytest.mark.parametrize(
    ("row", "aspect"),
    covering(
        [
            ("x.transpose(1, 2)", "", 'LAYOUT = "BNHD"'),
            ("x.transpose(1, 2)", 'LAYOUT = "BHND"', 'LAYOUT = "BNHD"'),
            ("x", 'LAYOUT = "BNHD"', 'LAYOUT = "BHND"'),
        ],
        ["values", "gradients"],
    ),
)
def test_the_line_that_is_told_works_when_pasted(
    row: tuple[str, str, str], aspect: str, tmp_path: Path
) -> None:
    exchanged, declared, line = row
    text = BEHIND.format(exchanged=exchanged, declared=declared, change="")
    before = judge_file(tmp_path, text, "float32", aspect)
    (finding,) = before.findings
    found = re.search("LAYOUT = .*", finding.notes[0])
    assert before.verdict == "failed" and found and found[0] == line
    other = tmp_path / "other"
    other.mkdir()
    after = judge_file(other, f"{text}\n{found[0]}\n", "float32", aspect)
    assert (after.verdict, after.cases >= 20) == ("passed", True)


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize("exchanged", ["x", "x.transpose(1, 2)"])
def test_a_wrong_kernel_is_told_no_order(exchanged: str, tmp_path: Path) -> None:
    text = BEHIND.format(exchanged=exchanged, declared="", change=" * 1.5")
    result = judge_file(tmp_path, text, "float32")
    assert result.verdict == "failed"
    assert not any("LAYOUT" in note for finding in result.findings for note in finding.notes)


FEWER = """
import torch

def scaled_dot_product_attention(q, k, v):
    {sizes} = q.shape
    return torch.softmax(q @ k.mT / D ** 0.5, -1) @ v{change}
"""
"""A kernel without an axis of heads, or of one matrix."""


@pytest.mark.parametrize(
    ("row", "aspect"), covering([("B, N, D", "BND"), ("N, D", "ND")], ["values", "gradients"])
)
def test_what_has_fewer_axes_is_judged_by_the_line_that_is_told(
    row: tuple[str, str], aspect: str, tmp_path: Path
) -> None:
    sizes, line = row
    text = FEWER.format(sizes=sizes, change="")
    before = judge_file(tmp_path, text, "float32", aspect)
    (finding,) = before.findings
    found = re.search("LAYOUT = .*", finding.notes[0])
    assert before.verdict == "failed" and found and found[0] == f'LAYOUT = "{line}"'
    other = tmp_path / "other"
    other.mkdir()
    after = judge_file(other, f"{text}\n{found[0]}\n", "float32", aspect)
    assert (after.verdict, after.cases >= 20) == ("passed", True)


@pytest.mark.parametrize("sizes", ["B, N, D", "N, D"])
def test_a_wrong_kernel_of_fewer_axes_is_wrong(sizes: str, tmp_path: Path) -> None:
    text = FEWER.format(sizes=sizes, change=" * 1.5")
    line = "BND" if "B" in sizes else "ND"
    result = judge_file(tmp_path, f'{text}\nLAYOUT = "{line}"\n', "float32")
    (finding,) = result.findings
    assert result.verdict == "failed"
    assert finding.causes == {"every output is off by a factor"}


ROWS = """
import torch

def softmax(x):
    rows, columns = x.shape
    e = torch.exp(x - x.max(-1, keepdim=True).values.clamp_min(-1e30))
    total = e.sum(-1, keepdim=True)
    return e / torch.where(total == 0, 1, total)
"""


def test_a_softmax_of_rows_alone_is_found_out(tmp_path: Path) -> None:
    (finding,) = judge_file(tmp_path, ROWS, "float32").findings
    assert finding.notes[0].endswith('LAYOUT = "ND"')
    other = tmp_path / "other"
    other.mkdir()
    after = judge_file(other, f'{ROWS}\nLAYOUT = "ND"\n', "float32")
    assert after.verdict == "passed"


def test_what_computes_in_float32_is_told_its_layout_in_float64_too(tmp_path: Path) -> None:
    """It is right in float32 alone: in float64 every call raised, and that was a mistake apart."""
    text = FEWER.format(sizes="B, N, D", change="").replace("q @", "q.float() @")
    text = text.replace("k.mT", "k.mT.float()").replace("@ v", "@ v.float()")
    (finding,) = judge_file(tmp_path, text, "float64").findings
    assert 'LAYOUT = "BND"' in finding.notes[0]


TWO_LACKING = """
import torch

def scaled_dot_product_attention(query, key, value):
    if query.shape[-1] != value.shape[-1]:
        raise ValueError("one width")
    if query.shape[-2] != key.shape[-2]:
        raise TypeError("one length")
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value
"""


def test_one_line_has_all_the_features_that_a_file_lacks(tmp_path: Path) -> None:
    findings = judge_file(tmp_path, TWO_LACKING, "float32").findings
    told = {note for one in findings for note in one.notes if "not supported" in note}
    (line,) = (note.partition(": ")[2] for note in told)
    assert '"E != D": False' in line and '"N != M": False' in line
    assert judge_file(tmp_path, f"{TWO_LACKING}\n{line}\n", "float32").verdict == "passed"
