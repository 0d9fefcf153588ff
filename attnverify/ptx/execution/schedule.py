"""
Which blocks run when: so many together as there are lanes, in a drawn order; those that only wait
for others are laid aside until these have had their turn.

Where all that are left stand as they stood after the last round, and the round before, and nobody
has changed what others wait for, nobody ever will: a deadlock.
"""

from collections.abc import Iterator
from typing import NoReturn

from attnverify.ptx.execution.machine import Machine
from attnverify.ptx.findings import Finding

__all__ = ["run_all"]

ROUNDS = 3
"""So many rounds without a change are a deadlock."""


def run_all(waiting: Iterator[Machine]) -> Iterator[Machine]:
    """Run machines, new ones as long as those at work only wait; each when it has ended."""
    aside: list[Machine] = []
    seen, same = "", 0
    at_work: list[Machine] = []
    try:
        for machine in waiting:
            at_work.append(machine)
            if machine.run():
                yield at_work.pop()
            else:
                aside.append(machine)
                while ended := [each for each in aside if each.run()]:
                    aside = [each for each in aside if each not in ended]
                    at_work = list(aside)
                    yield from ended
        while aside:
            ended = [each for each in aside if each.run()]
            aside = [each for each in aside if each not in ended]
            at_work = list(aside)
            yield from ended
            now = "" if ended else " ".join(each.fingerprint() for each in aside)
            seen, same = now, same + 1 if now and now == seen else 0
            if same == ROUNDS:
                tell_stuck(aside)
    except KeyboardInterrupt as stop:
        for machine in at_work:
            stop.add_note(describe(machine))
        raise


def describe(machine: Machine) -> str:
    """In words, where the blocks of a machine stand."""
    places = [f"  {place}: {count} threads" for place, count in machine.standing()]
    return "\n".join([f"{len(machine.blocks)} blocks of {machine.kernel.name} stand at:", *places])


def tell_stuck(stuck: list[Machine]) -> NoReturn:
    """Threads wait for ever for what nobody changes: where, and who changed it last."""
    for each in stuck:
        if each.phases is not None:
            each.phases.watch_bytes()
    machine = next((each for each in stuck if each.watches is not None), stuck[0])
    count = sum(int((each.alive & (each.waiting == 0)).sum()) for each in stuck)
    if machine.watches is None:
        place, _ = machine.standing()[0]
        told = f"{count} threads go round for ever, and nobody else is left to change anything"
        raise Finding("deadlock", told, place)
    at, lane, array, offset = machine.watches
    told = f"{count} threads wait for ever for {array.waits(offset)}"
    change, other = machine.memory.changes.last.get((array.start, offset)), None
    if change is not None:
        other = machine.place_of(change.at, change.block, change.thread)
    raise Finding("deadlock", told, machine.place(lane, at), other)
