"""
compute-sanitizer over the step ``short``: what it finds fails the step, but for the races that it
reports in reductions of Triton.

A reduction of Triton's hands numbers from warp to warp through shared memory that it uses again;
racecheck takes that for a race (triton-lang/triton, issue 7264). Every race is told by its kernel
and lines; one between two lines of a reduction does not fail the step.
"""

import linecache
import os
import re
import shutil
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from attnverify import ROOT
from benchmarks.gpu_report.context import Figures, NotRun, StepContext
from benchmarks.gpu_report.programs import build_command, program, quote_last_lines, tell_context

__all__ = ["TOOLS", "find_sanitizer", "run_sanitizer"]

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
REFUSED = 86
"""The exit status of a run in which a tool has found something."""

RACE = re.compile(
    r"=+ (?:Error|Warning): Race reported between \w+ access at (?P<kernel>[^+\n]+)\+\S+"
    r"(?: in (?P<first>\S+:\d+))?[^\n]*\n"
    r"=+ +and \w+ access at [^+\n]+\+\S+(?: in (?P<second>\S+:\d+))?"
)
COUNTED = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
REDUCTION = re.compile(r"\btl\.reduce\(|\btl\.(sum|max|min)\(")


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
    short, asked = build_command("short"), tell_context(here.device, True, here.seconds)
    found = find_sanitizer()
    told = ["--error-exitcode", str(REFUSED), "--target-processes", "all"]
    watch = [found, "--tool", tool, *told] if found and here.gpu else []
    ran = program([*watch, *short], here.seconds - 5, PYTORCH_NO_CUDA_MEMORY_CACHING="1", **asked)
    text = ran.stdout + ran.stderr
    harmless = races_of_reductions(text) if ran.returncode == REFUSED else {}
    assert ran.returncode == 0 or harmless, f"exit status {ran.returncode}: {quote_last_lines(ran)}"
    if not watch:
        raise NotRun(
            f"{'compute-sanitizer is not found' if here.gpu else 'no GPU'}; the run that it would "
            "watch passed"
        )
    summary = [line for line in text.splitlines() if line.startswith("=====")][-3:]
    return {"tool": found, "summary": summary, "races in reductions": harmless}


def races_of_reductions(text: str) -> dict[str, int]:
    """
    Count the races by kernel and lines, where every one that was found is between two lines of a
    reduction; else none.
    """
    races = [match.groupdict() for match in RACE.finditer(text)]
    counted = [int(number) for number in COUNTED.findall(text)]
    known = all(
        is_of_reduction(race["first"]) and is_of_reduction(race["second"]) for race in races
    )
    if not races or sum(counted) != len(races) or not known:
        return {}
    places = (f"{race['kernel'].strip()}: {race['first']}, {race['second']}" for race in races)
    return dict(Counter(places))


def is_of_reduction(place: str | None) -> bool:
    """Tell whether a line is of Triton's own functions, or of ours and calls a reduction."""
    if place is None:
        return False
    name, _, number = place.rpartition(":")
    return any(
        "language" in path.parts or REDUCTION.search(linecache.getline(str(path), int(number)))
        for path in find_sources(Path(name).name)
    )


@cache
def find_sources(name: str) -> tuple[Path, ...]:
    """Find where a Triton kernel's file of this name lies: Triton's language, or our kernels."""
    triton = find_spec("triton")
    language = [Path(p) / "language" for p in (triton and triton.submodule_search_locations) or ()]
    folders = [*language, ROOT / "torch_impl" / "triton" / "kernels"]
    return tuple(folder / name for folder in folders if (folder / name).exists())
