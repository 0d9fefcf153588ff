"""
The first minutes on a GPU: what to run, in five groups that each end in nine minutes.

    python -m benchmarks.first_half_hour              # all, at most 45 minutes
    python -m benchmarks.first_half_hour --group fast # one alone
    python -m benchmarks.first_half_hour --device cpu # the same without a GPU, at small sizes

right: every kernel once, and under compute-sanitizer. fast: the short list of the benchmarks. why:
the profiler's figures beside those that the machine code predicts. judged: the differential suite.
rest: large tensors, memory, the tests on the device. Nothing has to be installed; what every
command said and came to is written as it ends.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from attnverify import ROOT

__all__ = ["Done", "commands", "main", "run_group"]

SECONDS = 540.0
"""Of a group: a machine that is lent is often lent for ten minutes a command."""

GROUPS = ("right", "fast", "why", "judged", "rest")
REPORT = ("benchmarks.gpu_report", "--quick")


@dataclass(frozen=True)
class Done:
    """A command, and what it came to: its status, or why it has none."""

    group: str
    command: str
    status: int | None
    seconds: float
    log: str


def commands(group: str, device: str, out: Path) -> list[list[str]]:
    """
    List the commands of a group, the most important first; each may take what is left of its time.
    """
    python, on = [sys.executable, "-m"], ["--device", device, "--out", str(out)]
    races = ["pytest", "-q", "-p", "no:cacheprovider"]
    if device == "cpu":  # the cases of a GPU too, at sizes at which an interpreter runs
        races += ["--benchmark-disable", "tests/bench_alibi.py", "-k", "cuda"]
    else:
        races += ["--benchmark-only", "--benchmark-cases=short", "--benchmark-seconds=460"]
        races += [f"--benchmark-record={out}"]
    found = {
        "right": [[*python, *REPORT, *on, "--group", "right"]],
        "fast": [[*python, *races]],
        "why": [[*python, "benchmarks.profile", "--device", device, "--record", f"{out}/why.json"]],
        "judged": [[*python, *REPORT, *on, "--group", "judged"]],
        "rest": [
            [*python, *REPORT, *on, "--group", "size"],
            [*python, *REPORT, *on, "--group", "watched"],
        ],
    }
    return found[group]


def run_group(group: str, lines: list[list[str]], seconds: float, out: Path) -> list[Done]:
    """Run commands one after the other until the group's time is up."""
    until, found = time.monotonic() + seconds, []
    for number, line in enumerate(lines, 1):
        log = out / f"{group}-{number}.log"
        left = until - time.monotonic()
        started = time.monotonic()
        status = run_until(line, left, log) if left > 1 else None
        taken = round(time.monotonic() - started, 1)
        found.append(Done(group, " ".join(line[1:]), status, taken, str(log)))
    return found


def run_until(line: list[str], seconds: float, log: Path) -> int | None:
    """Run a command with all that it starts; None where its time was up."""
    with log.open("w") as stream:
        child = subprocess.Popen(
            line, cwd=ROOT, stdout=stream, stderr=stream, process_group=0, env=surroundings()
        )
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):  # first a word, so that it writes what it has
                os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def surroundings() -> dict[str, str]:
    """The environment of a command: this checkout is imported, whatever is installed."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def main(arguments: list[str] | None = None) -> int:
    """Run the groups; 0 where every command ended with status 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_half_hour",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--group", choices=GROUPS, action="append", help="repeatable")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each group")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "first-half-hour")
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found: list[Done] = []
    for group in given.group or GROUPS:
        for done in run_group(group, commands(group, given.device, out), given.seconds, out):
            found.append(done)
            word = "time was up" if done.status is None else f"status {done.status}"
            print(f"{group:8}{done.seconds:7.1f} s  {word}  {done.log}", flush=True)
        told = json.dumps([asdict(one) for one in found], indent=1) + "\n"
        (out / "first-half-hour.json").write_text(told)
    return int(any(done.status != 0 for done in found))


if __name__ == "__main__":
    sys.exit(main())
