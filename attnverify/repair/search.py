"""
The search for the one change of a file under which all that failed is right, what was right stays
so, and fresh calls are right too.

Copies of somebody's file with a change may do anything: they run in a process of their own, which
is begun anew behind a change that ends it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, resized
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.repair.changes import Change, single_changes
from attnverify.verdicts.fitting import fitted_recipes

DRAWS, FRESH = 60, 20
MOST_FAILING, MOST_PASSING = 25, 12
LARGEST = 70
"""The largest size of a call that changes are tried on."""
LONGEST = 2.0
"""Seconds that a call of a changed file may take."""
TOO_SLOW, REFUSED = "too slow", "refused"
SAYS_NOTHING = "", TOO_SLOW, REFUSED
MOST = 3
"""So many changes are told at most."""


class TooSlow(Exception):
    """A call takes longer than it may."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooSlow where what is done takes longer."""

    def end(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(implementation: Implementation, case: Case) -> str:
    """
    The kind of a failure, "passed", "" where a right answer has nothing to judge, or that it is
    refused or takes too long.
    """
    try:
        with within(LONGEST):
            return "passed" if judge(implementation, case).judged else ""
    except TooSlow:
        return TOO_SLOW
    except Unsupported:
        return REFUSED
    except Disagreement as error:
        return error.kind


def calls_of(own: Implementation, dtype: str, seed: int = 0) -> Iterator[Case]:
    """Small calls that a kernel takes as its file says: required ones and drawn ones."""
    name, limits = own.operation.name, own.backend.declared.limits
    recipes: Sequence[Recipe] = draw_recipes(name, "any", DRAWS, seed)
    if seed == 0:
        recipes = [*required_cases(name), *recipes]
    for recipe in fitted_recipes(recipes, limits):
        if max(recipe.sizes.values()) <= LARGEST:
            yield case_of(recipe, dtype)


def failing_and_passing(own: Implementation, dtype: str) -> tuple[list[Case], list[Case]]:
    """Calls that fail, the smallest first, and calls that are right."""
    failing, passing = list[Case](), list[Case]()
    for case in calls_of(own, dtype):
        if (kind := outcome(own, case)) not in SAYS_NOTHING:
            (passing if kind == "passed" else failing).append(case)
    if failing:
        alike = (case_of(recipe, dtype) for recipe in varied([x.recipe for x in failing]))
        failing += [case for case in alike if outcome(own, case) not in ("passed", *SAYS_NOTHING)]
    failing.sort(key=size_of)
    passing.sort(key=size_of)
    return failing[:MOST_FAILING], passing[:MOST_PASSING]


def varied(recipes: Sequence[Recipe]) -> Iterator[Recipe]:
    """The same calls of other sizes and numbers: one that fails alone says too little."""
    rng = np.random.default_rng(0)
    for recipe in islice(cycle(recipes), MOST_FAILING):
        sizes = {x: int(rng.integers(1, 10)) for x in recipe.sizes if rng.integers(2)}
        other = resized(recipe, sizes)
        yield replace(other, values=other.values | {"seed": int(rng.integers(2**31))})


def size_of(case: Case) -> int:
    return sum(getattr(x, "size", 0) for x in case.inputs.values())


def changed_copy(change: Change, folder: str, name: str, source: str) -> Implementation | None:
    """The implementation of this name, of a file with a change; None where there is none."""
    path = Path(folder) / Path(source).name
    path.write_text(change.text)
    try:
        with within(LONGEST):
            backend = load(str(path))
    except TooSlow:
        return None
    return next((one for one in backend.implementations if one.name == name), None)


def is_right(own: Implementation, cases: Sequence[Case]) -> bool:
    """Tell whether nothing is said against it; a right answer may leave nothing to judge."""
    return all(outcome(own, case) in ("passed", "") for case in cases)


def first_wrong(backend: Backend, dtype: str) -> tuple[Implementation, list[Case], list[Case]]:
    """
    The first implementation of a file that is wrong, with calls that show it. Raises ValueError
    where none is.
    """
    for own in backend.implementations:
        failing, passing = failing_and_passing(own, dtype)
        if failing:
            return own, failing, passing
    raise ValueError(f"{backend.source}: no small call in {dtype} fails: there is nothing to mend")


def search(source: str, dtype: str, folder: str, begin: int) -> Iterator[dict[str, Any]]:
    """Say what is judged, the number of each change before it is tried, and which ones mend it."""
    sys.path.append(str(Path(source).resolve().parent))
    own, failing, passing = first_wrong(load(source), dtype)
    yield {"name": own.name, "failing": len(failing), "passing": len(passing)}
    fresh: list[Case] = []
    for at, change in enumerate(islice(single_changes(Path(source).read_text()), begin, None)):
        yield {"at": begin + at}
        changed = changed_copy(change, folder, own.name, source)
        if changed is None or not is_right(changed, [*failing, *passing]):
            continue
        fresh = fresh or list(islice(calls_of(own, dtype, seed=1), FRESH))
        if not any(outcome(changed, case) not in ("passed", *SAYS_NOTHING) for case in fresh):
            yield {"words": change.words}


def main(source: str, dtype: str, folder: str, begin: str) -> None:
    """Write what is found to standard output, a line each; what a file prints goes nowhere."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        for one in search(source, dtype, folder, int(begin)):
            told.write(json.dumps(one) + "\n")
            told.flush()
    except ValueError as error:
        told.write(json.dumps({"refused": str(error)}) + "\n")


def find_repairs(source: str, dtype: str, seconds: float, folder: str) -> dict[str, Any]:
    """
    Search for so many seconds: ``name`` of what is wrong, how many calls are ``failing`` and
    ``passing``, how many changes were ``tried``, which ``mend`` it, and whether these were ``all``.
    Raises ValueError where nothing is wrong, or the file cannot be judged so.
    """
    end, begin = time.monotonic() + seconds, 0
    found: dict[str, Any] = {"mend": [], "tried": 0, "all": False}
    while time.monotonic() < end and len(found["mend"]) < MOST and not found["all"]:
        command = [sys.executable, "-m", "attnverify.repair", source, dtype, folder, str(begin)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            timer = ends_at(child, end)
            assert child.stdout is not None
            for line in child.stdout:
                take(found, json.loads(line))
                if len(found["mend"]) == MOST:
                    child.kill()
            timer.cancel()
        found["all"] = child.returncode == 0
        if "name" not in found:
            raise ValueError(f"{source}: it ends the process in which it is called")
        begin = found["tried"]
    return found


def ends_at(child: "subprocess.Popen[str]", end: float) -> Any:
    from threading import Timer

    timer = Timer(max(end - time.monotonic(), 0.1), child.kill)
    timer.start()
    return timer


def take(found: dict[str, Any], told: dict[str, Any]) -> None:
    """Add a line of the other process to what is found."""
    if "refused" in told:
        raise ValueError(told["refused"])
    if "at" in told:
        found["tried"] = told["at"] + 1
    elif "words" in told:
        found["mend"].append(told["words"])
    else:
        found.update(told)
