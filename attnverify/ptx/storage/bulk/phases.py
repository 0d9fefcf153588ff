"""
Barriers that lie in shared memory (``mbarrier``): arrivals and bytes complete a phase, and whoever
saw it completed comes behind all that arrived in it.

A barrier counts its phases from 0. The present one ends as soon as nobody is missing and no byte;
then the next begins with as many as were wanted. A wait that names a parity is over when the phase
of that parity is, so that a wait for parity 1 of a fresh barrier is over at once.
"""

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.changes import Change
from attnverify.ptx.storage.order import ACTORS, Strength
from attnverify.ptx.storage.reach import WRITE, check_shared, in_shared

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["BYTES", "MOST", "Barrier", "Phases"]

BYTES, MOST = 8, (1 << 20) - 1
"""Of a barrier; arrivals that it may count, and bytes."""

SHARED = -1
"""What stands for shared memory where an array's start stands: of odd phases, the next number."""

PARITIES = (SHARED, SHARED - 1)


class Barrier:
    """One barrier: who is missing in its present phase, how many bytes, and who uses it."""

    low, start = 0, SHARED

    def __init__(self, at: int, count: int, engine: int, index: int, maker: int) -> None:
        self.at, self.engine, self.index, self.maker = at, engine, index, maker
        self.wanted = self.missing = count
        self.bytes = self.phase = 0
        self.fresh = True
        self.watcher: tuple[int, int] | None = None
        """An instruction and a lane that have seen the present phase unfinished."""
        self.users: dict[int, tuple[int, int]] = {}
        """By warp: who it was when it used the barrier last, and with which instruction."""

    def arrive(self, count: int, drop: bool = False) -> bool:
        """So many arrive, for good if they ``drop`` out; whether so many were missing."""
        if drop:
            self.wanted -= count
        self.missing -= count
        return self.missing >= 0

    def end_phase(self) -> None:
        """The next phase begins, if nobody and nothing is missing in this one."""
        if self.missing == 0 and self.bytes == 0:
            self.phase, self.missing, self.fresh = self.phase + 1, self.wanted, True
            self.watcher = None

    def __str__(self) -> str:
        return f"the mbarrier at byte {self.at} of shared memory"

    def waits(self, offset: int) -> str:
        """In words, what the present phase waits for."""
        more = f"{self.bytes} bytes" if self.bytes >= 0 else f"{-self.bytes} bytes too many came"
        return f"{self} in its phase {self.phase}: missing are {self.missing} arrivals, {more}"


class Phases:
    """The barriers of all blocks of a machine, by their offset in the shared memory of all."""

    def __init__(self, m: "Machine") -> None:
        self.m, self.live = m, dict[int, Barrier]()
        self.arrived: dict[tuple[int, int], set[int]] = {}
        """Warps that have arrived at a barrier of their block, and did not wait."""
        self.warps = m.width // 32

    def found(self, addresses: Array, lanes: Array) -> list[tuple[int, Barrier]]:
        """Lanes and the barriers that they name; those must be there, for each to know."""
        offsets = in_shared(self.m, addresses, lanes, BYTES)
        pairs = []
        for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True):
            barrier = self.live.get(offset)
            if barrier is None:
                self.m.fail("unwritten", "there is no mbarrier that was initialised", lane)
            pairs.append((lane, barrier))
        for lane, barrier in {(lane // 32, id(of)): (lane, of) for lane, of in pairs}.values():
            self.note_user(lane, barrier)
        return pairs

    def note_user(self, lane: int, barrier: Barrier) -> None:
        if not self.m.setup.races:
            return
        me = self.actor(lane)
        if not self.m.order.knows(me, barrier.maker):
            self.tell_race(lane, "uses", "initialised", barrier.index)
        barrier.users[int(self.m.warp[lane])] = me, self.m.index

    def actor(self, lane: int) -> int:
        return int(self.m.grid_actors().who[lane])

    def tell_race(self, lane: int, did: str, other: str, index: int) -> NoReturn:
        told = f"a thread {did} an mbarrier that another warp {other}, and nothing orders them"
        self.m.fail("race", told, lane, index)

    # from the first to the last of a barrier

    def begin(self, addresses: Array, lanes: Array, counts: Array) -> None:
        """Lanes make barriers that wait for so many arrivals."""
        offsets = in_shared(self.m, addresses, lanes, BYTES)
        each = list(zip(lanes.tolist(), offsets.tolist(), counts.tolist(), strict=True))
        for lane, offset, count in each:
            if not 1 <= count <= MOST:
                told = f"an mbarrier waits for 1 to {MOST} arrivals, not {count}"
                self.m.fail("mbarrier", told, lane)
            self.end_one(lane, offset)
        check_shared(self.m, offsets, lanes, BYTES, WRITE)
        for lane, offset, count in each:
            at = offset % self.m.shared.stride
            engine = self.warps + len(self.live) % (ACTORS - self.warps)
            maker = self.actor(lane) if self.m.setup.races else 0
            self.live[offset] = Barrier(at, count, engine, self.m.index, maker)
        self.reserve(offsets, True)

    def end(self, addresses: Array, lanes: Array) -> None:
        """Barriers are no more; their bytes may be used again."""
        for lane, barrier in self.found(addresses, lanes):
            self.end_one(lane, self.offset(lane, barrier))
        offsets = in_shared(self.m, addresses, lanes, BYTES)
        check_shared(self.m, offsets, lanes, BYTES, WRITE)

    def end_one(self, lane: int, offset: int) -> None:
        barrier = self.live.pop(offset, None)
        if barrier is None:
            return
        self.reserve(np.array([offset]), False)
        if self.m.setup.races:
            for user, index in barrier.users.values():
                if not self.m.order.knows(self.actor(lane), user):
                    self.tell_race(lane, "ends", "uses", index)

    def offset(self, lane: int, barrier: Barrier) -> int:
        return barrier.at + int(self.m.block[lane]) * self.m.shared.stride

    def reserve(self, offsets: Array, taken: bool) -> None:
        """Only instructions of barriers may touch their bytes."""
        if self.m.shared.watched:
            self.m.shared.barriers[self.m.shared.places(offsets, BYTES)] = taken
            self.m.shared.has_barriers = bool(self.live)

    def watch_bytes(self) -> None:
        """Where all wait, a barrier at which nothing but bytes is missing is told first."""
        for offset, barrier in self.live.items():
            if barrier.watcher is not None and barrier.missing == 0:
                self.m.watch(*barrier.watcher, barrier, offset)

    # a phase

    def arrive(
        self,
        addresses: Array,
        lanes: Array,
        counts: Array,
        expected: Array,
        drop: bool,
        how: Strength,
    ) -> Array:
        """Lanes arrive, and expect bytes; the state of each barrier before."""
        states, told = np.zeros(len(lanes), np.uint64), set[tuple[int, int, int]]()
        for at, (lane, barrier) in enumerate(self.found(addresses, lanes)):
            states[at] = barrier.phase << 32 | barrier.missing
            of = lane // 32, id(barrier), barrier.phase
            if of not in told:
                self.publish(lane, barrier, how)
                told.add(of)
            barrier.bytes += int(expected[at])
            if not barrier.arrive(int(counts[at]), drop):
                self.m.fail("mbarrier", f"more arrive at {barrier} than it waits for", lane)
            self.changed(lane, barrier)
        return states

    def expect(self, addresses: Array, lanes: Array, more: Array) -> None:
        """The present phase waits for more bytes, or for fewer."""
        for (lane, barrier), size in zip(self.found(addresses, lanes), more.tolist(), strict=True):
            barrier.bytes += size
            self.changed(lane, barrier)

    def bring(self, lane: int, barrier: Barrier, size: int) -> None:
        """So many bytes have come: the phase in which they do publishes them."""
        block = int(self.m.blocks[self.m.block[lane]])
        if self.m.setup.races:
            self.m.order.bring(self.place(lane, barrier), block, barrier.engine, not barrier.fresh)
            self.m.forget_actors()
        barrier.fresh = False
        barrier.bytes -= size
        self.changed(lane, barrier)

    def changed(self, lane: int, barrier: Barrier) -> None:
        barrier.end_phase()
        block, thread = int(self.m.blocks[self.m.block[lane]]), int(self.m.thread[lane])
        place = SHARED, self.offset(lane, barrier)
        self.m.memory.changes.note(place, Change(self.m.index, block, thread))

    def publish(self, lane: int, barrier: Barrier, how: Strength) -> None:
        if self.m.setup.races and how.releases:
            block, warp = int(self.m.blocks[self.m.block[lane]]), int(self.m.warp[lane])
            place = self.place(lane, barrier)
            self.m.order.write(place, block, warp, how, not barrier.fresh)
            self.m.forget_actors()
        barrier.fresh = False

    def place(self, lane: int, barrier: Barrier, phase: int | None = None) -> tuple[int, int]:
        """Where a phase publishes what arrives in it."""
        number = barrier.phase if phase is None else phase
        block = int(self.m.blocks[self.m.block[lane]])
        return PARITIES[number & 1], (block << 32) + barrier.at

    def ended(self, addresses: Array, lanes: Array, parities: Array, how: Strength) -> Array:
        """Tell for which lanes the phase of a parity is over; they come behind it then."""
        over = np.zeros(len(lanes), bool)
        known = set[tuple[int, int]]()
        for at, (lane, barrier) in enumerate(self.found(addresses, lanes)):
            over[at] = (barrier.phase & 1) != parities[at]
            pair = lane // 32, id(barrier)
            if over[at] and pair not in known and self.m.setup.races and how.acquires:
                known.add(pair)
                block, warp = int(self.m.blocks[self.m.block[lane]]), int(self.m.warp[lane])
                place = self.place(lane, barrier, int(parities[at]))
                self.m.order.read(place, block, warp, how)
            if not over[at]:
                barrier.watcher = self.m.index, lane
                self.m.watch(self.m.index, lane, barrier, self.offset(lane, barrier))
        return over
