"""
``python -m benchmarks.gpu_report``: every step as far as it goes without a GPU, and that a step
that fails, crashes or hangs is told.
"""

import importlib
import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import triton.language.standard

from attnverify import ROOT
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.ptx import sass
from attnverify.torch_impl.triton.kernels import attention, launch
from benchmarks.gpu_report import (
    external_steps,
    pytorch_steps,
    runner,
    sanitizer,
)
from benchmarks.gpu_report.__main__ import main
from benchmarks.gpu_report.context import NotRun, StepContext
from benchmarks.gpu_report.on_device import STEPS

HERE = StepContext("cpu", quick=True, seconds=100)

PASSED = ("environment", "short", "repeats", "lengths", "large", "waits")
NOT_RUN = {
    "graphs": "no graph",
    "recompilations": "torch.compile did, and passed",
    "memory": "asks the allocator of a GPU",
}
PROGRAMS = ("tests", "suite-torch_impl", "suite-cupy_impl")
WATCHED = tuple(f"sanitizer-{tool}" for tool in sanitizer.TOOLS)

pytestmark = pytest.mark.filterwarnings("ignore")


def test_every_step_has_a_limit_and_is_there() -> None:
    assert set(runner.LIMITS) == set(STEPS) == {*PASSED, *NOT_RUN, *PROGRAMS, *WATCHED}


def test_a_step_is_told_as_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = list[str]()

    def run_until(*given: Any) -> str:
        told.append(capsys.readouterr().out)
        given[-1].write_text("")
        return "ended with status 0 and no answer"

    monkeypatch.setattr(runner, "run_until", run_until)
    runner.outcome_of("short", "cpu", True, 7)
    assert [" ".join(line.split()) for line in told] == ["short begins, for at most 7 s"]


def end_of(steps: tuple[str, ...]) -> int:
    """When the last of them is done where each takes all of its time, as the pool takes them."""
    slots = [runner.LIMITS["environment"]] * runner.AT_ONCE
    for name in steps:
        slots[slots.index(min(slots))] += runner.LIMITS[name]
    return max(slots)


def test_every_step_of_a_group_has_its_time() -> None:
    grouped = [name for steps in runner.GROUPS.values() for name in steps]
    assert sorted(["environment", *grouped]) == sorted(runner.LIMITS)
    assert max(map(end_of, runner.GROUPS.values())) <= runner.BUDGET
    assert end_of(tuple(grouped)) > runner.BUDGET  # all of them together do not end


@pytest.mark.parametrize(
    ("versions", "chosen", "used"),
    [
        (("12.8.93", "13.5.37", "13.3.1"), None, "13.5.37"),
        (("12.8.93", "13.2.9"), None, None),
        ((), None, None),
        (("13.5.37",), "mine", None),
    ],
)
def test_triton_gets_an_assembler_without_the_known_error(
    versions: tuple[str, ...], chosen: str | None, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "assemblers", lambda: {name: Path(name) for name in versions})
    if chosen is None:
        monkeypatch.delenv(runner.ASSEMBLER, raising=False)
    else:
        monkeypatch.setenv(runner.ASSEMBLER, chosen)
    assert runner.choose_assembler() == ({runner.ASSEMBLER: used} if used else {})


def test_the_assembler_is_named_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    version, path = next(iter(sass.assemblers().items()))
    monkeypatch.setenv(runner.ASSEMBLER, str(path))
    assert STEPS["environment"](HERE)["versions"]["ptxas for Triton"] == version


def test_a_group_is_run_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, float] = {}

    def outcome(name: str, device: str, quick: bool, seconds: float) -> runner.Outcome:
        given[name] = seconds
        return runner.Outcome(name, "passed")

    monkeypatch.setattr(runner, "outcome_of", outcome)
    assert main(["--group", "judged", "--device", "cpu"]) == 0
    assert list(given) == ["environment", *runner.GROUPS["judged"]]
    assert given["suite-torch_impl"] == runner.LIMITS["suite-torch_impl"]


@pytest.mark.parametrize("name", PASSED)
def test_a_step_that_needs_no_gpu_passes_without_one(name: str) -> None:
    figures = STEPS[name](HERE)
    assert figures and json.dumps(figures)


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_step_that_needs_a_gpu_goes_as_far_as_it_can_and_says_why_it_was_not_run(
    name: str,
) -> None:
    with pytest.raises(NotRun, match=NOT_RUN[name]) as told:
        STEPS[name](HERE)
    assert (name != "memory") == bool(told.value.figures)


def test_what_compute_sanitizer_would_watch_passes() -> None:
    with pytest.raises(NotRun, match="no GPU; the run that it would watch passed"):
        STEPS["sanitizer-memcheck"](HERE)


def test_the_suite_runs_as_a_program() -> None:
    figures = STEPS["suite-torch_impl"](HERE)
    assert figures["shifts"].startswith("passed: 32 of 32 cells")


@pytest.mark.thorough
def test_the_whole_report_without_a_gpu(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_report",
        "--device",
        "cpu",
        "--quick",
        "--out",
        str(tmp_path),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    told = {
        step["step"]: step["verdict"]
        for step in json.loads((tmp_path / "gpu-report.json").read_text())["steps"]
    }
    assert told == {name: "passed" for name in (*PASSED, *PROGRAMS)} | {
        name: "not run" for name in (*NOT_RUN, *WATCHED)
    }, ran.stdout
    assert ran.returncode == 2


# What is wrong is told


class Sabotage:
    """A kernel of torch_impl that is spoiled."""

    def __init__(self, spoil: Callable[..., Any]) -> None:
        own = next(
            i for i in load("torch_impl").implementations if i.name == "alibi_attention_triton"
        )
        self.implementation = Implementation(
            own.backend, own.operation, own.how, lambda **given: spoil(own.function, **given)
        )

    def __call__(self, here: StepContext, **which: Any) -> list[Implementation]:
        return [self.implementation]


def a_percent_more(function: Any, **given: Any) -> Any:
    return 1.01 * function(**given)


CALLS = count()


def other_bits(function: Any, **given: Any) -> Any:
    return function(**given) * (1 + 1e-6 * next(CALLS))


def looks_at_a_number(function: Any, **given: Any) -> Any:
    return function(**given) if given["query"].sum().item() else None


def breaks_the_graph(function: Any, **given: Any) -> Any:
    print()
    return function(**given)


@pytest.mark.parametrize(
    ("step", "spoil"),
    [
        ("short", a_percent_more),
        ("lengths", a_percent_more),
        ("large", a_percent_more),
        ("graphs", a_percent_more),
        ("repeats", other_bits),
        ("waits", looks_at_a_number),
        ("recompilations", breaks_the_graph),
    ],
)
def test_a_step_notices(
    step: str, spoil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = importlib.import_module(STEPS[step].__module__)
    monkeypatch.setattr(place, "fused_kernels", Sabotage(spoil))
    monkeypatch.setattr(
        place,
        "kernels_and_dtypes",
        lambda here, **which: [(Sabotage(spoil).implementation, "float32")],
    )
    with pytest.raises(Exception, match=r"\S") as told:
        STEPS[step](HERE)
    assert not isinstance(told.value, NotRun)


def test_a_suite_that_fails_fails_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_steps, "judged", lambda *_: "exit status 1, 3 of 4 cells")
    with pytest.raises(AssertionError, match="3 of 4 cells"):
        STEPS["suite-torch_impl"](HERE)
    monkeypatch.setattr(external_steps, "judged", lambda *_: "not run: the time was up")
    with pytest.raises(NotRun, match="the time was up before"):
        STEPS["suite-torch_impl"](HERE)


def test_a_run_that_compute_sanitizer_would_refuse_fails_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = subprocess.CompletedProcess([], 86, "========= Invalid __global__ read", "")
    monkeypatch.setattr(sanitizer, "program", lambda *_, **__: refused)
    with pytest.raises(AssertionError, match="Invalid __global__ read"):
        STEPS["sanitizer-memcheck"](HERE)


def line_of(module: Any, text: str) -> str:
    """Where a module has a line, as compute-sanitizer tells it."""
    path = Path(inspect.getfile(module))
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return f"{path.name}:{number}"


REDUCED = line_of(launch, "tl.reduce(x, axis, tl.standard._sum_combine)")
IN_TRITON = line_of(triton.language.standard, "def _sum_combine")
ELSEWHERE = line_of(attention, "fade = tl.exp2(top - level)")


def racecheck(*races: tuple[str, str], counted: int | None = None) -> str:
    """What compute-sanitizer prints of races."""
    told = "".join(
        f"========= Error: Race reported between Write access at forward+0x250 in {first}\n"
        f"=========     and Read access at forward+0x320 in {second} [384 hazards]\n=========\n"
        for first, second in races
    )
    number = len(races) if counted is None else counted
    return f"{told}========= RACECHECK SUMMARY: {number} hazards displayed ({number} errors)\n"


@pytest.mark.parametrize(
    ("printed", "status", "verdict"),
    [
        (racecheck((REDUCED, REDUCED), (IN_TRITON, REDUCED)), 86, "passed"),
        (racecheck((REDUCED, REDUCED), (REDUCED, ELSEWHERE)), 86, "failed"),
        (racecheck((ELSEWHERE, ELSEWHERE)), 86, "failed"),
        (racecheck((REDUCED, REDUCED), counted=2), 86, "failed"),  # one is not told
        (racecheck(), 86, "failed"),
        (racecheck((REDUCED, REDUCED)), 1, "failed"),  # a kernel was wrong besides
    ],
)
def test_races_are_forgiven_in_reductions_alone(
    printed: str, status: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = subprocess.CompletedProcess([], status, printed, "")
    monkeypatch.setattr(sanitizer, "program", lambda *_, **__: ran)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: "compute-sanitizer")
    here = StepContext("cuda", quick=True, seconds=100)
    if verdict == "failed":
        with pytest.raises(AssertionError, match=f"exit status {status}"):
            STEPS["sanitizer-racecheck"](here)
    else:
        harmless = STEPS["sanitizer-racecheck"](here)["races in reductions"]
        assert harmless[f"forward: {REDUCED}, {REDUCED}"] == 1


def test_the_tests_that_a_device_is_asked_for_are_there() -> None:
    assert [
        name for name in external_steps.TESTS if not (external_steps.TESTED / name).exists()
    ] == []


# A process of its own for each step


def program(folder: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for Python in the process of a step."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(path))


def test_a_crash_costs_its_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo an illegal memory access; kill -SEGV $$", monkeypatch)
    told = runner.outcome_of("short", "cpu", True, 30)
    assert (
        told.verdict == "failed"
        and "status -11" in told.reason
        and "an illegal memory access" in told.reason
    )


def test_a_hang_ends_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; sleep 300", monkeypatch)
    told = runner.outcome_of("short", "cpu", True, 1)
    assert told.verdict == "failed" and "no answer within 1 s" in told.reason and told.seconds < 20
    child, until = int((tmp_path / "child").read_text()), time.monotonic() + 10
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


def test_who_ends_the_report_ends_its_steps(tmp_path: Path) -> None:
    """The step is a program that says who it is and waits."""
    lines = "\n".join(
        [
            "import sys; from benchmarks.gpu_report import runner",
            "from benchmarks.gpu_report.__main__ import main",
            "runner.sys.executable, own = sys.argv[1], runner.outcome_of",
            "runner.outcome_of = lambda name, *rest: own(name, *rest) if name == 'short' else "
            "runner.Outcome(name, 'passed')",
            "sys.exit(main(['--device', 'cpu', '--step', 'short']))",
        ]
    )
    path = tmp_path / "program"
    path.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; "
        "sleep 300\n"
    )
    path.chmod(0o755)
    whole = subprocess.Popen(
        [sys.executable, "-c", lines, str(path)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 30
    while not (tmp_path / "child").exists() and time.monotonic() < until:
        time.sleep(0.05)
    whole.terminate()
    assert whole.wait(30) == 2
    assert not alive(int((tmp_path / "child").read_text()))


def alive(process: int) -> bool:
    """Whether it runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [(("passed", "passed"), 0), (("passed", "failed", "not run"), 1), (("passed", "not run"), 2)],
)
def test_the_exit_status_is_the_worst(verdicts: tuple[str, ...], expected: int) -> None:
    assert (
        runner.status(
            [runner.Outcome(str(number), verdict) for number, verdict in enumerate(verdicts)]
        )
        == expected
    )


def test_the_report_is_written_after_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written, write = [], runner.write

    def outcome(name: str, *_: Any) -> runner.Outcome:
        return runner.Outcome(
            name,
            "failed" if name == "graphs" else "passed",
            "because",
            1.0,
            {"device": "NVIDIA Some-GPU", "cuda": True},
        )

    def watched(*given: Any) -> None:
        write(*given)
        written.append(
            [
                step["verdict"]
                for step in json.loads((tmp_path / "gpu-report.json").read_text())["steps"]
            ]
        )

    monkeypatch.setattr(runner, "write", watched)
    monkeypatch.setattr(runner, "outcome_of", outcome)
    monkeypatch.setattr(runner, "AT_ONCE", 1)
    status = main(["--step", "short", "--step", "graphs", "--out", str(tmp_path)])
    assert status == 1
    assert written == [
        ["passed", "not run", "not run"],
        ["passed", "passed", "not run"],
        ["passed", "passed", "failed"],
    ]
    told = json.loads((tmp_path / "gpu-report.json").read_text())
    assert (
        told["on"] == "cuda"
        and told["device"] == "NVIDIA Some-GPU"
        and told["commit"]
        and told["date"]
    )
    assert "3 steps: 2 passed, 1 failed" in capsys.readouterr().out


def test_a_step_whose_time_was_taken_by_others_was_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "outcome_of", lambda name, *_: runner.Outcome(name, "passed"))
    assert main(["--step", "short", "--device", "cpu", "--seconds", "1"]) == 2
    assert "run it with --step short" in capsys.readouterr().out


def test_results_of_a_gpu_lie_in_the_checkout_and_those_of_a_cpu_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    first = runner.Outcome("environment", figures={"device": "NVIDIA H100 80GB HBM3"})
    assert runner.place(None, "cpu", first) is None
    folder = runner.place(None, "cuda", first)
    assert (
        folder is not None
        and folder.parent == tmp_path / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3"
    )


MEASURED = '<properties><property name="figures" value="{&quot;calls&quot;: 3}"/></properties>'


@pytest.mark.parametrize(
    ("written", "verdict", "reason", "figures"),
    [
        (MEASURED, "passed", "", {"calls": 3}),
        (
            '<failure message="AssertionError: 2x of it">    assert\n/here/context.py:12: '
            "AssertionError</failure>",
            "failed",
            "AssertionError: 2x of it (context.py:12)",
            {},
        ),
        ('<error message="collection failure"/>', "failed", "collection", {}),
        (f'{MEASURED}<skipped message="no graph"/>', "not run", "no graph", {"calls": 3}),
    ],
)
def test_what_pytest_writes_of_a_step_is_its_outcome(
    written: str, verdict: str, reason: str, figures: dict[str, int], tmp_path: Path
) -> None:
    answer = tmp_path / "answer.xml"
    assert runner.read_outcome("short", answer, "cuda") is None
    for tests, found in ((f"<testcase>{written}</testcase>", verdict), ("", None)):
        answer.write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>")
        told = runner.read_outcome("short", answer, "cuda")
        assert (told and told.verdict) == found
        if told:
            assert reason in told.reason and told.figures == figures


def test_a_step_is_a_process_that_runs_its_test() -> None:
    told = runner.outcome_of("environment", "cpu", True, 60)
    assert (told.verdict, told.reason) == ("passed", "on the CPU, at small sizes")
    assert told.figures["versions"] and not told.figures["cuda"]
    told = runner.outcome_of("memory", "cpu", True, 60)
    assert told.verdict == "not run" and NOT_RUN["memory"] in told.reason


def test_what_triton_has_compiled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on a CPU; on a GPU two variants of one kernel, though two modules know it."""
    attention = importlib.import_module("attnverify.torch_impl.triton.kernels.attention")
    importlib.import_module("attnverify.torch_impl.triton.operators")
    monkeypatch.setattr(attention.forward, "device_caches", {})
    none = sum(map(len, pytorch_steps.compiled()))
    monkeypatch.setattr(
        attention.forward, "device_caches", {0: ({"one": None, "two": None}, {}, None, None, None)}
    )
    assert sum(map(len, pytorch_steps.compiled())) == none + 2
