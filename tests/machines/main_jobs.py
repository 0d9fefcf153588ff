"""
The main job with a random seed, on one code path after the other.

Each is a process of its own; what it said is kept in the file, which a later call goes on with.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnverify import ROOT
from attnverify.backends.commit import describe_commit
from attnverify.machine import count_processors, processor_name
from tests.machines import CODE_PATHS

WITHOUT_EMULATION = ("-k", "not triton and not cuda")
EMULATED_ALONE = ("-k", "triton or cuda")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Unless the code path asks for more, which wait without taking a processor."""


@dataclass(frozen=True)
class Job:
    """One run of the main job: where, with which seed, its exit status and its last line."""

    path: str
    seed: int
    status: int
    said: str
    seconds: float
    environment: dict[str, str]
    options: list[str]
    processor: str = ""
    commit: str = ""


Run = Callable[[str, int, tuple[str, ...]], Job]


def run_job(path: str, seed: int, options: tuple[str, ...]) -> Job:
    """Run the quick main job under a code path."""
    line = ("-m", "pytest", "-m", "differential", "--attn-profile", "quick", "-q")
    line = (*line, "-p", "no:cacheprovider", "--attn-seed", str(seed), "--tb", "short", *options)
    start, environment = time.monotonic(), ONE_THREAD | CODE_PATHS[path]
    done = subprocess.run(
        [sys.executable, *line], env=os.environ | environment, cwd=ROOT, stdout=subprocess.PIPE
    )
    lines = done.stdout.decode(errors="replace").splitlines() or [""]
    red = [each for each in lines if each.startswith(("FAILED", "ERROR"))]
    return Job(
        path,
        seed,
        done.returncode,
        "\n".join([*red, lines[-1]]),
        round(time.monotonic() - start, 1),
        environment,
        list(options),
        f"{processor_name()}, {count_processors()} cores",
        describe_commit(ROOT),
    )


def draw_seed() -> int:
    return random.SystemRandom().randrange(2**31)


def next_job(done: list[dict[str, Any]]) -> str:
    """The code path whose turn it is."""
    return list(CODE_PATHS)[len(done) % len(CODE_PATHS)]


def run_missing(
    file: Path,
    number: int,
    run: Run = run_job,
    seed: Callable[[], int] = draw_seed,
    options: tuple[str, ...] = (),
) -> int:
    """Run jobs until the file has so many; 1 if any of them was red."""
    done: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    while len(done) < number:
        done.append(asdict(run(next_job(done), seed(), options)))
        file.write_text(json.dumps(done, indent=1) + "\n")
        print(describe(done[-1]), flush=True)
    return int(any(job["status"] for job in done))


def run_beside(file: Path, number: int, others: Path, run: Run = run_job) -> int:
    """
    Run the emulated kernels alone on the code paths and with the seeds of the others' file, whose
    jobs left them out: two and two they are whole main jobs.
    """
    done: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for other in json.loads(others.read_text())[len(done) : number]:
        done.append(asdict(run(other["path"], other["seed"], EMULATED_ALONE)))
        file.write_text(json.dumps(done, indent=1) + "\n")
        print(describe(done[-1]), flush=True)
    return int(any(job["status"] for job in done))


def describe(job: dict[str, Any]) -> str:
    """``AVX2 seed 5: green, 1844 passed in 283 s``"""
    verdict = "red" if job["status"] else "green"
    return f"{job['path']} seed {job['seed']}: {verdict}, {job['said']}"
