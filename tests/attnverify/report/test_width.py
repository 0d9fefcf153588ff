"""Whole outputs at 80 columns: no line is longer but what is to be copied, and paths."""

import re
import shutil
from pathlib import Path

import pytest

from attnverify import ROOT
from attnverify.plugin.closing import describe_unsupported
from attnverify.report.terminal_colours import fold
from tests.support.run_attnverify import Run, load_backends_here, verify

FILES = ROOT / "tests" / "sample_newcomers"
MAY_BE_LONG = re.compile(
    r" *(attnverify |python |FEATURES |\S+ \S+ [\w ]+( when .*)? : <reason>|\S+$)"
)
"""A command or a known failure, whole on a line of its own; one word, as a path."""


@pytest.fixture(autouse=True)
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    load_backends_here(monkeypatch)


def too_long(output: str) -> list[str]:
    lines = output.splitlines()
    return [line for line in lines if len(line) > 80 and not MAY_BE_LONG.fullmatch(line)]


def run(name: str, *options: str) -> Run:
    shutil.copy(FILES / name, name)
    return verify("run", name, "--profile", "quick", *options)


def test_a_failure_and_its_replay_fit() -> None:
    failed = run("alibi_tiles.py", "-v", "--dtype", "fp32", "-k", "values or refusals")
    replay = re.search(r"attnverify (replay \w+ --backend \S+)", failed.output)
    assert failed.status == 1
    assert replay
    again = verify(*replay[1].split())
    assert again.status == 1
    assert "cause:" in failed.output
    assert too_long(failed.output + again.output) == []


def test_what_passes_and_what_is_unsupported_fit() -> None:
    done = run("alibi_right.py", "--dtype", "fp64", "--dtype", "fp32", "-k", "values")
    assert done.status == 0
    assert "1 passed, 1 unsupported" in done.output
    assert too_long(done.output) == []


def test_what_is_refused_fits() -> None:
    Path("mine.py").write_text("def softmax(strange, other):\n    return strange\n")
    done = verify("run", "mine.py")
    assert done.status == 2
    assert too_long(done.output) == []


def test_a_reason_for_a_whole_cell_is_told_where_no_declaration_says_it() -> None:
    told = {"verdict": "unsupported", "backend": "mine", "dtype": "float64"}
    reasons = ("x64 is off", "DTYPES does not name float64", "computes in float32")
    found = describe_unsupported([told | {"reason": reason} for reason in reasons])
    assert found == ["mine: unsupported: x64 is off (f64)"]


@pytest.mark.parametrize(
    "command",
    ["list", "list transformer_xl_layer", pytest.param("doctor", marks=pytest.mark.thorough)],
)
def test_what_can_be_looked_up_fits(command: str) -> None:
    done = verify(*command.split())
    assert done.output
    assert too_long(done.output) == []


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("  a long sentence here", ["  a long", "    sentence", "    here"]),
        ("  name  what it is", ["  name  what", "    it is"]),
        ("next: attnverify replay 12", ["next:", "  attnverify replay 12"]),
        ("so: FEATURES = {12}", ["so:", "  FEATURES = {12}"]),
        ("x: op * values : <reason>  (why)", ["x:", "  op * values : <reason>", "  (why)"]),
    ],
)
def test_a_line_is_folded_below_its_beginning(line: str, folded: list[str]) -> None:
    assert fold(line, 13) == folded
    assert fold(line, None) == fold(line, 80) == [line]
