"""
The steps that run other programs: the differential suite, the tests of torch_impl on the device.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from attnverify import ROOT
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import CHAPTERS
from benchmarks.gpu_report.context import Figures, NotRun, StepContext
from benchmarks.gpu_report.programs import program, quote_last_lines

TESTS = ("test_pytorch_integration.py", "test_modules.py", "test_peak_memory.py")
TESTED = ROOT / "tests" / "torch_impl" / "triton"


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


def tests(here: StepContext) -> Figures:
    """
    opcheck, torch.compile, autocast, a Transformer-XL training step, memory: torch_impl's own
    tests, on the device.
    """
    if not TESTED.exists():
        raise NotRun("there are no tests beside this installation: run it from a checkout")
    names = TESTS[-1:] if here.quick and not here.gpu else TESTS
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(str(TESTED / name) for name in names),
    ]
    ran = program(command, here.seconds - 5)
    assert ran.returncode == 0, quote_last_lines(ran)
    return {"tests": list(names), "pytest": ran.stdout.strip().splitlines()[-1]}
