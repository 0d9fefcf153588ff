"""
``python -m benchmarks.gpu_report``: the steps, each in a process of its own (on a GPU some side by
side), and what they came to as one file.

A step is a test (:mod:`benchmarks.gpu_report.on_device`), which pytest runs and writes down. It
ends in *passed*, *failed* or *not run*, with a reason; a crash, a hang or a device that answers no
more costs that step alone.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from attnverify import ROOT
from attnverify.backends.commit import commit_of_suite
from attnverify.ptx.sass import assemblers
from benchmarks.gpu_report.programs import build_command, tell_context

LIMITS = {
    "environment": 60,
    "suite-torch_impl": 500,
    "suite-cupy_impl": 500,
    "short": 240,
    "waits": 180,
    "graphs": 180,
    "repeats": 180,
    "lengths": 400,
    "large": 400,
    "memory": 120,
    "recompilations": 240,
    "tests": 300,
    "sanitizer-memcheck": 300,
    "sanitizer-racecheck": 300,
    "sanitizer-initcheck": 300,
    "sanitizer-synccheck": 300,
}
"""The steps in their order, with the seconds that each may take; the longest come first."""

AT_ONCE = 4
"""
Steps that run side by side on a GPU: most of their time the specification computes, on the CPU.
"""

BUDGET = 580.0
"""Seconds for a group of steps, unless told: a machine that is lent for ten minutes a command."""

GROUPS = {
    "right": ("short", "waits", "graphs", "sanitizer-memcheck", "sanitizer-racecheck"),
    "judged": ("suite-torch_impl", "suite-cupy_impl", "repeats", "lengths"),
    "size": ("large", "memory", "recompilations", "tests"),
    "watched": ("sanitizer-initcheck", "sanitizer-synccheck"),
}
"""The steps but for the first, in groups of which each has ended when its time is up."""


@dataclass
class Outcome:
    """What a step came to: passed, failed or not run; why; how long it took; what it measured."""

    step: str
    verdict: str = "not run"
    reason: str = "its turn has not come"
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.step:<22}{self.verdict:<9}{self.seconds:6.1f} s  {self.reason}".rstrip()


def main(chosen: argparse.Namespace) -> int:
    """Run the steps; 0 all passed, 1 one failed, 2 one was not run."""
    names = chosen.step or (GROUPS[chosen.group] if chosen.group else list(LIMITS))
    groups = 1 if chosen.group else len(GROUPS)
    until = time.monotonic() + (chosen.seconds or groups * BUDGET)
    first = outcome_of("environment", chosen.device or "auto", chosen.quick, LIMITS["environment"])
    device = chosen.device or ("cuda" if first.figures.get("cuda") else "cpu")
    outcomes = {"environment": first} | {
        name: Outcome(name) for name in names if name != "environment"
    }
    folder, waiting = (
        place(chosen.out, device, first),
        [name for name in outcomes if name != "environment"],
    )
    keep_outcome(folder, device, chosen.quick, outcomes, first)
    with ThreadPoolExecutor(AT_ONCE if device == "cuda" else 1) as pool:
        running = [
            pool.submit(run_within_budget, name, device, chosen.quick, until) for name in waiting
        ]
        with terminate_together(pool):
            for done in as_completed(running):
                keep_outcome(folder, device, chosen.quick, outcomes, done.result())
    print(
        f"\n{closing(list(outcomes.values()))}"
        + (f"; {folder / 'gpu-report.json'}" if folder else "")
    )
    return status(list(outcomes.values()))


@contextmanager
def terminate_together(pool: ThreadPoolExecutor) -> Iterator[None]:
    """End the steps as well when this process is interrupted or terminated."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in list(RUNNING):
            stop_process_group(child)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


RUNNING: set["subprocess.Popen[bytes]"] = set()
"""The processes of the steps that run now."""


def run_within_budget(name: str, device: str, quick: bool, until: float) -> Outcome:
    """Run a step, if there is time left for it."""
    left = until - time.monotonic()
    if left < 5:
        return Outcome(name, reason=f"the time of all steps was up: run it with --step {name}")
    return outcome_of(name, device, quick, min(LIMITS[name], left))


def keep_outcome(
    folder: Path | None, device: str, quick: bool, outcomes: dict[str, Outcome], done: Outcome
) -> None:
    """
    Tell what a step came to, and write it down at once, so that it is known whatever happens to
    this process.
    """
    outcomes[done.step] = done
    print(done, flush=True)
    write(folder, device, quick, outcomes)


def status(outcomes: list[Outcome]) -> int:
    verdicts = {outcome.verdict for outcome in outcomes}
    return 1 if "failed" in verdicts else 2 if "not run" in verdicts else 0


def closing(outcomes: list[Outcome]) -> str:
    counts = {
        verdict: sum(outcome.verdict == verdict for outcome in outcomes)
        for verdict in ("passed", "failed", "not run")
    }
    return f"{len(outcomes)} steps: " + ", ".join(
        f"{count} {verdict}" for verdict, count in counts.items() if count
    )


def place(out: str | None, device: str, first: Outcome) -> Path | None:
    """
    Choose where the file goes: benchmarks/results of the checkout for a GPU, nowhere for a CPU
    unless told.
    """
    if out is None and device == "cpu":
        return None
    name = re.sub("[^a-z0-9]+", "-", str(first.figures.get("device", device)).lower()).strip("-")
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    folder = Path(out) if out else ROOT / "benchmarks" / "results" / name / today
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder: Path | None, device: str, quick: bool, outcomes: dict[str, Outcome]) -> None:
    if folder is None:
        return
    when, known = datetime.now(UTC).isoformat(timespec="seconds"), outcomes["environment"].figures
    told = {
        "device": known.get("device", device),
        "on": device,
        "date": when,
        "commit": commit_of_suite(),
        "quick": quick,
    }
    told |= {
        "versions": known.get("versions", {}),
        "steps": [asdict(outcome) for outcome in outcomes.values()],
    }
    (folder / "gpu-report.json").write_text(json.dumps(told, indent=1) + "\n")


def outcome_of(name: str, device: str, quick: bool, seconds: float) -> Outcome:
    """Run a step in a process of its own, which ends in time, with all that it has started."""
    started = time.monotonic()
    print(f"{name:<22}begins, for at most {seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.xml", Path(folder) / "log"
        environment = choose_environment(device) | tell_context(device, quick, seconds)
        ended = run_until(build_command(name, answer), environment, seconds, log)
        found = read_outcome(name, answer, device)
        lines = log.read_text(errors="replace").strip().splitlines()[-12:]
    found = found or Outcome(name, "failed", " | ".join([ended, *lines])[-2000:])
    return replace(found, seconds=round(time.monotonic() - started, 1))


def choose_environment(device: str) -> dict[str, str]:
    """The environment of a step: this checkout, one thread, the GPU or none."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    chosen = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | choose_assembler()
    return os.environ | chosen | hidden


def run_until(command: list[str], environment: dict[str, str], seconds: float, log: Path) -> str:
    """Run a step's command until its time is up; how it ended, in words."""
    with log.open("w") as stream:
        child = subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=ROOT, env=environment, process_group=0
        )
        RUNNING.add(child)
        try:
            return f"ended with status {child.wait(seconds)} and no answer"
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:.0f} s"
        finally:
            stop_process_group(child)
            RUNNING.discard(child)


def read_outcome(name: str, answer: Path, device: str) -> Outcome | None:
    """Read what pytest wrote of the step's test; None where it wrote nothing."""
    test = ElementTree.parse(answer).find(".//testcase") if answer.exists() else None
    if test is None:
        return None
    told = {x.get("name"): x.get("value", "") for x in test.iter("property")}
    figures = json.loads(told.get("figures", "{}"))
    for kind, verdict in (("failure", "failed"), ("error", "failed"), ("skipped", "not run")):
        if (found := test.find(kind)) is not None:
            reason = found.get("message", "")[:4000]
            where = "" if kind == "skipped" else tell_place(found.text or "")
            return Outcome(name, verdict, reason + where, figures=figures)
    scale = "" if device == "cuda" else "on the CPU, at small sizes"
    return Outcome(name, "passed", scale, figures=figures)


def tell_place(traceback: str) -> str:
    """Where pytest's traceback ends, `` (file.py:12)``, without the folders of this machine."""
    place = traceback.strip().rpartition("\n")[2].rpartition(": ")[0]
    return f" ({Path(place).name})" if place else ""


ASSEMBLER = "TRITON_PTXAS_PATH"
SOUND_ASSEMBLER = 13, 3
"""Before it ptxas may overwrite what wgmma still reads (triton-lang/triton, issue 9433)."""


def choose_assembler() -> dict[str, str]:
    """
    Tell Triton to use the newest ptxas that is here in place of its own, where that one is without
    a known error and the user has chosen none.
    """
    found = {tuple(map(int, name.split("."))): path for name, path in assemblers().items()}
    newest = max(found, default=(0,))
    if ASSEMBLER in os.environ or newest < SOUND_ASSEMBLER:
        return {}
    return {ASSEMBLER: str(found[newest])}


def stop_process_group(child: subprocess.Popen[bytes]) -> None:
    """End the process and those that it has started: they are a group of their own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
