"""A run that is cut by ``--minutes`` says so, and one that was broken off goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attnverify import cli
from attnverify.judge.invoke import announce
from attnverify.plugin.state import State
from attnverify.report.html.run_page import describe_outcome
from attnverify.session import Verification
from attnverify.verdicts.journal import Journal, fingerprint
from attnverify.verdicts.search import Search
from tests.support.run_attnverify import ROOT, judged, load_backends_here, searched, verify

RIGHT = """
import numpy as np

def shift_right(x):
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
    flat = padded.reshape(*x.shape[:-2], -1)[..., : -x.shape[-2]]
    return flat.reshape(x.shape).copy()
"""
LINE = ("mine.py", "--require", "answer")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load_backends_here(monkeypatch)
    Path("mine.py").write_text(RIGHT)


@pytest.fixture
def one_cell_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        State, "is_over", lambda state, minutes: minutes is not None and len(state.tallies) > 0
    )


@pytest.fixture
def judged_now(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The aspects that are judged and not taken from a run before."""
    found: list[str] = []
    judge = Verification._judge_now

    def judge_now(run: Verification, cell: Any) -> Any:
        found.append(cell.aspect)
        return judge(run, cell)

    monkeypatch.setattr(Verification, "_judge_now", judge_now)
    return found


@pytest.mark.usefixtures("one_cell_is_in_time")
def test_a_green_run_that_was_cut_says_what_it_left_out() -> None:
    done = judged(*LINE, "--minutes", "5")
    assert done.status == 0 and list(done.verdicts().values()) == ["passed"]
    assert "cut by --minutes 5: 2 of 3 cells were not judged, and nothing is known" in done.output
    assert (done.report or {})["left_out"][0] == "refusals of shift_right of mine in float32"
    assert describe_outcome(done.report or {}, []).endswith("no failure in 1 cells, 2 not judged")
    assert done.output.splitlines()[-1].startswith("mine.py: right in float32 (values: ")


HALF = ("mine.py", "--dtype", "float32,float16", "--profile", "quick")


@pytest.mark.usefixtures("one_cell_is_in_time")
@pytest.mark.parametrize("more", [(), ("-v",), ("-q",)])
def test_the_last_line_of_a_run_that_was_cut_promises_no_more_than_was_judged(
    more: tuple[str, ...],
) -> None:
    """It was "right in float32", status 0, whatever had not been judged."""
    done = verify("run", *HALF, "--minutes", "5", *more)
    last = done.output.splitlines()[-1]
    assert last.startswith("mine.py: not finished: right so far in float32 (values: ")
    assert last.endswith("; not judged: values in float16") and done.status == 2
    assert not re.search("^s+$", done.output, re.M)


@pytest.mark.usefixtures("one_cell_is_in_time")
def test_a_wrong_kernel_is_wrong_though_the_run_was_cut() -> None:
    Path("mine.py").write_text(RIGHT.replace("[..., : -x", "[..., 1 : 1 - x"))
    done = verify("run", *HALF, "--minutes", "5")
    last = done.output.splitlines()[-1]
    assert last.startswith("mine.py: wrong in float32: ") and done.status == 1
    assert last.endswith("; not judged: values in float16")


def test_what_stops_behind_the_first_failure_says_what_it_left() -> None:
    Path("mine.py").write_text(RIGHT.replace("[..., : -x", "[..., 1 : 1 - x"))
    done = verify("run", *HALF, "-x")
    assert "not finished: 5 of 6 cells were not judged" in done.output and done.status == 1
    assert done.output.splitlines()[-1].endswith("; not judged: values in float16")


def test_a_run_with_no_time_at_all_is_not_green() -> None:
    done = judged(*LINE, "--minutes", "0.0000001")
    assert done.status == 2 and (done.report or {})["tallies"] == []
    assert "cut by --minutes" in done.output and "attnverify list" not in done.output


@pytest.mark.usefixtures("one_cell_is_in_time")
def test_answers_in_the_dtypes_of_kernels_come_first() -> None:
    done = judged(*LINE, "--minutes", "5", "--dtype", "float64", "--dtype", "float16")
    assert [tally["dtype"] for tally in (done.report or {})["tallies"]] == ["float32"]


@pytest.mark.usefixtures("one_cell_is_in_time")
def test_a_run_that_was_cut_goes_on_and_ends_as_if_it_had_not(judged_now: list[str]) -> None:
    whole = judged(*LINE)
    judged(*LINE, "--minutes", "5")
    judged_now.clear()
    done = judged(*LINE, "--resume")
    assert judged_now == ["refusals", "side effects"]
    assert "resumed: 1 cell judged before" in done.output
    assert done.report == whole.report and done.status == whole.status == 0


def test_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Verification._judge_now

    def interrupted(run: Verification, cell: Any) -> Any:
        if cell.aspect != "values":
            raise KeyboardInterrupt
        return judge(run, cell)

    monkeypatch.setattr(Verification, "_judge_now", interrupted)
    done = judged(*LINE)
    assert done.status == 2 and "interrupted: 2 of 3 cells were not judged" in done.output
    assert (done.report or {})["left_out"][1] == "side effects of shift_right of mine in float32"
    assert "to go on where it was broken off: the same line with --resume" in done.output
    monkeypatch.setattr(Verification, "_judge_now", judge)
    assert "resumed: 1 cell judged before" in judged(*LINE, "--resume").output


def test_a_run_that_is_told_to_end_tells_the_cause_of_what_is_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("mine.py").write_text(RIGHT.replace("[..., : -x", "[..., 1 : 1 - x"))
    judge = Verification._judge_now

    def ended(run: Verification, cell: Any) -> Any:
        if cell.aspect != "values":
            os.kill(os.getpid(), signal.SIGTERM)
        return judge(run, cell)

    monkeypatch.setattr(Verification, "_judge_now", ended)
    done = judged(*LINE)
    assert done.status == 2 and "interrupted: 2 of 3 cells were not judged" in done.output
    assert "mine.py: wrong in float32: " in done.output and "attnverify replay " in done.output
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_that_is_interrupted_at_once_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(run: Verification, cell: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Verification, "_judge_now", interrupted)
    assert "interrupted before any cell had a verdict" in judged(*LINE).output


def test_what_was_under_way_is_told_and_no_more_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It said 0 cases after 116, a path of ours, and --resume was for nothing."""

    def interrupted(run: Verification, cell: Any) -> Any:
        for _ in range(116):
            announce.get()(cell.implementation, cell.dtype, None, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(Verification, "_judge_now", interrupted)
    told = verify("run", "mine.py", "--dtype", "float32").output.splitlines()[-3:]
    assert told == [
        "interrupted before any cell had a verdict, 116 cases into "
        "shift_right-mine-float32 values: nothing to go on with",
        "next, for a verdict sooner: --profile quick",
        "mine.py: not finished: no verdict yet; not judged: values in float32",
    ]
    quick = verify("run", "mine.py", "--profile", "quick").output
    assert "KeyboardInterrupt" not in quick and "--profile" not in quick and "0 cases" not in quick


def test_what_was_found_in_the_cell_under_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was lost: of three failing cases nothing was said, and nothing could be replayed."""
    Path("mine.py").write_text(RIGHT.replace("[..., : -x", "[..., 1 : 1 - x"))
    tell = Search.tell_failure

    def interrupted(search: Search, case: Any) -> None:
        tell(search, case)
        if sum(map(len, search.failing.values())) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Search, "tell_failure", interrupted)
    done = verify("run", *HALF, "--report-json", "out.json", "--junitxml", "out.xml")
    found = re.search(
        r"3 of \d+ cases fail \(values of shift_right in \w+; first: [^)]*\)", done.output
    )
    assert found and done.status == 2
    assert f"found in the cell under way, and not explained yet: {found[0]}" in done.output
    last = done.output.splitlines()[-1]
    assert last.startswith(f"mine.py: not finished: {found[0]}, not explained yet; not judged: ")
    assert json.loads(Path("out.json").read_text())["found_so_far"] == found[0]
    assert Path("out.xml").read_text().count("the run was broken off</skipped>") == 6
    replay = re.search("next, to see it: attnverify (.*)", done.output)
    monkeypatch.setattr(Search, "tell_failure", tell)
    assert replay and verify(*replay[1].split()).status == 1


def test_what_was_found_comes_out_of_a_process_of_its_own(tmp_path: Path) -> None:
    """The thirteenth call of the wrong kernel below never ends."""
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, "-m", "attnverify", "run", "stuck.py", "--profile", "quick"]
    known = os.environ | {"PYTHONPATH": searched(ROOT), "COLUMNS": "400"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=known, cwd=tmp_path
    ) as run:
        while not (tmp_path / "stuck").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        run.terminate()
        assert run.stdout is not None
        told = run.stdout.read().splitlines()
    assert run.returncode == 2
    assert "not finished: 12 of 12 cases fail (values of shift_right in " in told[-1]


STUCK = """
import time
from pathlib import Path
import numpy as np

calls = []

def shift_right(x):
    calls.append(1)
    if len(calls) > 12:
        Path("stuck").touch()
        time.sleep(1000)
    return x + 1
"""


def test_a_report_that_cannot_be_written_costs_no_verdict() -> None:
    Path("report.html").mkdir()
    done = judged(*LINE, "--report", "report.html")
    assert "--report: not written: Is a directory: report.html" in done.output
    assert done.status == 0 and len(done.verdicts()) == 3


@pytest.mark.parametrize("change", ["the file", "its neighbour", "the seed", "nothing"])
@pytest.mark.usefixtures("one_cell_is_in_time")
def test_what_has_changed_is_judged_anew(change: str, judged_now: list[str]) -> None:
    judged(*LINE, "--minutes", "5")
    if change in ("the file", "its neighbour"):
        with Path("mine.py" if change == "the file" else "helper.py").open("a") as file:
            file.write("# changed\n")
    judged_now.clear()
    done = judged(*LINE, "--resume", "--seed", "1" if change == "the seed" else "0")
    assert ("values" in judged_now) == (change != "nothing")
    assert ("nothing to resume" in done.output) == (change != "nothing")


def test_a_run_that_ended_leaves_nothing_to_resume(judged_now: list[str]) -> None:
    judged(*LINE)
    judged_now.clear()
    assert "nothing to resume" in judged(*LINE, "--resume").output
    assert "values" in judged_now


def test_half_a_line_is_no_result(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state" / "resume" / "x.jsonl")
    journal.add("a cell", {"verdict": "passed"})
    with journal.path.open("a") as file:
        file.write(json.dumps(["another", {}])[:9])
    journal.read()
    assert journal.kept == {"a cell": {"verdict": "passed"}}


def test_a_module_s_code_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("kernels_of_mine").mkdir()
    Path("kernels_of_mine/__init__.py").write_text("")
    monkeypatch.syspath_prepend(".")
    before = fingerprint(["kernels_of_mine"])
    assert before == fingerprint(["kernels_of_mine"]) != fingerprint(["kernels_of_mine"], "seed 1")
    Path("kernels_of_mine/softmax.cu").write_text("__global__")
    assert fingerprint(["kernels_of_mine"]) != before


def test_a_folder_that_vanishes_is_no_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with twenty lines of a traceback, to be reported to us."""

    def vanish(_: list[str]) -> int:
        (tmp_path / "gone").rmdir()
        raise FileNotFoundError("gone")

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(cli, "run_command", vanish)
    assert cli.main(["run", "mine.py"]) == 2
    assert capsys.readouterr().err == "attnverify: the folder in which it was started is gone\n"
