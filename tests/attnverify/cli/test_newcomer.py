"""
The first half hour: the files that a newcomer would write, judged by the command as it stands in
README.
"""

import re
import shutil
from pathlib import Path

import pytest

from attnverify import ROOT
from tests.support.run_attnverify import Run, verify

FILES = ROOT / "tests" / "sample_newcomers"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, *options: str) -> Run:
    shutil.copy(FILES / name, name)
    return verify("run", name, "--profile", "quick", *options)


def test_a_right_alibi_in_float32_is_green_with_a_line_to_add() -> None:
    options = ("--dtype", "fp64", "--dtype", "fp32", "-k", "values")
    done = run("alibi_right.py", *options)
    assert done.status == 0
    assert "alibi_right computes in float32 (float64); if meant so, add" in done.output
    assert '  DTYPES = ("float32", "float16", "bfloat16")' in done.output


@pytest.mark.thorough
def test_the_whole_first_run_of_a_right_alibi_is_green() -> None:
    done = run("alibi_right.py")
    assert done.status == 0
    assert "not required, and no failure of this run" in done.output


def test_tiles_that_are_not_rescaled_are_told_by_their_size() -> None:
    done = run("alibi_tiles.py", "--dtype", "fp32", "-k", "values")
    assert done.status == 1
    assert (
        "an output that is not rescaled when the maximum rises, in tiles of 32 keys" in done.output
    )
    # with one key in the second tile the maximum need not rise: both places part the cases
    assert re.search(r"alibi_attention \* values when M > 3[23] :", done.output)


def test_other_names_are_bound_and_told() -> None:
    done = run("renamed.py", "--dtype", "fp32", "-k", "values")
    assert done.status == 0
    told = "q=query, k=key, v=value, attn_mask=mask, is_causal=False"
    assert f"scaled_dot_product_attention is called with {told}" in done.output


def test_a_function_of_a_library_is_judged_by_its_name() -> None:
    Path("mine.py").write_text("from torch.nn.functional import scaled_dot_product_attention\n")
    done = verify("run", "mine.py")
    assert done.status == 2
    line = "--fn torch.nn.functional:scaled_dot_product_attention"
    assert f"judge it by {line}" in done.output


def test_a_syntax_error_is_told_in_one_line() -> None:
    Path("broken.py").write_text("\n\n\ndef softmax(score)\n    return score\n")
    done = verify("run", "broken.py")
    assert done.status == 2
    assert "broken (cannot be imported: SyntaxError: expected ':' (line 4))" in done.output


@pytest.mark.thorough
@pytest.mark.parametrize(("forgotten", "status"), [("", 0), ("# TAIL", 1)], ids=["right", "tail"])
def test_an_own_triton_kernel_is_judged_without_a_gpu(forgotten: str, status: int) -> None:
    pytest.importorskip("triton")
    text = (FILES / "triton_sdpa.py").read_text()
    lines = [line for line in text.splitlines() if not forgotten or forgotten not in line]
    Path("mine.py").write_text("\n".join(lines) + "\n")
    done = verify("run", "mine.py", "--profile", "quick", "--dtype", "fp16")
    assert done.status == status
    assert 'FEATURES = {"gradient": False}' in done.output
