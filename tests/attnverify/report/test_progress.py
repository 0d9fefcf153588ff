"""
The terminal: progress and colours for whoever sits there, nothing of either elsewhere, and what to
do next in one line.
"""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnverify.backends.functions import HAS_OTHERS
from attnverify.report.live import progress
from attnverify.report.live.progress import Counts, clock, name_of, verdict_line
from attnverify.report.next_steps import Cut, describe_outcome, next_steps
from attnverify.report.terminal_colours import colourize, use_colour
from tests.support.run_attnverify import ROOT, Run, in_a_process, judged, searched
from tests.support.sample_backends import HERE

FIRST = str(HERE / "mixed_verdicts.py")
LINE = (
    "run",
    "--backend",
    FIRST,
    "--op",
    "shift_right",
    "--require",
    "isolation",
    "--profile",
    "quick",
    "--dtype",
    "float32",
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)


def at_a_terminal(*arguments: str, between: int = 0, **environment: str) -> Run:
    """
    ``verify ...`` with a terminal for its output, and so many seconds between two lines of its
    progress: none is left out for 0.
    """
    code = (
        "import sys; from attnverify import cli; from attnverify.report.live import progress; "
        f"progress.SECONDS, progress.FIRST = {between}, 1000; "
        "sys.exit(cli.main())"
    )
    ours, theirs = pty.openpty()
    ours_alone = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")
    }  # this is no worker's run
    known = ours_alone | {"PYTHONPATH": searched(ROOT), "TERM": "xterm"} | environment
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=theirs, stderr=theirs, env=known
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += (more := os.read(ours, 65536))
        except OSError:  # so Linux says that the other end is closed
            break
        if not more:
            break
    os.close(ours)
    return Run(started.wait(), shown.decode())


def steps(output: str) -> list[str]:
    """The lines of the progress in order."""
    return re.findall(r"(\d+/\d+ cells[^\r\n\x1b]*)", output)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)
        patch.chdir(tmp_path_factory.mktemp("watched"))
        return at_a_terminal(*LINE, "-v", "--op", "rel_shift")


def test_a_terminal_is_told_where_the_run_is(watched: Run) -> None:
    seen = steps(watched.output)
    assert (
        seen
        and all("/6 cells, " in step for step in seen)
        and seen[0].endswith("rel_shift-mixed_verdicts-float32 values")
    )
    cases = [int(re.search(r"(\d+) cases", step)[1]) for step in seen]  # type: ignore[index]
    assert (
        cases == sorted(cases)
        and cases[0] == 0
        and cases[-1] > 40
        and [*dict.fromkeys(step[0] for step in seen)] == [*"012345"]
    )


def test_lines_that_come_too_soon_are_left_out() -> None:
    assert len({*steps(at_a_terminal(*LINE, between=10**6).output)}) == 1


def test_the_progress_is_wiped_away_and_replaces_the_dots(watched: Run) -> None:
    before, _, after = watched.output.rpartition("\x1b[2K")
    assert before and not steps(after) and "cells, " not in after.partition("verification")[0]
    assert (
        not re.search(r"^[.FEsx]+ *(\[ *\d+%\])?\s*$", watched.output.replace("\r", "\n"), re.M)
        and "%]" not in watched.output
    )


def test_the_table_is_in_colour_at_a_terminal(watched: Run) -> None:
    assert (
        "\x1b[32mpassed\x1b[0m" in watched.output
        and "\x1b[1;31mFAILED\x1b[0m" in watched.output
        and watched.status == 1
    )


def test_a_terminal_of_80_columns_has_no_longer_line_in_its_table(watched: Run) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", watched.output)
    table = re.search(r"^operation of implementation.*?\d+ checks\r$", text, re.DOTALL | re.M)
    assert table and max(map(len, table[0].splitlines())) <= 80


@pytest.mark.thorough
def test_two_workers_are_told_as_one_run() -> None:
    seen = steps(at_a_terminal(*LINE, "-n", "2").output)
    assert seen and all("/3 cells, " in step for step in seen)


def test_continuous_integration_sees_no_progress_and_no_color_no_colour() -> None:
    done = at_a_terminal(*LINE, CI="true", NO_COLOR="1")
    assert done.status == 0 and not steps(done.output) and "\x1b[3" not in done.output


def test_a_pipe_sees_neither_nor_dots_of_few_cells() -> None:
    done = in_a_process(*LINE)
    assert done.status == 0 and "\x1b" not in done.output and "\r" not in done.output
    assert not re.search(r"^[.FEsx]+ *(\[ *\d+%\])?\s*$", done.output, re.M)


def through_a_pipe(*arguments: str, silence: float, first: float = 1000.0) -> str:
    """What a pipe is given by a run that speaks after so many seconds without a line, and first."""
    code = (
        "import sys; from attnverify import cli; from attnverify.report.live import progress; "
        f"progress.SILENCE, progress.FIRST = {silence}, {first}; sys.exit(cli.main())"
    )
    known = os.environ | {"PYTHONPATH": searched(ROOT)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=known).stdout


@pytest.mark.parametrize("more", [(), ("-v",)])
def test_a_pipe_is_told_where_the_run_is_after_a_silence(more: tuple[str, ...]) -> None:
    seen = through_a_pipe(*LINE, *more, silence=0.05, first=0.05)
    told = re.findall(r"^\d/3 cells, \d+ cases: shift_right-mixed_verdicts-float32 .*$", seen, re.M)
    assert told and "\x1b" not in seen and "\n\n\n" not in seen


def test_the_first_silence_is_short() -> None:
    assert progress.FIRST <= 2 < 10 <= progress.SILENCE
    assert steps(through_a_pipe(*LINE, silence=1000, first=0.05))


@pytest.fixture
def counts() -> Iterator[Counts]:
    """Those of a run that hears of every case until it ends."""
    made = Counts()
    yield made
    made.pytest_sessionfinish()


@pytest.mark.parametrize("width", range(10, 120, 7))
def test_where_a_run_is_fits_and_cuts_no_name(width: int, counts: Counts) -> None:
    counts.total, counts.running = 6, {CELL: None}
    told = counts.line(width)
    whole = "0/6 cells, 0 cases: scaled_dot_product_attention-mine-float32 gradients"
    assert len(told) <= width
    assert told in (whole, "0/6 cells, 0 cases: float32 gradients", "0/6 cells, 0 cases"[:width])
    assert (told == whole) == (width >= len(whole))


def test_the_time_left_is_told_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    """ "over 0:30 left" stood for a minute, and 98 seconds were "about 11 minutes"."""
    left = iter((250.0, 94.0, 7.2, None))
    counts.total = 6
    monkeypatch.setattr(counts, "seconds_left", lambda: next(left))
    told = [counts.line(80).rpartition(", ")[2] for _ in range(4)]
    assert told == ["about 4:00 left", "about 1:30 left", "about 0:07 left", "0 cases"]
    counts.remaining = SimpleNamespace(waited=lambda: 12.3)  # type: ignore[assignment]
    monkeypatch.setattr(counts, "seconds_left", lambda: None)
    assert counts.line(80).endswith("0 cases, 12 s in this one")


def test_no_more_is_estimated_than_what_was_measured_can_say(
    monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    """Three cells of 1500 that compile first made a run of five minutes "14:54:00 left"."""
    counts.total, counts.done = 1500, 3
    monkeypatch.setattr(progress.time, "monotonic", lambda: counts.start + 107.0)
    assert counts.seconds_left() is None and "left" not in counts.line(80)
    counts.done = 300
    assert counts.seconds_left() == pytest.approx(428.0)
    counts.remaining = SimpleNamespace(seconds=lambda: 5040.0, waited=lambda: 0.0)  # type: ignore[assignment]
    assert counts.seconds_left() is None
    counts.remaining = SimpleNamespace(seconds=lambda: 504.0)  # type: ignore[assignment]
    assert counts.seconds_left() == 504.0
    counts.remaining = None


CELL = "differential.py::test_gradients[scaled_dot_product_attention-mine-float32]"


def test_fewer_words_and_a_run_that_speaks_are_told_nothing_between() -> None:
    assert not steps(through_a_pipe(*LINE, "-q", silence=0.05, first=0.05))
    assert not steps(through_a_pipe(*LINE, silence=1000))


def test_a_pipe_with_more_words_has_each_verdict_before_the_next_is_judged(tmp_path: Path) -> None:
    """The second cell waits until the line of the first was read."""
    (tmp_path / "waiting.py").write_text(WAITING)
    command = [sys.executable, "-m", "attnverify", "run", "waiting.py"]
    command += ["-v", "--profile", "quick", "--dtype", "float32"]
    known = os.environ | {"PYTHONPATH": searched(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=known) as told:
        for line in told.stdout or ():
            if line.startswith("passed        values"):
                (tmp_path / "read").touch()
    assert told.returncode == 0 and (tmp_path / "read").exists()


WAITING = """
import time
from pathlib import Path
import numpy as np


def shift_right(x):
    *rest, N, M = x.shape
    wide = np.concatenate([x, np.zeros_like(x[..., :1])], -1)
    return wide.reshape(*rest, N * (M + 1))[..., : N * M].reshape(x.shape)


def shift_right_grad(d_output, x):
    while not Path("read").exists():
        time.sleep(0.01)
    *rest, N, M = x.shape
    flat = np.concatenate([d_output.reshape(*rest, N * M), np.zeros((*rest, N), x.dtype)], -1)
    return [flat.reshape(*rest, N, M + 1)[..., :M]]
"""


@pytest.mark.parametrize(
    ("variables", "colour"),
    [
        ({"NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"TERM": "dumb"}, False),
        ({}, True),
    ],
)
def test_the_variables_are_honoured(
    variables: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert use_colour(SimpleNamespace(isatty=lambda: True)) is colour
    assert use_colour(SimpleNamespace(isatty=lambda: False)) is (variables == {"FORCE_COLOR": "1"})


def test_words_are_coloured_and_parts_of_words_are_not() -> None:
    assert (
        colourize("passed unpassed", True) == "\x1b[32mpassed\x1b[0m unpassed"
        and colourize("FAILED", False) == "FAILED"
    )


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")]
)
def test_time_is_told_as_a_clock_does(seconds: float, words: str) -> None:
    assert clock(seconds) == words


@pytest.mark.parametrize("group", ["", "@softmax-float16"])
def test_a_cell_is_named_by_its_test(group: str) -> None:
    nodeid = "a/differential.py::test_hidden_nan[softmax-mine:fast-float16]" + group
    assert name_of(nodeid) == "softmax-mine:fast-float16 hidden nan"


# What to do next


def run(**backend: Any) -> Any:
    known = {"source": "mine.py", "broken": None, "missing": None} | backend
    return SimpleNamespace(
        options=SimpleNamespace(failures=".attnverify/failures"),
        operations=(),
        backends=[SimpleNamespace(**known)],
        is_red=lambda tally: True,
    )


def test_after_a_failure_the_next_line_replays_it() -> None:
    done = judged("--backend", FIRST, "--op", "causal_mask", "--failures", "kept here")
    line = next(
        line
        for line in done.output.splitlines()
        if line.startswith("next, to see the first root cause again: ")
    )
    assert re.search(
        r": attnverify replay [0-9a-f]{12} --backend \S+mixed_verdicts.py --failures 'kept here'$",
        line,
    )
    assert (
        "next, for a page with pictures of the failures: the same line with --report out.html"
        in done.output
    )


def test_a_run_without_a_cell_has_its_report_and_its_next_line_too() -> None:
    done = judged("--backend", FIRST, "--op", "softmax", "--report", "out.html")
    assert (
        done.status == 2
        and "next, for the names of the operations, by which functions are found: attnverify list"
        in done.output
    )
    assert (
        "Verification: nothing was judged" in Path("out.html").read_text()
        and "0 cells: nothing was judged; " in done.output
    )


def test_after_a_green_run_there_is_nothing_to_do() -> None:
    assert "next" not in judged("--backend", FIRST, "--op", "shift_right").output


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (
            {"missing": "the package flash is not installed", "missing_package": "flash"},
            "next, for mine.py: install the package flash; ",
        ),
        (
            {"broken": "cannot be imported: SyntaxError"},
            "next, to see where its import fails: python mine.py",
        ),
        (
            {"broken": f"names no operation of the catalogue: {HAS_OTHERS} flash, helper"},
            "next, say which operation one of them is: attnverify run mine.py:FUNCTION=OPERATION",
        ),
        (
            {"broken": f"names no operation of the catalogue: {HAS_OTHERS} flash"},
            "next, say which operation it is: attnverify run mine.py:flash=OPERATION",
        ),
        (
            {},
            "next, for the names of the operations, by which functions are found: attnverify list",
        ),
    ],
)
def test_where_nothing_was_judged_the_next_line_says_what_helps(
    backend: dict[str, str], words: str
) -> None:
    assert next(next_steps(run(**backend), [])).startswith(words)


def test_with_more_words_each_verdict_of_a_small_run_has_its_line_as_it_comes() -> None:
    output = at_a_terminal(*LINE, "-v").output
    first = re.search(r"passed +values +float32 +shift_right of mixed_verdicts", output)
    assert first and first.start() < output.index("verification")


def test_the_line_of_a_failure_says_what_fails() -> None:
    cell = {"aspect": "values", "dtype": "float32", "implementation": "softmax", "backend": "mine"}
    failed = cell | {"verdict": "failed", "reason": "long", "findings": [{"kind": "NaN"}]}
    assert " ".join(verdict_line(failed).split()) == "failed values float32 softmax of mine: NaN"
    without = cell | {"verdict": "unsupported", "reason": "has no gradient", "findings": []}
    assert verdict_line(without).endswith("softmax of mine: has no gradient")


def test_all_dtypes_leave_room_for_the_cause_in_the_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``wrong in float64, float32, float16, bfloat16: it ...`` says less than it could."""
    cause = SimpleNamespace(required=True, brief="b", is_unanswered=False)
    monkeypatch.setattr("attnverify.report.next_steps.triage", lambda *_: [cause])
    monkeypatch.setattr("attnverify.report.next_steps.wrong_cells", lambda run, own: own[:2])
    run: Any = SimpleNamespace(is_red=lambda tally: True, required=lambda name: ("values",))
    own = ("float32", "float16", "bfloat16")
    cells = [{"dtype": dtype, "aspect": "values"} for dtype in own]
    assert describe_outcome(run, "mine", cells[:2]) == "wrong in every dtype: b"
    backend = SimpleNamespace(name="mine")
    unjudged: Any = SimpleNamespace(
        aspect="values", implementation=SimpleNamespace(backend=backend)
    )
    cut = Cut([unjudged])
    assert describe_outcome(run, "mine", cells[:2], cut) == "wrong in float32, float16: b"
    assert describe_outcome(run, "mine", cells) == "wrong in float32, float16: b"
    assert describe_outcome(run, "mine", cells[:1]) == "wrong in float32: b"
    cells[0]["aspect"] = "gradients"
    assert describe_outcome(run, "mine", cells) == "wrong in float32, float16: b"
    assert describe_outcome(run, "mine", cells[:1]) == "wrong in gradients of float32: b"
