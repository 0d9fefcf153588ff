"""
The surroundings of a call: the state of the whole process that an implementation has to leave as it
was.

:func:`look` reads it, :func:`restore` says what has changed since and puts it back.
:mod:`attnverify.judge.process_state` lists what is read.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnverify.judge.module_contents import MISSING, ModuleContents, Values
from attnverify.judge.process_state import PARTS, StateItem, state_items

VITAL = [part for part in PARTS if part.vital]
VITAL_WORDS = {part.words for part in VITAL}


@dataclass(frozen=True)
class Change:
    """
    What was changed, in words; ``once`` as in Part; the state that random numbers were left in.
    """

    words: str
    once: bool
    state: Any = None

    def __str__(self) -> str:
        return f"{'changes' if self.state is None else 'seeds'} {self.words}"


def snapshot(vital: bool = False) -> Values:
    """Record the surroundings as they are, or those alone that the judge depends on."""
    return {part.words: copy_reading(part.read()) for part in (VITAL if vital else state_items())}


def copy_reading(now: Any) -> Any:
    """Copy what was read, as it will stay whatever happens to the modules."""
    return now.copy() if isinstance(now, ModuleContents) else now


def diff_and_restore(before: Values, keep: bool = False) -> list[Change]:
    """
    Find what has changed since the look; it is put back where that can be done. ``keep``: only what
    is vital is put back.

    Afterwards ``before`` tells the surroundings as they are, and a next call may be held to it
    without another look.
    """
    found = []
    for part in VITAL if before.keys() <= VITAL_WORDS else state_items():
        then = before.get(part.words, MISSING)
        now = read_again(part, then) if part.ending and then is not MISSING else part.read()
        if then is not MISSING:
            if is_unchanged(then, now):
                continue
            found.append(
                Change(
                    describe_change(part, then, now),
                    part.once or part.stir is not None,
                    now if part.stir else None,
                )
            )
            if part.write is not None and (part.vital or not keep):
                with suppress(Exception):  # what cannot be put back has been told
                    part.write(then)
                    continue
        before[part.words] = copy_reading(now)
    return found


TURNS, TURN = 100, 0.01
"""How often, and after how many seconds, what is about to end is looked at again."""


def read_again(part: StateItem, then: Any) -> Any:
    """
    Read a part again once what was about to end has ended.

    Our own turns are counted, not seconds: on a loaded machine others have few, and so have we.
    """
    for _ in range(TURNS):
        if is_unchanged(then, now := part.read()):
            break
        time.sleep(TURN)
    return now


def advance_random_states(before: Values) -> None:
    """Move all random numbers on, and note where they are."""
    for part in state_items():
        if part.stir is not None:
            part.stir()
            before[part.words] = part.read()


def lasting_changes(first: list[Change], second: list[Change]) -> list[str]:
    """
    List the changes of global state by two calls. State that may change once by chance, such as a
    lazy import, counts if both calls changed it; random numbers were drawn between the two.
    """
    both = [change for change in second if change.state is None or change in first]
    return list(
        dict.fromkeys(
            str(change) for change in (*first, *second) if not change.once or change in both
        )
    )


def is_unchanged(then: Any, now: Any) -> bool:
    """Tell whether nothing was replaced; ``Objects`` may grow, and of a set some may have ended."""
    if isinstance(then, frozenset):
        return bool(now <= then)
    return not then.differs(now) if isinstance(then, ModuleContents) else bool(then == now)


def describe_change(part: StateItem, then: Any, now: Any) -> str:
    """Describe a change: ``NumPy's error state (divide: warn -> ignore)``"""
    if isinstance(then, ModuleContents):
        return f"{part.words} ({', '.join(then.differs(now)[:3])})"
    if isinstance(then, frozenset):
        return f"{part.words} ({', '.join(sorted(map(str, now - then))[:3])})"
    if isinstance(then, dict):
        names = [
            name for name in {**then, **now} if then.get(name, MISSING) != now.get(name, MISSING)
        ][:3]
        if part.shown == "keys":
            return f"{part.words} ({', '.join(map(os.fsdecode, names))})"
        changes = (
            f"{name}: {abbreviate(then.get(name))} -> {abbreviate(now.get(name))}" for name in names
        )
        return f"{part.words} ({', '.join(changes)})"
    return (
        f"{part.words} ({abbreviate(then)} -> {abbreviate(now)})"
        if part.shown == "all"
        else part.words
    )


def abbreviate(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
