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
from attnverify.machine import count_processors
from attnverify.repair.changes import Change, single_changes
from attnverify.repair.copies import Copies, lines_run, reached_in, with_name
from attnverify.verdicts.fitting import fitted_recipes
from attnverify.verdicts.found_out import loaded

DRAWS, MORE_DRAWS, BESIDE = 60, 5, 20
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
SAYS_NOTHING, RAISED = ("", TOO_SLOW, REFUSED), "raised"
TRACED = 6
"""So many calls are watched for the lines that they run."""
KNOWN, TEXT = "known.json", "{}.txt"
"""In the folder of the copies: the recipes of calls that failed before, the text of a mend."""
MOST_PARTS, BUSY = 8, 3
"""
So many copies of the process search at once at most, and take so many times the seconds that they
have of a processor each where others use it too.
"""
MOST, EVERY = 3, 2**40
"""So many changes are told at most; more than there are."""


class TooSlow(Exception):
    """A call takes longer than it may."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooSlow where what is done takes more of the processor's time, whoever else uses it."""

    def end(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)  # again, should it be caught
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


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
    """
    Calls that fail, of one kind, the smallest first, and calls that are right. What raises an error
    and what is wrong are two kinds, and what is known to fail says which is meant.
    """
    failing, passing = list[tuple[Case, bool]](), list[Case]()

    def sort(cases: Iterable[Case]) -> None:
        for case in cases:
            if (kind := outcome(own, case)) == "passed":
                passing.append(case)
            elif kind not in SAYS_NOTHING:
                failing.append((case, kind.startswith(RAISED)))

    sort(case_of(recipe, dtype) for recipe in known)
    meant = [is_raised for _, is_raised in failing]
    sort(calls_of(own, dtype))
    for seed in range(2, 2 + MORE_DRAWS):
        if not failing:
            sort(calls_of(own, dtype, seed))
    if not failing:
        sort(larger_calls(own, dtype))
    if failing:
        sort(case_of(recipe, dtype) for recipe in varied([x.recipe for x, _ in failing]))
        meant = meant or sorted(is_raised for _, is_raised in failing)
    found = [case for case, is_raised in failing if is_raised == meant[len(meant) // 2]]
    return sorted(found, key=size_of)[:MOST_FAILING], sorted(passing, key=size_of)[:MOST_PASSING]


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


def reached_by(
    copies: Copies, failing: Sequence[Case], passing: Sequence[Case] = ()
) -> list[Callable[[ast.stmt], bool]]:
    """
    Whether each of the first calls that fail runs a statement of the file, loaded afresh; before
    that, whether none that passes does, too.
    """

    def run_by(cases: Sequence[Case]) -> list[set[int]]:
        few = cases[:TRACED] if copies.path else ()
        return [lines_run(copies.place, partial(call, case)) for case in few]

    def call(case: Case) -> None:
        if own := copies.original():
            outcome(own, case)

    runs, right = run_by(failing), set[int]().union(*run_by(passing))
    if not runs:
        return [lambda _: True]
    is_reached = reached_in(copies.text, runs)
    return [lambda own: own.lineno not in right and is_reached(own), is_reached][not right :]


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


def search(
    source: str, dtype: str, folder: str, name: str, begin: int, seconds: float, tell: Tell
) -> None:
    """
    Say what is judged, the number of each change before it is tried, and which ones mend it; until
    there is none left, so many seconds of each processor are spent or whoever began it is gone.
    """
    asks = os.getppid()
    sys.path.append(str(Path(parse_source(source).place).resolve().parent))
    own, failing, passing = first_wrong(loaded(source), dtype, name, Path(folder, KNOWN))
    parts = 1 if devices() else min(MOST_PARTS, count_processors())
    failed = {"failing": len(failing), "passing": len(passing)}
    tell({"name": own.name, "parts": parts} | failed)
    copies = Copies(own, folder)
    reached, cases = reached_by(copies, failing, passing), [*failing, *passing]
    longest = min(LONGEST, max(SHORTEST, SLOWER * seconds_of(own, cases)))
    begun, at, spent = [begin] * parts, mmap(-1, 8 * parts), mmap(-1, 8 * parts)

    def try_part(part: int) -> None:
        own_place = slice(8 * part, 8 * part + 8)
        before = int.from_bytes(spent[own_place])
        copies.folder = str(Path(folder, str(part)))
        Path(copies.folder).mkdir(exist_ok=True)
        changes = enumerate(single_changes(copies.text, *reached), 1)
        for number, change in islice(changes, begun[part], None):
            if number % parts != part:
                continue
            at[own_place] = number.to_bytes(8)
            spent[own_place] = (milliseconds := before + int(1e3 * time.process_time())).to_bytes(8)
            if milliseconds > 1e3 * seconds:
                tell({"cut": True})
                return
            tell({"part": part, "tried": number})
            faulthandler.dump_traceback_later(STUCK, exit=True, file=sys.stderr)
            changed = changed_copy(copies, change)
            fresh = calls_that_it_mends(own, changed, cases, dtype, longest)
            beside = left_beside(own, copies.written(change), dtype) if fresh else SPOILT
            if beside != SPOILT:
                Path(folder, TEXT.format(number)).write_text(change.text)
                told = {"line": change.line, "words": change.words}
                tell(told | {"fresh": fresh, "at": number, "beside": beside})
        tell({"part": part, "tried": EVERY})

    def goes_on(part: int) -> bool:
        begun[part], before = int.from_bytes(at[8 * part : 8 * part + 8]), begun[part]
        return begun[part] > before and os.getppid() == asks

    work_in_copies(try_part, parts, goes_on)


def seconds_of(own: Implementation, cases: Sequence[Case]) -> float:
    """How long the slowest of these calls takes."""
    seconds = [time.process_time()]
    for case in cases:
        outcome(own, case)
        seconds.append(time.process_time())
    return max(after - before for before, after in pairwise(seconds))


def calls_that_it_mends(
    own: Implementation,
    changed: Implementation | None,
    cases: list[Case],
    dtype: str,
    longest: float,
) -> int:
    """
    Count the fresh calls that are right too, where all others are and none of these is wrong, or
    raises what it does not raise unchanged.
    """
    if changed is None or not is_right(changed, cases, longest):
        return 0
    fresh = 0
    for case in chain(calls_of(changed, dtype, seed=1), larger_calls(changed, dtype)):
        kind = outcome(changed, case)
        is_as_before = kind.startswith(RAISED) and kind == outcome(own, case)
        if kind not in ("passed", *SAYS_NOTHING) and not is_as_before:
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


def work_in_copies(work: Callable[[int], None], parts: int, goes_on: Callable[[int], bool]) -> None:
    """
    Work at each part in a copy of this process, which may end for it and is then made anew; beside
    a GPU, of which no copy can make use, here.
    """
    if devices():
        work(0)
        return
    left = {copied(work, part): part for part in range(parts)}
    while left:
        process, status = os.wait()
        if (part := left.pop(process, None)) is not None and status and goes_on(part):
            left[copied(work, part)] = part


def copied(work: Callable[[int], None], part: int) -> int:
    if child := os.fork():
        return child
    try:
        work(part)
        os._exit(0)
    finally:
        os._exit(1)


def main(source: str, dtype: str, folder: str, name: str, begin: str, seconds: str) -> None:
    """Write what is found to standard output, a line each; what a file prints goes nowhere."""
    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def tell(one: dict[str, Any]) -> None:
        os.write(told, (json.dumps(one) + "\n").encode())

    try:
        search(source, dtype, folder, name, int(begin), float(seconds), tell)
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
    Search for so many seconds of each processor, thrice as many at most where others use it too:
    ``name`` of what is wrong, how many calls are ``failing`` and ``passing``, how many changes were
    ``tried``, which ``mend`` it, at ``most`` so many, and whether these were ``all``; ``known`` are
    recipes of calls that failed. Raises ValueError where nothing is wrong, or the file cannot be
    judged so.
    """
    Path(folder, KNOWN).write_text(json.dumps([*known]))
    end = time.monotonic() + BUSY * seconds
    found: dict[str, Any] = {"mend": [], "tried": 0, "all": False, "cut": False}
    while time.monotonic() < end and not (found["all"] or found["cut"]):
        begin, reached = found["tried"], dict[int, int]()
        command = [sys.executable, "-m", "attnverify.repair", source, dtype, folder, name]
        with ended_at(end, [*command, str(begin), str(seconds)]) as child:
            for line in child.stdout or ():
                take(found, json.loads(line), reached, folder)
                if len(found["mend"]) >= most and is_passed(found["mend"][most - 1], reached):
                    return found | {"mend": found["mend"][:most]}
            child.wait()
        found["all"] = child.returncode == 0 and not found["cut"]
        if "name" not in found and time.monotonic() < end:
            raise ValueError(f"{source}: it ends the process in which it is called")
    return found | {"mend": found["mend"][:most]}


def is_passed(mend: dict[str, Any], reached: dict[int, int]) -> bool:
    """Tell whether every copy has tried all changes before this one."""
    return all(number >= mend["at"] for number in reached.values())


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


def take(found: dict[str, Any], told: dict[str, Any], reached: dict[int, int], folder: str) -> None:
    """Add a line of the other processes to what is found, and to how far each has come."""
    if "refused" in told:
        raise ValueError(told["refused"])
    if "words" in told:
        text = Path(folder, TEXT.format(told["at"])).read_text()
        found["mend"] = sorted([*found["mend"], told | {"text": text}], key=lambda x: x["at"])
    elif "cut" in told:
        found.update(told)
    elif "parts" in told:
        reached.update(dict.fromkeys(range(told.pop("parts")), 0))
        found.update(told)
    else:
        reached[told["part"]] = told["tried"]
        if told["tried"] < EVERY:
            found["tried"] = max(found["tried"], told["tried"])
