"""
The surroundings of a call: the state of the whole process that an implementation has to leave as it
was.

:func:`look` reads it, :func:`restore` says what has changed since and puts it back.
:mod:`attnverify.judge.process_state` lists what is read.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnverify.judge.process_state import MISSING, PARTS, Objects, Part, Values, parts

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


def look(vital: bool = False) -> Values:
    """The surroundings as they are, or those alone that the judge depends on."""
    return {part.words: kept(part.read()) for part in (VITAL if vital else parts())}


def kept(now: Any) -> Any:
    """What was read, as it will stay whatever happens to the modules."""
    return now.copy() if isinstance(now, Objects) else now


def restore(before: Values, keep: bool = False) -> list[Change]:
    """
    What has changed since the look; it is put back where that can be done. ``keep``: only what is
    vital is put back.

    Afterwards ``before`` tells the surroundings as they are, and a next call may be held to it
    without another look.
    """
    found = []
    for part in VITAL if before.keys() <= VITAL_WORDS else parts():
        now, then = part.read(), before.get(part.words, MISSING)
        if then is not MISSING:
            if same(then, now):
                continue
            found.append(
                Change(
                    told(part, then, now),
                    part.once or part.stir is not None,
                    now if part.stir else None,
                )
            )
            if part.write is not None and (part.vital or not keep):
                with suppress(Exception):  # what cannot be put back has been told
                    part.write(then)
                    continue
        before[part.words] = kept(now)
    return found


def stir(before: Values) -> None:
    """Move all random numbers on, and note where they are."""
    for part in parts():
        if part.stir is not None:
            part.stir()
            before[part.words] = part.read()


def lasting(first: list[Change], second: list[Change]) -> list[str]:
    """
    What two calls changed, in words: what either did, or both where once may be chance; random
    numbers were stirred between them.
    """
    both = [change for change in second if change.state is None or change in first]
    return list(
        dict.fromkeys(
            str(change) for change in (*first, *second) if not change.once or change in both
        )
    )


def same(then: Any, now: Any) -> bool:
    """Whether nothing was replaced; ``Objects`` may grow, and of a set some may have ended."""
    if isinstance(then, frozenset):
        return bool(now <= then)
    return not then.differs(now) if isinstance(then, Objects) else bool(then == now)


def told(part: Part, then: Any, now: Any) -> str:
    """``NumPy's error state (divide: warn -> ignore)``"""
    if isinstance(then, Objects):
        return f"{part.words} ({', '.join(then.differs(now)[:3])})"
    if isinstance(then, frozenset):
        return f"{part.words} ({', '.join(sorted(map(str, now - then))[:3])})"
    if isinstance(then, dict):
        names = [
            name for name in {**then, **now} if then.get(name, MISSING) != now.get(name, MISSING)
        ][:3]
        if part.shown == "keys":
            return f"{part.words} ({', '.join(map(os.fsdecode, names))})"
        changes = (f"{name}: {brief(then.get(name))} -> {brief(now.get(name))}" for name in names)
        return f"{part.words} ({', '.join(changes)})"
    return f"{part.words} ({brief(then)} -> {brief(now)})" if part.shown == "all" else part.words


def brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
