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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from mmap import mmap
from pathlib import Path
from threading import Timer
from typing import Any

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.source import parse_source
from attnverify.device_assignment import devices
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.whereabouts.first_line import find_parting
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case
from attnverify.judge.observation import observe, passed_observation
from attnverify.machine import count_processors
from attnverify.repair.calls import (
    LONGEST,
    SHORTEST,
    SLOWER,
    SPOILT,
    TooSlow,
    calls_that_it_mends,
    failing_and_passing,
    left_beside,
    outcome,
    seconds_of,
    within,
)
from attnverify.repair.changes import Change, single_changes
from attnverify.repair.copies import Copies, lines_run, reached_in
from attnverify.verdicts.found_out import loaded

STUCK = 20
"""Seconds after which a change that cannot be interrupted ends its process."""
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


def changed_copy(copies: Copies, change: Change) -> Implementation | None:
    """The implementation of a file with a change; None where there is none."""
    try:
        with within(LONGEST):
            return copies.changed(change)
    except (TooSlow, Exception, SystemExit):
        return None


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


def suspected_in(
    copies: Copies, failing: Sequence[Case], passing: Sequence[Case]
) -> Callable[[ast.stmt], bool] | None:
    """
    Whether a statement stands between the last variable that is right and the first that is not;
    None where nothing tells.
    """
    own, found = copies.own, None
    with suppress(TooSlow), within(LONGEST):
        if copies.path and not own.backend.has_kernels:
            right = [passed_observation(own, case) for case in passing]
            found, _ = find_parting(own, observe(own, failing), right, CallBudget())
    if found is None:
        return None
    return reached_in(copies.text, [{found.line, *range(found.since + 1, found.line)}])


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
    suspected = suspected_in(copies, failing, passing)
    longest = min(LONGEST, max(SHORTEST, SLOWER * seconds_of(own, cases)))
    begun, at, spent = [begin] * parts, mmap(-1, 8 * parts), mmap(-1, 8 * parts)

    def try_part(part: int) -> None:
        own_place = slice(8 * part, 8 * part + 8)
        before = int.from_bytes(spent[own_place])
        copies.folder = str(Path(folder, str(part)))
        Path(copies.folder).mkdir(exist_ok=True)
        changes = enumerate(single_changes(copies.text, *reached, suspected=suspected), 1)
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
    tell: Tell = lambda found: None,
) -> dict[str, Any]:
    """
    Search for so many seconds of each processor, thrice as many at most where others use it too:
    ``name`` of what is wrong, how many calls are ``failing`` and ``passing``, how many changes were
    ``tried``, which ``mend`` it, at ``most`` so many, and whether these were ``all``; ``known`` are
    recipes of calls that failed; ``tell`` hears of what is found so far. Raises ValueError where
    nothing is wrong, or the file cannot be judged so.
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
                tell(found)
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
