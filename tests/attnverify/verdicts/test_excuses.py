"""An excuse needs a witness: "computes in a narrower dtype" is said where it was seen alone."""

from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.loader import load
from attnverify.report.next_steps import lines_to_add
from attnverify.verdicts.cell import cells
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options
from tests.attnverify.verdicts.test_found_out import failures_are_not_diagnosed, judge_file

__all__ = ["failures_are_not_diagnosed"]

ONLINE = """
import torch

def scaled_dot_product_attention(query, key, value, mask=None):
    score = query @ key.mT * query.shape[-1] ** -0.5
    if mask is not None and mask.dtype == torch.bool:
        score = score.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        score = score + mask
    top, total, out = {first}, 0.0, 0.0
    for start in range(0, key.shape[-2], 64):
        part, v = score[..., start : start + 64], value[..., start : start + 64, :]
        new = torch.maximum(torch.as_tensor(top, dtype=score.dtype), part.amax(-1, keepdim=True))
        safe = new.masked_fill(torch.isneginf(new), 0)
        p, fade = torch.exp(part - safe), torch.exp(top - safe)
        total, out, top = total * fade + p.sum(-1, keepdim=True), out * fade + p @ v, new
    return out / torch.where(total == 0, 1.0, total)
"""
"""An online softmax by tiles of 64 keys; ``first`` is where its running maximum begins."""

PLAIN = """
import torch
{declared}

def scaled_dot_product_attention(query, key, value):
    q, k, v = ({cast} for x in (query, key, value))
    out = torch.softmax(q @ k.mT / query.shape[-1] ** 0.5, -1) @ v
    return out.to(query.dtype)
"""


def plain(cast: str, declared: str = "") -> str:
    return PLAIN.format(cast=cast, declared=declared)


@pytest.mark.parametrize("first", ["-5e4", "-3e2", "0.0"])
def test_a_running_maximum_that_begins_at_a_number_is_no_half_precision(
    first: str, tmp_path: Path
) -> None:
    """Rows of zeros are half-precision numbers, and of scores of 1e6 half's bound is infinite."""
    assert judge_file(tmp_path, ONLINE.format(first=first), "float32").verdict == "failed"


def test_its_twin_that_begins_at_minus_infinity_passes(tmp_path: Path) -> None:
    result = judge_file(tmp_path, ONLINE.format(first="float('-inf')"), "float32")
    assert result.verdict == "passed", result.reason


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_format_that_is_named_is_the_one_in_use(dtype: str, tmp_path: Path) -> None:
    result = judge_file(tmp_path, plain(f"x.to(torch.{dtype})"), "float32")
    assert result.verdict == "unsupported"
    assert result.reason.startswith(f"computes in {dtype}: ")


def test_a_declared_precision_is_no_excuse(tmp_path: Path) -> None:
    """What it says is required: "wide" of a float32 input is float32."""
    text = plain("x.bfloat16()", 'PRECISION = "wide"')
    assert judge_file(tmp_path, text, "float32").verdict == "failed"


@pytest.mark.parametrize(
    ("precision", "verdict"),
    [
        ('{"float64": "wide"}', "failed"),
        ('{"acc": "float64"}', "failed"),
        ('"wide"', "unsupported"),
        ('{"float32": "wide"}', "unsupported"),
    ],
)
def test_of_float64_a_precision_speaks_that_names_it(
    precision: str, verdict: str, tmp_path: Path
) -> None:
    """A preset alone says how often it rounds; which dtypes are taken, it does not."""
    text = plain("x.float()", f"PRECISION = {precision}")
    assert judge_file(tmp_path, text).verdict == verdict


def test_a_right_result_that_the_narrower_dtype_cannot_hold_refutes_it(tmp_path: Path) -> None:
    """The path of long calls alone is narrower: a fault, which no dtype that is not taken is."""
    text = plain("x.float() if key.shape[-2] > 16 else x")
    assert judge_file(tmp_path, text).verdict == "failed"


def judge_inputs(folder: Path, text: str) -> CellResult:
    file, given = folder / "mine.py", folder / "mine.npz"
    file.write_text(text)
    rng = np.random.default_rng(0)
    arrays = {x: rng.standard_normal((1, 2, 8, 16)) for x in ("query", "key", "value")}
    np.savez(given, **arrays)
    cell = next(iter(cells([load(str(file))], (), ("float32",))))
    options = Options("quick", failures=str(folder / "failures"), inputs=str(given))
    return judge_cell(cell, options)


def test_somebodys_own_inputs_are_never_excused(tmp_path: Path) -> None:
    assert judge_inputs(tmp_path, plain("x.bfloat16()")).verdict == "failed"
    assert judge_inputs(tmp_path, plain("x")).verdict == "passed"


def test_the_witness_is_printed(tmp_path: Path) -> None:
    tally = judge_file(tmp_path, plain("x.half()"), "float32").as_dict()
    told, line, seen = lines_to_add([tally], {})
    assert told == "mine computes in float16 (float32); if meant so, add"
    assert "times the bound of float32" in seen
    assert line.startswith("  DTYPES")
