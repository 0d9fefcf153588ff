"""
Who touched which place last: what a race is found by.

A place is as many bytes as the smallest access of the kernel. Whoever touches it leaves a stamp: an
actor (a warp of a block between two of its barriers, or a block of a grid), whether the access was
atomic, and the instruction. Two accesses by different actors, one of them a write and not both
atomic, are a race, unless something orders them: a :class:`~attnverify.ptx.storage.order.Order`
says so for the memory of the device.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from attnverify.ptx.kinds import Array

__all__ = ["Actors", "Conflict", "Shadow"]

ATOMIC = np.int64(1 << 20)
SHIFT = np.int64(21)
PLACE = (1 << 20) - 1


class Actors(NamedTuple):
    """
    Of some lanes: who each is, the first actor of the time that is not ordered yet, one that
    stands for several.
    """

    who: Array
    since: Array
    several: Array
    group: Array

    def of(self, lanes: Array) -> "Actors":
        return Actors(self.who[lanes], self.since[lanes], self.several[lanes], self.group[lanes])


class Conflict(NamedTuple):
    """The first lane of an access that raced, and the index of the other instruction."""

    lane: int
    other: int
    wrote: bool
    whose: int = 0


class Ordered(Protocol):
    """What knows whether actors are ordered, and makes numbers that stand for several."""

    def unordered(
        self, whose: Array, actors: Actors, where: Array, writes: bool = False
    ) -> Array: ...

    def together(self, before: Array, mine: Array) -> Array: ...

    def joined_at(self, places: Array, before: Array, mine: Array) -> Array: ...


MOST = 1 << 20
"""So many reads are kept aside before they are stamped."""


class Shadow:
    """
    The stamps of the last writer and of the last readers of each place.

    Reads matter only if somebody writes there in the same time: until then they are kept aside, and
    forgotten when the time is over. ``time`` has the first actor of now for each group of lanes.
    """

    def __init__(
        self, places: int, time: Array | None = None, order: Ordered | None = None
    ) -> None:
        self.time, self.order, self.places = time, order, places
        self.aside: list[tuple[Array, Actors, int]] = []
        self.kept = 0
        self.written = self.stamped = False

    @cached_property
    def writer(self) -> Array:
        """Made when somebody writes: for each byte that is only read it would be eight."""
        return np.zeros(self.places, np.int64)

    @cached_property
    def reader(self) -> Array:
        return np.zeros(self.places, np.int64)

    @cached_property
    def meeting(self) -> Array:
        """Where several actors meet in one step; nowhere between two steps."""
        return np.zeros(self.places, bool)

    def read(self, places: Array, actors: Actors, index: int) -> Conflict | None:
        """Lanes read places [lanes each]."""
        self.note_read(places, actors, index)
        return self.foreign(self.writer[places], actors, True) if self.written else None

    def write(
        self, places: Array, actors: Actors, index: int, idle: Callable[[], Array] | None = None
    ) -> Conflict | None:
        """
        Lanes write. Those that are ``idle``, asked where another wrote too, write what stands
        there: whoever comes first, nothing differs, so that both are its writers.
        """
        found, busy = self.against(places, actors), np.arange(len(places))
        if found is not None and found.wrote and idle is not None and (same := idle()).any():
            read = self.stamped and self.foreign(self.reader[places], actors, False)
            if read:
                return read
            busy = np.flatnonzero(~same)
            self.mark(self.writer, places[same], actors.of(same), index)
            places, actors = places[busy], actors.of(busy)
            found = self.against(places, actors) if busy.size else None
        self.writer[places] = ((actors.who << SHIFT) | index)[:, None]
        self.written = True
        return found and found._replace(lane=int(busy[found.lane]))

    def write_freely(self, places: Array) -> None:
        """Lanes write what is made to race: all that is known then is that it was written."""
        self.writer[places] = np.maximum(self.writer[places], 1)

    def update(self, places: Array, actors: Actors, index: int) -> Conflict | None:
        """Lanes read and write atomically."""
        found = self.against(places, actors, atomic=True)
        self.mark(self.writer, places, actors, index | int(ATOMIC))
        self.written = True
        return found

    def against(self, places: Array, actors: Actors, atomic: bool = False) -> Conflict | None:
        """Tell what a write collides with."""
        self.stamp_reads()
        found = None
        if self.written:
            stamps = self.writer[places]
            found = self.foreign(
                np.where(stamps & ATOMIC, 0, stamps) if atomic else stamps, actors, True
            )
        return found or (self.foreign(self.reader[places], actors, False) if self.stamped else None)

    def note_read(self, places: Array, actors: Actors, index: int) -> None:
        self.aside.append((places, actors, index))
        self.kept += places.size
        if self.kept > MOST:
            self.forget_repeated()
            if self.kept > MOST // 2:
                self.stamp_reads()

    def forget_repeated(self) -> None:
        """Keep one of the reads of the same places by the same lanes and instruction."""
        kept = {
            (index, actors.who.tobytes(), places.tobytes()): (places, actors, index)
            for places, actors, index in self.aside
        }
        self.aside = [*kept.values()]
        self.kept = sum(places.size for places, _, _ in self.aside)

    def stamp_reads(self) -> None:
        """Stamp the reads that were kept aside, unless their time is over."""
        for places, actors, index in self.aside:
            if self.time is not None:
                fresh = actors.since == self.time[actors.group]
                if not fresh.any():
                    continue
                if not fresh.all():
                    places, actors = places[fresh], actors.of(fresh)
            self.mark(self.reader, places, actors, index)
            self.stamped = True
        self.aside, self.kept = [], 0

    def calm(self) -> None:
        """All actors are others from now on: nothing before is of their time."""
        self.aside, self.kept = [], 0
        self.written = self.stamped = False

    def foreign(self, stamps: Array, actors: Actors, wrote: bool) -> Conflict | None:
        """Find the first stamp that another actor left in the same time."""
        whose = stamps >> SHIFT
        bad = (whose >= actors.since[:, None]) & (whose != actors.who[:, None])
        if bad.any() and self.order is not None:
            bad = self.order.unordered(whose, actors, bad, not wrote)
        if not bad.any():
            return None
        lane, place = (int(at[0]) for at in np.nonzero(bad))
        return Conflict(
            lane, int(stamps[lane, place]) & PLACE, wrote, int(stamps[lane, place] >> SHIFT)
        )

    def mark(self, stamps: Array, places: Array, actors: Actors, index: int) -> None:
        """Leave stamps that say who touched a place, or that several did."""
        before = stamps[places] >> SHIFT
        others = (before >= actors.since[:, None]) & (before != actors.who[:, None])
        who = np.broadcast_to(actors.who[:, None], others.shape)
        if others.any() and self.order is not None:
            others = self.order.unordered(before, actors, others)
        stamps[places] = who << SHIFT | index
        left = stamps[places] >> SHIFT != who
        if left.any():  # different actors at one place: the last of them has overwritten the others
            self.meeting[places[left]] = True
            met = self.meeting[places]
            self.meeting[places] = False
            stamps[places[met]] = self.of_all(places, actors, before, others, met) << SHIFT | index
            others = others & ~met
        if others.any():
            stamps[places[others]] = self.of_both(actors, before, others) << SHIFT | index

    def of_both(self, actors: Actors, before: Array, others: Array) -> Array:
        """Numbers that stand for the lanes, and for who touched a place in the same time."""
        lanes, _ = np.nonzero(others)
        if self.order is None:
            return actors.several[lanes]
        return self.order.together(before[others], actors.who[lanes])

    def of_all(
        self, places: Array, actors: Actors, before: Array, others: Array, met: Array
    ) -> Array:
        """Numbers that stand for all lanes that meet at a place, and for who touched it before."""
        lanes, _ = np.nonzero(met)
        if self.order is None:
            return actors.several[lanes]
        who = actors.who[lanes]
        return self.order.joined_at(places[met], np.where(others[met], before[met], who), who)
