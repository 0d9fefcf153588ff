"""The command line: ``attnverify run`` is the pytest line, ``attnverify list`` the catalogue."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnverify.catalogue.operation import CATALOGUE
from tests.support.run_attnverify import in_a_process, in_pytest, judged, report_in, verify
from tests.support.sample_backends import HERE

FIRST = str(HERE / "mixed_verdicts.py")
CHAPTERS = "from attnverify.differential import *\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_any_order(report: dict[str, Any]) -> list[str]:
    return sorted(json.dumps(tally, sort_keys=True) for tally in report["tallies"])


def test_verify_run_equals_the_pytest_line() -> None:
    Path("test_all.py").write_text(CHAPTERS)
    options = ("--backend", FIRST, "--profile", "quick", "--dtype", "float32")
    line = in_pytest(
        "test_all.py",
        "-m",
        "differential",
        *options,
        "--report-json",
        "line.json",
        "--failures",
        "line",
    )
    done = judged("--backend", FIRST, "--failures", "run")
    assert line.status == done.status == 1
    assert in_any_order(report_in("line.json")) == in_any_order(done.report or {})


def test_verify_list_names_every_operation_and_its_parameters() -> None:
    done = verify("list")
    assert done.status == 0
    assert {line.partition("(")[0] for line in done.output.splitlines()} == set(CATALOGUE)
    assert "alibi_attention(query, key, value, visible)" in done.output.splitlines()


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("replay",)])
def test_a_wrong_command_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as error:
        verify(*arguments)
    assert error.value.code == 2


def test_help_names_the_commands() -> None:
    done = in_a_process("--help")
    assert done.status == 0 and all(
        word in done.output for word in ("run", "replay", "list", "Exit status")
    )


def test_verify_run_says_its_options() -> None:
    done = in_a_process("run", "--help")
    assert done.status == 0 and all(
        word in done.output
        for word in ("--backend", "--known-failures", "--report-json", "--profile")
    )


def test_verify_run_needs_no_directory_of_ours() -> None:
    Path("mine.py").write_text(Path(FIRST).read_text())
    done = in_a_process(
        "run",
        "--backend",
        "mine.py",
        "--op",
        "shift_right",
        "--profile",
        "quick",
        "--dtype",
        "float32",
    )
    assert done.status == 0 and "passed" in done.output
    assert {path.name for path in Path().iterdir()} <= {
        "mine.py",
        ".attnverify",
        "__pycache__",
        ".hypothesis",
        ".benchmarks",
    }


def test_the_tests_of_the_directory_are_not_collected() -> None:
    Path("test_theirs.py").write_text("def test_theirs():\n    assert False\n")
    Path("conftest.py").write_text("raise RuntimeError('somebody else')\n")
    Path("pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    assert judged("--backend", FIRST, "--op", "shift_right").status == 0
