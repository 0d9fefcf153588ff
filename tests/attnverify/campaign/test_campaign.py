"""
Campaigns: units spread over processes, of which one is killed; what comes back is all there, once.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from attnverify.campaign import engine as command
from attnverify.campaign.engine import Campaign, dask_client, finish, prepare, schedule
from attnverify.campaign.merging import CellTotal, are_alike
from attnverify.campaign.work_units import (
    Outcome,
    Place,
    WorkUnit,
    generate_work_units,
    place,
    run_work_unit,
    without_verdict,
)
from attnverify.cli import judging
from attnverify.device_assignment import assign_device, devices
from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.failures.finding import UNEXPECTED_PASS, Finding
from attnverify.failures.record import FailureRecord, find_record
from attnverify.inputs.recipe import Recipe
from attnverify.isolation.worker_process import Limits
from attnverify.session import Verification
from attnverify.verdicts.tally import CellResult
from tests.support.run_attnverify import ROOT, Run, verify
from tests.support.sample_backends import HERE

FIRST, STACKED, BENT = (
    str(HERE / f"{name}.py") for name in ("mixed_verdicts", "dependent_faults", "lossy_adapter")
)
ENGINE = pytest.mark.filterwarnings("ignore")  # the engine's own, in its threads
LIMITS = Limits()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def options(*arguments: str) -> Namespace:
    """What the command line makes of its options."""
    line = ["--seed", "0", "--dtype", "float32", *arguments]
    return Namespace(**judging.campaign.make_context("campaign", line).params)


def planned(*arguments: str) -> tuple[Verification, list[WorkUnit]]:
    """
    The verification of a command line, and the first units of each of its cells: quick, default.
    """
    run, _ = prepare(options(*arguments))
    cells = run.cells(None)
    known = {place(cell): run.known(cell) for cell in cells}
    return run, list(
        islice(
            generate_work_units(cells, known, run.options.failures, run.options.seed),
            2 * len(cells),
        )
    )


def state_of(run: Verification, todo: list[WorkUnit], seconds: float = 60.0) -> Campaign:
    return Campaign(
        run,
        {place(cell): CellTotal(cell.result()) for cell in run.cells(None)},
        iter(todo),
        time.monotonic() + seconds,
    )


def here(unit: WorkUnit, isolate: str = "none") -> Outcome:
    return run_work_unit(unit, LIMITS, isolate, "here")


def counts(state: Campaign) -> dict[Place, tuple[Any, ...]]:
    """
    What a cell came to: verdict, units, numbers, kinds of findings; the order in which units came
    back is no part of it.
    """
    found = {}
    for at, sum_ in state.sums.items():
        tally = sum_.decided(())
        numbers = [
            getattr(tally, name)
            for name in ("cases", "strong", "checks", "unsupported", "outside", "budget")
        ]
        found[at] = (
            tally.verdict,
            sum_.units,
            *numbers,
            sorted({finding.kind for finding in sum_.findings}),
        )
    return found


# Units


def test_every_cell_comes_first_with_a_few_cases() -> None:
    run, first = planned("--backend", "numpy_ref", "--op", "softmax", "--op", "shift_right")
    quick, default = first[: len(first) // 2], first[len(first) // 2 :]
    assert (
        [unit.cell for unit in quick]
        == [unit.cell for unit in default]
        == [place(cell) for cell in run.cells(None)]
    )
    assert {unit.profile for unit in quick} == {"quick"} and {unit.profile for unit in default} == {
        "default"
    }


def test_then_come_the_checks_of_the_thorough_profile_and_blocks_without_end() -> None:
    run, first = planned("--backend", "numpy_ref", "--op", "softmax")
    cells = run.cells(None)
    more = list(
        islice(
            generate_work_units(cells, {place(cell): () for cell in cells}, "", 0),
            len(first),
            len(first) + 40,
        )
    )
    checks = [unit.check for unit in more if unit.check]
    assert "relation: a constant per row" in checks
    assert more[0].profile == "thorough"
    blocks = [unit for unit in more if not unit.check]
    assert {unit.profile for unit in blocks} == {"default"} and len(
        {unit.name for unit in blocks}
    ) == len(blocks)


@pytest.mark.parametrize("isolate", ["none", "paths"])
def test_a_unit_brings_tally_and_records_along_and_leaves_nothing_behind(isolate: str) -> None:
    _, todo = planned("--backend", FIRST, "--op", "causal_mask", "--isolate", isolate)
    outcome = here(todo[0], isolate)
    records = [finding.record for finding in outcome.result.findings]
    assert records and outcome.result.verdict == "passed"
    assert all(record and record.operation == "causal_mask" for record in records)
    assert {record.program for record in records if record} == outcome.scripts.keys()
    assert all(outcome.scripts.values())
    assert not Path(".attnverify").exists()


def test_a_check_is_a_unit_of_its_own() -> None:
    _, todo = planned("--backend", str(HERE / "one_fault_each.py"), "--op", "alibi_attention")
    unit = next(
        unit
        for unit in todo
        if unit.implementation == "alibi_attention_mixes_the_batch" and unit.aspect == "values"
    )
    right, mixed = (
        here(
            replace(
                unit,
                implementation=f"alibi_attention_{how}",
                profile="quick",
                check="relation: a batch element alone",
            )
        )
        for how in ("right", "mixes_the_batch")
    )
    assert (right.result.checks, right.result.findings) == (1, [])
    (found,) = mixed.result.findings
    assert found.kind == "relation: a batch element alone"
    assert found.record and found.record.check and found.record.check["name"] == found.kind
    assert f"  replay: attnverify replay {found.record.hash}" in str(found)


def test_a_backend_that_is_not_there_is_a_failure_of_the_unit() -> None:
    _, todo = planned("--backend", FIRST, "--op", "causal_mask")
    outcome = here(replace(todo[0], source="nowhere.py"))
    (found,) = outcome.result.findings
    assert found.kind == "cannot be judged on a worker" and "no file nowhere.py" in found.message
    assert outcome.result.operation == "causal_mask"


# What comes of many


def empty(operation: str = "softmax", **numbers: Any) -> CellResult:
    return CellResult(
        operation=operation,
        implementation=operation,
        backend="mine",
        how="",
        dtype="float32",
        aspect="values",
        **numbers,
    )


def outcome(unit: WorkUnit, *findings: tuple[str, str, int], **numbers: Any) -> Outcome:
    """
    An outcome made by hand: kind, message and the number of keys of the recipe, for each finding.
    """
    found, scripts = [], {}
    for kind, message, M in findings:
        recipe = json.loads(
            Recipe("softmax", {"N": 1, "M": M}, {"family": "normal", "seed": M}).text
        )
        record = FailureRecord("softmax", "float32", "values", recipe, "softmax", "mine")
        scripts[record.program] = "print()"
        found.append(Finding(kind, message=message, condition=(f"M > {M}",), record=record))
    return Outcome(empty(findings=found, **numbers), scripts, "here", 0.1, unit)


UNIT = WorkUnit("mine", "softmax", "float32", "values", "quick", 0)


def summed(*parts: Outcome) -> CellTotal:
    total = CellTotal(empty())
    for part in parts:
        total.add(part)
    return total


def test_the_smallest_recipe_of_each_kind_stays() -> None:
    total = summed(
        outcome(UNIT, ("NaN", "large", 16), ("wrong number", "wrong", 4), cases=20),
        outcome(UNIT, ("NaN", "small", 3), cases=100),
        outcome(UNIT, ("NaN", "middle", 8), cases=100),
    )
    assert [finding.message for finding in total.findings] == ["small", "wrong"]
    assert (total.result.cases, total.units, total.failed) == (220, 3, 3)
    assert total.write("kept") == 2 and len(list(Path("kept").glob("*.py"))) == 2
    assert {
        find_record(path.stem, "kept").recipe["sizes"]["M"] for path in Path("kept").glob("*.json")
    } == {3, 4}


def test_two_diagnoses_of_one_kind_are_two_findings() -> None:
    one, two = (
        Finding("wrong number", cause=Cause("it is", (Explanation(name, name),)))
        for name in ("a twist", "the scale is low")
    )
    assert not are_alike(one, two)
    assert are_alike(one, replace(one, condition=("N > M",)))
    assert are_alike(one, Finding("wrong number"))
    assert not are_alike(Finding("NaN"), Finding("infinity"))


def test_a_known_region_that_passes_in_one_unit_alone_is_no_surprise() -> None:
    Path("known.txt").write_text("causal_mask * values when N == M : [limitation] transposed\n")
    run, todo = planned(
        "--backend",
        FIRST,
        "--op",
        "causal_mask",
        "--known-failures",
        "known.txt",
        "--isolate",
        "none",
    )
    unit = next(unit for unit in todo if unit.aspect == "values")
    line, part = run.known_failures[0], here(unit)
    assert part.result.regions[line.source][0] > 0 and not part.result.findings
    lucky = replace(part, result=replace(part.result, regions={line.source: [0, 5]}))
    assert summed(lucky, part).decided((line,)).verdict == "known failure"
    assert summed(lucky, lucky).decided((line,)).verdict == "failed"


def test_a_verdict_can_be_taken_back() -> None:
    found = [Finding(UNEXPECTED_PASS, message="known.txt:1: all pass"), Finding("NaN")]
    again = without_verdict(empty(verdict="failed", reason="why", findings=found))
    assert (again.verdict, again.reason, again.findings) == ("passed", "", found[1:])


# Spread over processes


@dataclass
class Killed:
    """A client that kills one of its worker processes when so many units have come back."""

    client: Any
    after: int
    seen: int = 0
    pid: int = 0

    def submit(self, *arguments: Any, **more: Any) -> Any:
        self.seen += 1
        if self.seen == self.after:
            self.pid = next(iter(self.client.run(os.getpid).values()))
            os.kill(self.pid, signal.SIGKILL)
        return self.client.submit(*arguments, **more)

    @property
    def status(self) -> Any:
        return self.client.status

    def ncores(self) -> Any:
        return self.client.ncores()

    def cancel(self, *arguments: Any, **more: Any) -> None:
        self.client.cancel(*arguments, **more)


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """Two local workers."""
    pytest.importorskip("distributed", reason="the engine of campaigns is an extra")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        with dask_client(options("--workers", "2")) as client:
            yield client


def hosts_listened_on() -> set[str]:
    """The addresses on which a process has an open port."""
    open_ports = import_module("psutil").Process().net_connections("inet")
    return {one.laddr.ip for one in open_ports if one.status == "LISTEN"}


@ENGINE
def test_what_is_started_here_listens_on_the_loopback_alone(workers: Any) -> None:
    found = [hosts_listened_on(), *workers.run(hosts_listened_on).values()]
    found += workers.run(hosts_listened_on, nanny=True).values()
    assert len(found) == 5 and set().union(*found) == {"127.0.0.1"}


@ENGINE
def test_a_killed_worker_loses_nothing(workers: Any) -> None:
    run, todo = planned(
        "--backend", FIRST, "--op", "shift_right", "--op", "rel_shift", "--op", "causal_mask"
    )
    todo, alone, state = (
        todo[: len(todo) // 2],
        state_of(run, []),
        state_of(run, todo[: len(todo) // 2]),
    )
    killed = Killed(workers, len(todo) // 2)
    schedule(state, killed, LIMITS, "all", time.monotonic())
    for unit in todo:
        alone.take(here(unit, "all"))
    assert killed.pid and not state.under_way and not state.again and state.lost == 1
    assert counts(state) == counts(alone) and {sum_.units for sum_ in state.sums.values()} == {1}
    assert killed.pid not in workers.run(os.getpid).values()


@ENGINE
def test_a_unit_that_ends_its_workers_is_a_failure_and_the_others_are_judged(workers: Any) -> None:
    Path("mine.py").write_text(
        "import os, numpy_ref as right\nARRAYS = 'numpy'\nPRECISION = 'wide'\n\n\n"
        "def shift_right(x):\n    return os.abort() if x.shape[-1] == 2 else "
        "right.shift_right(x)\n\n\n"
        "def causal_mask(N, M):\n    return right.causal_mask(N, M)\n"
    )
    run, _ = prepare(
        options("--backend", "numpy_ref", "--op", "shift_right", "--op", "causal_mask")
    )
    cells = run.cells(None)
    todo = [
        replace(WorkUnit(*place(cell), "quick", 0), source=str(Path("mine.py").absolute()))
        for cell in cells
        if cell.aspect == "values"
    ]
    state = replace(
        state_of(run, todo),
        sums={
            unit.cell: CellTotal(replace(empty(unit.implementation), dtype=unit.dtype))
            for unit in todo
        },
    )
    schedule(state, workers, LIMITS, "none", time.monotonic())
    verdicts = {at[1]: sum_.decided(()).verdict for at, sum_ in state.sums.items()}
    assert verdicts == {"shift_right": "failed", "causal_mask": "passed"}
    (words,) = [finding.message for sum_ in state.sums.values() for finding in sum_.findings]
    assert (
        "no worker brought it to an end: KilledWorker" in words and "profile quick, seed 0" in words
    )


class Gone(Future[Any]):
    """An answer that is said to be there, and is not."""

    def result(self, timeout: float | None = None) -> Any:
        time.sleep(timeout or 0)
        raise TimeoutError


class Silent:
    """A client of workers that judge at once, of which the first took its answer along."""

    status = "running"

    def __init__(self) -> None:
        self.asked = list[WorkUnit]()

    def submit(self, _: Any, unit: WorkUnit, *__: Any, **___: Any) -> Future[Any]:
        future = Future[Any]() if self.asked else Gone()
        self.asked.append(unit)
        future.set_result(outcome(unit))
        return future

    def ncores(self) -> dict[str, int]:
        return {"tcp://a:1": 1}

    def cancel(self, *_: Any, **__: Any) -> None:
        pass


def test_an_answer_that_never_comes_costs_some_seconds_and_its_unit_is_done_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "ANSWER", 0.2)
    run, todo = planned("--backend", FIRST, "--op", "causal_mask")
    state, client, start = state_of(run, todo), Silent(), time.monotonic()
    schedule(state, client, LIMITS, "none", start)
    assert time.monotonic() - start < 5
    assert client.asked[0] in client.asked[1:] and len(client.asked) == len(todo) + 1
    assert not state.under_way and {sum_.units for sum_ in state.sums.values()} == {2}


def test_what_still_runs_at_the_end_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    run, todo = planned("--backend", "numpy_ref", "--op", "shift_right")
    state = state_of(run, todo, seconds=-1)
    assert state.next_unit() is None
    assert finish(state, options("--report-json", "report.json"), 1.0) == 2
    assert "4 of 4 cells were not reached: the verdict is not complete" in capsys.readouterr().out
    assert json.loads(Path("report.json").read_text())["campaign"]["not_reached"] == 4


COARSE = """\
from attnverify import numpy_ref

PRECISION = {"slack": 1e30}


def scaled_dot_product_score(query, key):
    return numpy_ref.scaled_dot_product_score(query, key)
"""
"""A right function that claims an arithmetic so coarse that zeros would pass for it."""


@pytest.mark.parametrize(("allowed", "status"), [((), 1), (("--allow-weak",), 0)])
def test_a_cell_without_a_discriminating_case_is_weak_and_no_green(
    allowed: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(COARSE)
    line = ("--backend", "mine.py", "--op", "scaled_dot_product_score", "--isolate", "none")
    chosen = options(*line, *allowed, "--report-json", "r.json")
    run, todo = planned(*line, *allowed)
    quick = [unit for unit in todo if unit.profile == "quick"]
    state = state_of(run, quick)
    for unit in quick:
        state.take(here(unit))
    assert finish(state, chosen, 1.0) == status
    report = json.loads(Path("r.json").read_text())
    verdicts = {tally["aspect"]: tally["verdict"] for tally in report["tallies"]}
    assert verdicts["values"] == "weak" and "failed" not in verdicts.values()
    assert "weak: 1 cell without a discriminating case" in capsys.readouterr().out


def test_one_unit_with_a_discriminating_case_makes_a_cell_of_a_campaign_pass() -> None:
    weak, strong = outcome(UNIT, cases=9), outcome(UNIT, cases=9, strong=1)
    assert summed(weak, weak).decided(()).verdict == "weak"
    assert summed(weak, strong, weak).decided(()).verdict == "passed"


def test_a_cell_that_failed_often_enough_is_asked_no_more() -> None:
    run, todo = planned("--backend", FIRST, "--op", "causal_mask", "--isolate", "none")
    state = state_of(
        run,
        [
            replace(unit, seed=seed)
            for seed in range(6)
            for unit in todo
            if unit.aspect == "values" and unit.profile == "quick"
        ],
    )
    state.sums = {at: sum_ for at, sum_ in state.sums.items() if at[3] == "values"}
    asked = 0
    while unit := state.next_unit():
        state.take(outcome(unit, ("wrong number", "x", 2)))
        asked += 1
    assert asked == 3


# The command


@ENGINE
def test_a_campaign_ends_with_table_records_and_report(
    workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        command, "generate_work_units", lambda *given: islice(generate_work_units(*given), 12)
    )  # it ends when there is nothing left to ask
    line = (
        "--backend",
        FIRST,
        "--op",
        "causal_mask",
        "--op",
        "shift_right",
        "--dtype",
        "float32",
        "--seed",
        "0",
    )
    done = verify(
        "campaign", "--address", workers.scheduler.address, *line, "--report-json", "r.json"
    )
    report = json.loads(Path("r.json").read_text())
    verdicts = {
        (tally["implementation"], tally["aspect"]): tally["verdict"] for tally in report["tallies"]
    }
    assert done.status == 1 and (
        report["campaign"]["not_reached"],
        report["campaign"]["units"],
        len(verdicts),
    ) == (0, 12, 6)
    assert (
        verdicts["causal_mask", "values"] == "failed"
        and verdicts["shift_right", "values"] == "passed"
    )
    hashes = {path.stem for path in Path(".attnverify/failures").glob("*.json")}
    assert hashes and all(f"attnverify replay {name}" in done.output for name in hashes)
    assert (
        "1 root cause" in done.output
        and "campaign: " in done.output
        and report["root_causes"][0]["rung"] == "masks"
    )
    assert verify("replay", sorted(hashes)[0]).status == 1


@ENGINE
def test_a_campaign_ends_in_time(workers: Any) -> None:
    run, todo = planned("--backend", "numpy_ref", "--op", "softmax")
    state = state_of(
        run, [replace(unit, seed=seed) for seed in range(1000) for unit in todo], seconds=2
    )
    start = time.monotonic()
    schedule(state, workers, LIMITS, "all", start)
    assert 1 < time.monotonic() - start < 8 and len(state.seconds) < 8000
    assert re.fullmatch(
        r"0:00 left, \d+ units, \d/5 cells, \d+ cases \(\d+/s\), 0 failures", state.progress(start)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        ("numpy_ref", "--hours", "0"),
        ("numpy_ref", "--workers", "0"),
        ("--backend", FIRST, "--known-failures", "nowhere.txt"),
    ],
)
def test_wrong_options_are_told(wrong: tuple[str, ...]) -> None:
    done: Run = verify("campaign", *wrong)
    assert done.status == 4 and wrong[-2] in done.output


def test_without_its_engine_a_campaign_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ENGINE", "no_such_engine")
    done = verify("campaign", "numpy_ref")
    assert done.status == 2 and "no_such_engine is not installed" in done.output


# Devices


def test_workers_take_the_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    for worker in range(5):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,GPU-7")
        monkeypatch.setenv("ATTNVERIFY_PINNED", "")
        given.append((assign_device(worker), os.environ["CUDA_VISIBLE_DEVICES"]))
    assert given == [(name, name) for name in ("0", "2", "GPU-7", "0", "2")]


def test_a_process_keeps_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("ATTNVERIFY_PINNED", "")
    assert (assign_device(1), assign_device(0), devices()) == ("1", "1", ["1"])


@pytest.mark.parametrize("allowed", ["", "3"])
def test_one_device_or_none_is_shared(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    monkeypatch.setenv("ATTNVERIFY_PINNED", "")
    assert assign_device(1) is None and os.environ["CUDA_VISIBLE_DEVICES"] == allowed


def test_the_devices_of_the_machine_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: one (UUID: GPU-1)'\necho '  MIG 1g Device 0: (UUID: MIG-1)'\necho "
        "'GPU 1: two (UUID: GPU-2)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices() == ["0", "1"]


@pytest.mark.parametrize("worker", ["", "gw1"])
def test_a_worker_of_xdist_has_its_device_before_a_backend_is_loaded(worker: str) -> None:
    Path("mine.py").write_text(
        "import os, numpy_ref as right\nARRAYS = 'numpy'\nPRECISION = 'wide'\n"
        "open(f\"seen-{os.environ['CUDA_VISIBLE_DEVICES']}\", 'w').close()\n\n\ndef "
        "shift_right(x):\n    return right.shift_right(x)\n"
    )
    own = {
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "4,5",
        "ATTNVERIFY_PINNED": "",
        "PYTEST_XDIST_WORKER": worker,
    }
    command = [
        sys.executable,
        "-m",
        "attnverify",
        "run",
        "--backend",
        "mine.py",
        "--isolate",
        "none",
        "--collect-only",
    ]
    subprocess.run(
        command, capture_output=True, env=os.environ | own, check=False
    )  # status 2: nothing was judged
    assert [path.name for path in Path().glob("seen-*")] == ["seen-5" if worker else "seen-4,5"]
