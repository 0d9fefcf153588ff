"""
The search for the one change of a file under which all that failed is right, what was right stays
so, and fresh calls are right too.

Copies of somebody's file with a change may do anything: they run in a process of their own, and in
a copy of it, which is made anew behind a change that ends it.
"""

import ast
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, islice, pairwise
from mmap import mmap
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.source import parse_source
from attnverify.device_assignment import devices
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, resized
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.repair.changes import Change, single_changes
from attnverify.repair.copies import Copies, lines_run, reached_in, with_name
from attnverify.verdicts.fitting import fitted_recipes
from attnverify.verdicts.found_out import loaded

DRAWS, BESIDE = 60, 20
MOST_FAILING, MOST_PASSING = 25, 12
LARGEST = 70
"""The largest size of a call that changes are tried on; larger ones, where no such call fails."""
SHORTEST, LONGEST, SLOWER = 0.2, 2.0, 10
"""
Seconds that a call of a changed file may take at least and at most, and how many times those of the
slowest call of the original.
"""
STUCK = 20
"""Seconds after which a change that cannot be interrupted ends its process."""
TOO_SLOW, REFUSED = "too slow", "refused"
SAYS_NOTHING = "", TOO_SLOW, REFUSED
TRACED = 6
"""So many calls are watched for the lines that they run."""
KNOWN = "known.json"
"""In the folder of the copies: the recipes of calls that failed before."""
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
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, should it be caught
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(implementation: Implementation, case: Case, longest: float = LONGEST) -> str:
    """
    The kind of a failure, "passed", "" where a right answer has nothing to judge, or that it is
    refused or takes too long.
    """
    try:
        with within(longest):
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


def larger_calls(own: Implementation, dtype: str) -> Iterator[Case]:
    """Calls of several tiles of keys, and of thousands: what small calls do not show."""
    name, limits = own.operation.name, own.backend.declared.limits
    large = [x for x in fixed_cases(name) if max(x.sizes.values()) > LARGEST]
    large += [x for x in required_cases(name) if max(x.sizes.values()) > LARGEST]
    large += everyday_calls(name, "quick", 0, emulated=True)
    large += far_calls(own.operation.forward, "quick") if not own.operation.is_gradient else []
    for recipe in fitted_recipes(large, limits):
        yield case_of(recipe, dtype)


def failing_and_passing(
    own: Implementation, dtype: str, known: Sequence[Recipe]
) -> tuple[list[Case], list[Case]]:
    """Calls that fail, the smallest first, and calls that are right."""
    failing, passing = list[Case](), list[Case]()

    def sort(cases: Iterable[Case]) -> None:
        for case in cases:
            if (kind := outcome(own, case)) not in SAYS_NOTHING:
                (passing if kind == "passed" else failing).append(case)

    sort(chain((case_of(recipe, dtype) for recipe in known), calls_of(own, dtype)))
    if not failing:
        sort(larger_calls(own, dtype))
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


def changed_copy(copies: Copies, change: Change) -> Implementation | None:
    """The implementation of a file with a change; None where there is none."""
    try:
        with within(LONGEST):
            return copies.changed(change)
    except (TooSlow, Exception, SystemExit):
        return None


def is_right(own: Implementation, cases: list[Case], longest: float) -> bool:
    """
    Tell whether nothing is said against it; a right answer may leave nothing to judge. What says
    something is asked first the next time.
    """
    for at, case in enumerate(cases):
        if outcome(own, case, longest) not in ("passed", ""):
            cases.insert(0, cases.pop(at))
            return False
    return True


def reached_by(copies: Copies, cases: Sequence[Case]) -> Callable[[ast.stmt], bool]:
    """Whether each of the first of these cases runs a statement of the file, loaded afresh."""

    def call(case: Case) -> None:
        if own := copies.original():
            outcome(own, case)

    few = cases[:TRACED] if copies.path else ()
    runs = [lines_run(copies.place, partial(call, case)) for case in few]
    return reached_in(copies.text, runs) if runs else lambda _: True


def first_wrong(
    backend: Backend, dtype: str, name: str, known: Path
) -> tuple[Implementation, list[Case], list[Case]]:
    """
    The first implementation of a file, of this name or operation, that is wrong, with calls that
    show it. Raises ValueError where none is, or it cannot be loaded.
    """
    if words := backend.broken or backend.missing:
        raise ValueError(f"{backend.source}: {words}")
    for own in backend.implementations:
        if name not in ("", own.name, own.operation.forward.name):
            continue

        before = [Recipe(**plain) for plain in json.loads(known.read_text())]
        failing, passing = failing_and_passing(own, dtype, before)
        if failing:
            return own, failing, passing
    raise ValueError(f"{backend.source}: no call in {dtype} fails: there is nothing to mend")


Tell = Callable[[dict[str, Any]], None]


def search(source: str, dtype: str, folder: str, name: str, begin: int, tell: Tell) -> None:
    """
    Say what is judged, the number of each change before it is tried, and which ones mend it; until
    there is none left or whoever began it is gone.
    """
    asks = os.getppid()
    sys.path.append(str(Path(parse_source(source).place).resolve().parent))
    own, failing, passing = first_wrong(loaded(source), dtype, name, Path(folder, KNOWN))
    tell({"name": own.name, "failing": len(failing), "passing": len(passing)})
    copies, at = Copies(own, folder), mmap(-1, 8)
    is_reached, cases = reached_by(copies, failing), [*failing, *passing]
    longest = min(LONGEST, max(SHORTEST, SLOWER * seconds_of(own, cases)))

    def try_all() -> None:
        changes = enumerate(islice(single_changes(copies.text, is_reached), begin, None), begin + 1)
        for number, change in changes:
            at[:8] = number.to_bytes(8)
            tell({"tried": number})
            faulthandler.dump_traceback_later(STUCK, exit=True, file=sys.stderr)
            changed = changed_copy(copies, change)
            fresh = calls_that_it_mends(changed, cases, dtype, longest)
            beside = left_beside(own, copies.written(change), dtype) if fresh else SPOILT
            if beside != SPOILT:
                told = {"line": change.line, "words": change.words, "text": change.text}
                tell(told | {"fresh": fresh, "at": number, "beside": beside})

    while not comes_to_its_end(try_all) and int.from_bytes(at[:8]) > begin:
        begin = int.from_bytes(at[:8])
        if os.getppid() != asks:
            return


def seconds_of(own: Implementation, cases: Sequence[Case]) -> float:
    """How long the slowest of these calls takes."""
    seconds = [time.perf_counter()]
    for case in cases:
        outcome(own, case)
        seconds.append(time.perf_counter())
    return max(after - before for before, after in pairwise(seconds))


def calls_that_it_mends(
    changed: Implementation | None, cases: list[Case], dtype: str, longest: float
) -> int:
    """Count the fresh calls that are right too, where all others are and none of these is wrong."""
    if changed is None or not is_right(changed, cases, longest):
        return 0
    fresh = 0
    for case in chain(calls_of(changed, dtype, seed=1), larger_calls(changed, dtype)):
        kind = outcome(changed, case)
        if kind not in ("passed", *SAYS_NOTHING):
            return 0
        fresh += kind == "passed"
    return fresh


SPOILT, STILL_WRONG = "spoilt", "{} is wrong as before"


def left_beside(own: Implementation, changed: Implementation | None, dtype: str) -> str:
    """
    Say which output or gradient beside it stays wrong, "" of none; or that one is right at the cost
    of another.
    """
    found = ""
    for after in changed.backend.implementations if changed else ():
        before = with_name(own.backend.implementations, after.name)
        if before and before is not own and after.operation.forward is own.operation.forward:
            for case in islice(calls_of(before, dtype, seed=1), BESIDE):
                now = outcome(after, case)
                if now not in ("passed", "", TOO_SLOW) and outcome(before, case) == "passed":
                    return SPOILT
                if now not in ("passed", *SAYS_NOTHING):
                    found = STILL_WRONG.format(after.name)
    return found


def comes_to_its_end(work: Callable[[], None]) -> bool:
    """
    Work in a copy of this process, which may end for it; beside a GPU, of which no copy can make
    use, here.
    """
    if devices():
        work()
        return True
    if child := os.fork():
        return os.waitpid(child, 0)[1] == 0
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def main(source: str, dtype: str, folder: str, name: str, begin: str) -> None:
    """Write what is found to standard output, a line each; what a file prints goes nowhere."""
    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(one: dict[str, Any]) -> None:
        os.write(told, (json.dumps(one) + "\n").encode())

    try:
        search(source, dtype, folder, name, int(begin), tell)
    except ValueError as error:
        tell({"refused": str(error)})


def find_repairs(
    source: str,
    dtype: str,
    seconds: float,
    folder: str,
    name: str = "",
    most: int = MOST,
    known: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """
    Search for so many seconds: ``name`` of what is wrong, how many calls are ``failing`` and
    ``passing``, how many changes were ``tried``, which ``mend`` it, at ``most`` so many, and
    whether these were ``all``; ``known`` are recipes of calls that failed. Raises ValueError where
    nothing is wrong, or the file cannot be judged so.
    """
    Path(folder, KNOWN).write_text(json.dumps([*known]))
    end = time.monotonic() + seconds
    found: dict[str, Any] = {"mend": [], "tried": 0, "all": False}
    while time.monotonic() < end and len(found["mend"]) < most and not found["all"]:
        begin = found["tried"]
        command = [sys.executable, "-m", "attnverify.repair", source, dtype, folder, name]
        with ended_at(end, [*command, str(begin)]) as child:
            for line in child.stdout or ():
                take(found, json.loads(line))
                if len(found["mend"]) == most:
                    break
            else:
                child.wait()
        found["all"] = child.returncode == 0
        if "name" not in found and time.monotonic() < end:
            raise ValueError(f"{source}: it ends the process in which it is called")
    return found


@contextmanager
def ended_at(end: float, command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process, and its copies, until then or until nobody listens to it."""
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # a process of several threads has no copy
    )

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = Timer(max(end - time.monotonic(), 0.1), kill)
    timer.start()
    try:
        yield child
    finally:
        timer.cancel()
        kill()
        child.communicate()


def take(found: dict[str, Any], told: dict[str, Any]) -> None:
    """Add a line of the other process to what is found."""
    if "refused" in told:
        raise ValueError(told["refused"])
    if "words" in told:
        found["mend"].append(told)
    else:
        found.update(told)
