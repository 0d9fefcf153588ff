"""
The steps that run other programs: the differential suite, the tests of torch_impl on the device,
compute-sanitizer over the kernels.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import CHAPTERS
from attnverify.gpu_report.context import Figures, NotRun, StepContext

TESTS = (
    "test_citizenship.py",
    "test_triton_modules.py",
    "test_peak_memory.py",
    "test_memory_bound.py",
)
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def run_differential_suite(source: str, here: StepContext) -> Figures:
    """
    Run ``attnverify run`` of a backend on the device, chapter by chapter: what ends one leaves the
    others standing.
    """
    until, found = time.monotonic() + here.seconds - 10, dict[str, str]()
    for chapter in ("shifts",) if here.quick and not here.gpu else CHAPTERS:
        found[chapter] = judged(source, chapter, here, until - time.monotonic())
    wrong = [
        f"{chapter}: {words}"
        for chapter, words in found.items()
        if not words.startswith(("passed", "not run"))
    ]
    assert not wrong, "; ".join(wrong)
    if late := [chapter for chapter, words in found.items() if words.startswith("not run")]:
        raise NotRun(
            f"the time was up before {', '.join(late)}: run this step alone, or with more seconds",
            found,
        )
    return found


def judged(source: str, chapter: str, here: StepContext, seconds: float) -> str:
    """Say what a chapter's operations came to, in words."""
    if seconds < 1:
        return "not run: no time was left"
    operations = [
        name
        for name, operation in CATALOGUE.items()
        if operation.chapter == chapter and not operation.is_gradient
    ]
    chosen = [part for name in operations for part in ("--op", name)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = [
            "--backend",
            source,
            *chosen,
            "--profile",
            profile(here),
            "--report-json",
            str(report),
            "--failures",
            folder,
        ]
        try:
            ran = program(
                [sys.executable, "-m", "attnverify", "run", *options, *side_by_side(here)], seconds
            )
        except subprocess.TimeoutExpired:
            return "not run: the time was up"
        tallies = json.loads(report.read_text())["tallies"] if report.exists() else []
    passed = sum(
        tally["verdict"] in ("passed", "known failure", "unsupported") for tally in tallies
    )
    told = f"{passed} of {len(tallies)} cells, {sum(tally['cases'] for tally in tallies)} cases"
    return (
        f"passed: {told}"
        if ran.returncode == 0 and tallies
        else f"exit status {ran.returncode}, {told}: {quote_last_lines(ran)}"
    )


def profile(here: StepContext) -> str:
    return "quick" if here.quick or not here.gpu else "default"


def side_by_side(here: StepContext) -> list[str]:
    """
    Several processes on one device, where pytest-xdist is there: most of the time goes to the
    specification, which is NumPy's. Two suites run.
    """
    count = min(8, (os.cpu_count() or 1) // 3)
    return (
        ["-n", str(count), "--dist", "loadgroup"]
        if here.gpu and count > 1 and find_spec("xdist")
        else []
    )


def program(
    command: list[str], seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=seconds, check=False
    )


def quote_last_lines(ran: subprocess.CompletedProcess[str]) -> str:
    return " | ".join((ran.stdout + ran.stderr).strip().splitlines()[-8:])[-1500:]


def tests(here: StepContext) -> Figures:
    """
    opcheck, torch.compile, autocast, a Transformer-XL training step, memory: torch_impl's own
    tests, on the device.
    """
    names = [name for name in TESTS if (ROOT / "tests" / name).exists()]
    if not names:
        raise NotRun("there are no tests beside this installation: run it from a checkout")
    names = names[-1:] if here.quick and not here.gpu else names
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/{name}" for name in names),
    ]
    ran = program(command, here.seconds - 5)
    assert ran.returncode == 0, quote_last_lines(ran)
    return {"tests": names, "pytest": ran.stdout.strip().splitlines()[-1]}


def find_sanitizer() -> str | None:
    """compute-sanitizer, on the path or where CUDA's toolkit lies."""
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    beside = [str(Path(place) / "bin") for place in places if place]
    return shutil.which(
        "compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *beside])
    )


def run_sanitizer(tool: str, here: StepContext) -> Figures:
    """
    Run the step ``short`` under a tool of compute-sanitizer; PyTorch asks the driver for every
    tensor then, so that each has its bounds.
    """
    short = [
        sys.executable,
        "-m",
        "attnverify.gpu_report.runner",
        "short",
        json.dumps({"device": here.device, "quick": True}),
    ]
    found = find_sanitizer()
    watch = (
        [found, "--tool", tool, "--error-exitcode", "86", "--target-processes", "all"]
        if found and here.gpu
        else []
    )
    ran = program([*watch, *short], here.seconds - 5, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert ran.returncode == 0, f"exit status {ran.returncode}: {quote_last_lines(ran)}"
    if not watch:
        raise NotRun(
            f"{'compute-sanitizer is not found' if here.gpu else 'no GPU'}; the run that it would "
            "watch passed"
        )
    return {
        "tool": found,
        "summary": [
            line for line in (ran.stdout + ran.stderr).splitlines() if line.startswith("=====")
        ][-3:],
    }


SUITES: dict[str, Any] = {
    "tests": tests,
    **{f"sanitizer-{tool}": partial(run_sanitizer, tool) for tool in TOOLS},
    **{
        f"suite-{source}": partial(run_differential_suite, source)
        for source in ("torch_impl", "cupy_impl")
    },
}
