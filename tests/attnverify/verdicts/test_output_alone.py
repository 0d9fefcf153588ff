"""A function that returns its output without its lse, or its weights, and says nothing of it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import attnverify as av
from attnverify.backends.loader import load, reload
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge
from attnverify.verdicts.found_out import find_alone, loaded
from tests.support.run_attnverify import load_backends_here, verify

GROUPED = """
import torch
{declared}

def grouped_attention(query, key, value, attn_mask=None, scale=None):
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, scale=scale, enable_gqa=True
    )
    return {returned}
"""
PLAIN = """
import numpy as np

def grouped_attention(q, k, v):
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return {factor} * (p / p.sum(-1, keepdims=True)) @ v
"""


def write(folder: Path, text: str) -> str:
    file = folder / "mine.py"
    file.write_text(text)
    return str(file)


def grouped(folder: Path, declared: str = "", returned: str = "out") -> str:
    return write(folder, GROUPED.format(declared=declared, returned=returned))


@pytest.mark.parametrize("returned", ["out", "(out, None)"])
@pytest.mark.parametrize("number", [0, 1], ids=["values", "gradients"])
def test_an_output_alone_is_judged_without_a_word_in_the_file(
    number: int, returned: str, tmp_path: Path
) -> None:
    own = loaded(grouped(tmp_path, returned=returned)).implementations[number]
    assert own.is_alone
    cases = [case_of(recipe, "float32") for recipe in fixed_cases(own.operation.name)[:3]]
    assert all(judge(own, case).judged for case in cases)
    copy = reload(own)
    assert copy is not None and judge(copy, cases[0]).judged


def test_a_function_that_wants_more_than_a_plain_call_is_asked_by_what_it_supports(
    tmp_path: Path,
) -> None:
    text = PLAIN.format(factor=1).replace("q, k, v):", "q, k, v, sink=None):\n    wanted(sink)")
    wanted = """
def wanted(sink):
    if sink is None:
        raise NotImplementedError("a sink is wanted")
"""
    assert loaded(write(tmp_path, text + wanted)).implementations[0].is_alone


@pytest.mark.parametrize(
    ("declared", "returned"),
    [
        ('FEATURES = {"lse": True}', "out"),
        ("", "(out, out.sum(-1) if query.shape[-2] > 5 else None)"),
        ("", "[out]"),
    ],
    ids=["promised", "now and then", "in a list"],
)
def test_an_lse_that_is_promised_or_returned_now_and_then_is_missed(
    declared: str, returned: str, tmp_path: Path
) -> None:
    own = loaded(grouped(tmp_path, declared, returned)).implementations[0]
    cases = [case_of(recipe, "float32") for recipe in fixed_cases("grouped_attention")[:5]]
    with pytest.raises(Disagreement):
        for case in cases:
            judge(own, case)


def test_an_lse_that_is_returned_is_judged(tmp_path: Path) -> None:
    backend = load(grouped(tmp_path, returned="out, out.sum(-1)"))
    assert find_alone(backend) == {"grouped_attention ": False}


def test_that_is_asked_of_what_takes_whole_tiles_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from attnverify.numpy_ref import grouped_attention as own\n"
        "def grouped_attention(query, key, value):\n"
        "    assert query.shape[2] % 16 == 0 and key.shape[2] % 16 == 0\n"
        "    return own(query, key, value)[0]\n"
    )
    assert [*find_alone(load(str(tmp_path / "mine.py"))).values()] == [True]


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize(("factor", "status"), [("1", 0), ("1.01", 1)])
def test_the_verdict_says_that_no_lse_was_judged(
    factor: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load_backends_here(monkeypatch)
    write(tmp_path, PLAIN.format(factor=f"np.float32({factor})"))
    done = verify("run", "mine.py", "--profile", "quick", "--dtype", "float32", "-k", "values")
    told = " ".join(done.output.split())
    assert done.status == status
    assert "mine: no lse was judged of grouped_attention: it returns none" in told


@pytest.mark.usefixtures("causes_are_not_sought")
@pytest.mark.parametrize(("factor", "right"), [("1", True), ("1.01", False)])
def test_so_does_the_report_of_a_function(factor: str, right: bool, tmp_path: Path) -> None:
    made = ModuleType("made_for_this_test")
    sys.modules[made.__name__] = made
    exec(PLAIN.format(factor=f"np.float32({factor})"), vars(made))
    asked = {"dtype": "float32", "profile": "quick", "failures": str(tmp_path), "arrays": "numpy"}
    if right:
        report = av.check(made.grouped_attention, "grouped_attention", **asked)
    else:
        with pytest.raises(av.CheckFailed, match="differ") as failed:
            av.check(made.grouped_attention, "grouped_attention", **asked)
        report = failed.value.report
    values = next(result for result in report.results if result.aspect == "values")
    assert values.unseen["lse"] == "it returns none"


DYING = """
import os
from attnverify.numpy_ref import shift_right as own

def shift_right(x):
    return own(x)

def grouped_attention(query, key, value):
    os._exit(7)
"""


def test_a_function_that_dies_of_being_asked_costs_its_own_verdict_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole file was broken: "cannot be imported"."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, DYING)
    done = verify("run", "mine.py", "--profile", "quick", "--dtype", "float32", "-k", "values")
    assert done.status == 1 and "exited with status 7" in done.output
    assert "shift_right of mine, f32: values passed" in done.output
