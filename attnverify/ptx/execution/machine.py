"""
The machine: some blocks of a grid, all their threads side by side, one instruction at a time.

Threads that stand at the same instruction go on together, those of the least rank first, until they
meet the next ones: so threads that took different ways join again. Blocks that are executed
together share every NumPy call. Threads that go round in a loop in which they only look at what
others may change, rest until those have had their turn: of these blocks, and of the ones behind.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from attnverify.ptx.execution.barriers import release, tell_deadlock
from attnverify.ptx.execution.overflow import find_overflow
from attnverify.ptx.execution.special import special_register
from attnverify.ptx.findings import Finding, Place
from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.errors import Draw
from attnverify.ptx.storage.block import Shared
from attnverify.ptx.storage.bulk.phases import Barrier, Phases
from attnverify.ptx.storage.bulk.traffic import Traffic
from attnverify.ptx.storage.changes import Change
from attnverify.ptx.storage.copies import Copies
from attnverify.ptx.storage.counts import Counts
from attnverify.ptx.storage.device import Allocation, Memory
from attnverify.ptx.storage.groups import Groups
from attnverify.ptx.storage.order import Order
from attnverify.ptx.storage.shadows import Actors

if TYPE_CHECKING:
    from attnverify.ptx.kernel import Kernel

__all__ = ["NEVER", "Machine", "Setup"]

WARP = 32
NEVER = 1 << 62

IDLE, PATIENCE, LONG_PATIENCE = 4, 16, 4096
"""So many turns of a loop before others have theirs: of one that looks at what others may change
and changes nothing of it, as a closed lock has it, of any that looks there, and of any."""


@dataclass(frozen=True)
class Setup:
    """What a launch says to each of its blocks."""

    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    parameters: Array
    shared: int
    races: bool
    register_fences: bool
    longest: int
    until: float = NEVER
    replicated: bool = False
    counts: Counts | None = None


class Apart(Exception):
    """Threads of a warp that rest are needed here: the others wait for them."""


class Watched(NamedTuple):
    """What threads looked at last that others may change: their instruction, a lane, the place."""

    at: int
    lane: int
    array: Allocation | Barrier
    offset: int


class Machine:
    """The state of the blocks that are executed together."""

    def __init__(
        self,
        kernel: "Kernel",
        memory: Memory,
        setup: Setup,
        blocks: Array,
        draw: Draw,
        variables: dict[str, int],
        order: Order,
    ) -> None:
        self.kernel, self.memory, self.setup = kernel, memory, setup
        self.draw, self.variables = draw, variables
        self.count = int(np.prod(setup.threads))
        self.width = -(-self.count // WARP) * WARP
        self.lanes, self.blocks = len(blocks) * self.width, blocks
        thread = np.tile(np.arange(self.width), len(blocks))
        self.block = np.repeat(np.arange(len(blocks)), self.width)
        self.thread, self.warp = thread, thread // WARP
        self.alive = thread < self.count
        self.launched = np.arange(self.width) < self.count
        self.everyone = np.arange(self.lanes)
        self.registers, self.ranks = list(kernel.blank), np.array(kernel.ranks)
        self.shared = Shared(
            len(blocks),
            kernel.dynamic_start + setup.shared if setup.shared else kernel.shared_size,
            kernel.unit("shared"),
            setup.races,
            kernel.asynchronous,
            order if kernel.bulk else None,
        )
        self.own_shared = self.block * self.shared.stride
        """Where the shared memory of each lane's block begins in that of all."""
        self.local = np.full((self.lanes, kernel.local_size), 0xFF, np.uint8)
        self.local_written = np.zeros(self.local.size, bool)
        self.specials: dict[str, Array] = {}
        self.mask: Array | None = None
        self.index, self.steps = 0, 0
        self.at = np.zeros(self.lanes, np.int64)
        self.waiting = np.zeros(self.lanes, np.int64)
        self.expected = np.zeros((len(blocks), 17), np.int64)
        self.arrived = np.zeros((len(blocks), 17), np.int64)
        self.here: Array | None = None
        self.order = order
        self.of_grid: Actors | None = None
        self.phases = Phases(self) if kernel.bulk else None
        self.traffic = Traffic(self) if kernel.bulk else None
        self.resting = np.zeros(self.lanes, bool)
        self.tired = False
        self.polls = 0
        self.count_turns()
        self.watches: Watched | None = None
        self.copies = Copies(self.lanes)
        self.groups = Groups(kernel.asynchronous_registers, self.lanes // WARP)
        self.useful: set[int] = set()
        self.new_epoch()

    def note_use(self, useful: bool) -> None:
        """
        The current instruction, which is there for the order of others, has something to order.
        """
        if useful:
            self.useful.add(self.index)

    def new_epoch(self) -> None:
        self.of_epoch = self.shared.actors(self.block, self.warp)

    @property
    def of_block(self) -> Actors:
        """The actors of all lanes, as shared memory knows them."""
        return self.of_epoch if self.shared.order is None else self.grid_actors()

    def forget_actors(self) -> None:
        """A block's time has gone on."""
        self.of_grid = None

    def pass_barrier(self, blocks: Array | None = None) -> None:
        """Some of the blocks have passed a barrier; None: all of them have."""
        self.shared.pass_barrier(blocks)
        self.order.pass_barrier(self.blocks if blocks is None else self.blocks[blocks])
        self.of_grid = None

    def grid_actors(self) -> Actors:
        """The actors of all lanes among those of the grid, as long as their times stay."""
        if self.of_grid is None:
            self.of_grid = self.order.actors(self.blocks, self.block, self.warp)
        return self.of_grid

    def fence(self, for_block: bool) -> None:
        """The warps of the mask fence what they did."""
        if self.setup.races and self.kernel.waits:
            first = self.active()
            first = first[np.unique(first // WARP, return_index=True)[1]]
            pairs = zip(self.blocks[self.block[first]], self.warp[first], strict=True)
            self.order.fence([(int(block), int(warp)) for block, warp in pairs], for_block)
            self.of_grid = None

    def note_traffic(self, space: str, addresses: Array, lanes: Array, size: int) -> None:
        """Count what memory is made to do, if that was asked for."""
        if self.setup.counts is not None:
            self.setup.counts.note(space, self.place(), addresses, lanes, size)

    def note_watch(self, array: Allocation, offsets: Array, lanes: Array) -> None:
        """Lanes have looked at what others may change."""
        self.watch(self.index, int(lanes[0]), array, int(offsets[0]))

    def watch(self, at: int, lane: int, what: Allocation | Barrier, offset: int) -> None:
        self.watches = Watched(at, lane, what, offset)

    def note_change(self, array: Allocation, offsets: Array, lanes: Array, changed: bool) -> None:
        """Lanes have written what others may wait for."""
        if changed:
            for at, lane in zip(offsets.tolist(), lanes.tolist(), strict=True):
                block = int(self.blocks[self.block[lane]])
                change = Change(self.index, block, int(self.thread[lane]))
                self.memory.changes.note((array.start, at), change)

    # lanes

    def put(self, index: int, x: Array) -> None:
        """Write a register in the lanes of the mask."""
        if self.mask is not None:
            before = self.registers[index]
            x = np.where(self.mask, x, before if before.dtype is x.dtype else before.view(x.dtype))
        self.registers[index] = x

    def active(self) -> Array:
        """List the lanes of the mask, by their numbers."""
        return self.everyone if self.mask is None else np.flatnonzero(self.mask)

    def of(self, actors: Actors, lanes: Array) -> Actors:
        """Those of some lanes."""
        return actors if lanes is self.everyone else actors.of(lanes)

    def full(self, x: Array) -> Array:
        """A lane for each thread."""
        return np.broadcast_to(x, (self.lanes,)) if x.size == 1 else x

    def whole_warps(self, what: str) -> Array:
        """Tell which warps are here; with all their threads, or not at all."""
        if self.mask is None:
            return np.ones(self.lanes // WARP, bool)
        each = self.mask.reshape(-1, WARP)
        some = np.asarray(each.any(1))
        part = some & ~each.all(1)
        if part.any():
            lane = int(np.flatnonzero(self.mask & np.repeat(part, WARP))[0])
            here = int(each[lane // WARP].sum())
            self.fail(
                "partial warp",
                f"{what} is for all threads of a warp at once, and {here} of 32 are here",
                lane,
            )
        return some

    def in_groups(self, members: Array, do: "Callable[[Machine], object]") -> None:
        """
        Do something for a warp, or one after the other for those of its threads that name the same
        members: groups of a warp may come to one instruction at once.
        """
        if members.size == 1:
            do(self)
            return
        before, named = self.mask, self.full(members).reshape(-1, WARP)
        left = np.ones(named.shape, bool) if before is None else before.reshape(-1, WARP).copy()
        try:
            while left.any():
                first = np.argmax(left, axis=1)[:, None]
                group = left & (named == np.take_along_axis(named, first, 1))
                left &= ~group
                if left.any() or self.mask is not before:
                    self.mask = group.reshape(-1)
                do(self)
        finally:
            self.mask = before

    def whole_members(self, what: str, members: Array) -> Array | None:
        """
        [warps 32] which lanes are here: of each warp those that ``members`` names, all of them;
        None if all lanes are.
        """
        if self.mask is None and members.size == 1 and int(members[0]) == 0xFFFFFFFF:
            return None
        here = (
            np.ones((self.lanes // WARP, WARP), bool)
            if self.mask is None
            else self.mask.reshape(-1, WARP)
        )
        named = (
            self.full(members).reshape(-1, WARP, 1) >> np.arange(WARP, dtype=np.uint32)
            & np.uint32(1)
        ).astype(bool)
        wrong = here & (named != here[:, None, :]).any(2)
        if wrong.any():
            lane = int(np.flatnonzero(wrong.reshape(-1))[0])
            told = (
                f"{what} names other threads of the warp than are here: "
                f"{int(self.full(members)[lane]):#x}"
            )
            self.fail("partial warp", told, lane)
        return here

    def special(self, name: str) -> Array:
        """Read a special register."""
        if name not in self.specials:
            self.specials[name] = special_register(self, name[1:]).astype(np.uint32)
        return self.specials[name]

    # findings

    def place(self, lane: int | None = None, index: int | None = None) -> Place:
        index = self.index if index is None else index
        if lane is None:
            return self.place_of(index)
        return self.place_of(index, int(self.blocks[self.block[lane]]), int(self.thread[lane]))

    def place_of(self, index: int, block: int | None = None, thread: int | None = None) -> Place:
        of = self.kernel.program.instructions[index]
        if block is None or thread is None:
            return Place(self.kernel.name, of.text, of.line, of.source)
        where = coordinates(block, self.setup.grid), coordinates(thread, self.setup.threads)
        return Place(self.kernel.name, of.text, of.line, of.source, *where)

    def fail(self, kind: str, message: str, lane: int, other: int | None = None) -> NoReturn:
        """Tell what a lane does wrong at the current instruction."""
        if kind == "partial warp" and self.tired:
            first = lane // WARP * WARP
            if self.resting[first : first + WARP].any():
                raise Apart
        if kind == "partial warp":
            self.stop_first(lane)
        overflow = find_overflow(self, lane) if kind == "out of bounds" else None
        if overflow is not None:
            kind, (told, other) = "overflow", overflow
            message = f"{told}: {message}"
        raise Finding(
            kind, message, self.place(lane), None if other is None else self.place(None, other)
        )

    def stop_first(self, lane: int) -> None:
        """Threads of a lane's warp that are on their way to a trap come first."""
        elsewhere = self.alive & (self.waiting == 0) & (self.at != self.index)
        elsewhere &= np.arange(self.lanes) // WARP == lane // WARP
        if self.mask is not None:
            elsewhere &= ~self.mask
        for index in np.unique(self.at[elsewhere]).tolist():
            if self.kernel.program.stops(index):
                self.here = elsewhere & (self.at == index)
                self.go(index, NEVER)

    # running

    def run(self) -> bool:
        """
        Until all threads have ended, or all that are left only wait for others; whether they have
        ended.
        """
        while True:
            ready = self.alive & (self.waiting == 0)
            if self.tired:
                ready &= ~self.resting
            if not ready.any():
                if not self.alive.any():
                    if self.traffic is not None:
                        self.traffic.check_end()
                    return True
                if not release(self):
                    if not self.tired:
                        tell_deadlock(self)
                    return self.wake()
                continue
            ranks = self.ranks[self.at]
            here = ready & (ranks == ranks[ready].min())
            others = ranks[ready & ~here]
            self.here = None if np.count_nonzero(here) == self.lanes else here
            if not others.size:
                self.count_turns()
            self.go(int(self.at[here.argmax()]), int(others.min()) if others.size else NEVER)

    def wake(self) -> bool:
        """Those that rest have their turn again when others have had theirs."""
        self.resting[:], self.tired = False, False
        self.count_turns()
        return False

    def fingerprint(self) -> str:
        """All that the threads are and will be decided by, and how often others changed it."""
        found = hashlib.sha256(f"{self.memory.changes.count}".encode())
        for x in (self.at, self.waiting, self.alive, *self.registers):
            found.update(np.ascontiguousarray(x).data)
        return found.hexdigest()

    def standing(self) -> list[tuple[Place, int]]:
        """Where the threads that have not ended stand, and how many at each place."""
        at, first, count = np.unique(self.at[self.alive], return_index=True, return_counts=True)
        lanes, last = np.flatnonzero(self.alive)[first], self.kernel.last
        each = zip(lanes.tolist(), at.tolist(), count.tolist(), strict=True)
        return [(self.place(lane, min(index, last)), n) for lane, index, n in each]

    def go(self, index: int, meeting: int) -> None:
        """The threads that are here, until they part, wait, end, rest, or meet the next ones."""
        steps, self.mask, last = self.kernel.steps, self.here, self.kernel.last
        ranks = self.kernel.ranks
        while ranks[index] < meeting:
            if index > last:
                self.end()
                return
            self.index = index
            self.steps += 1
            try:
                then = steps[index](self)
            except Apart:
                self.rest(index)
                return
            index += 1
            if then is not None:
                if then < 0:
                    return
                if then < index:
                    self.watch_time()
                    self.turns += 1
                    if self.turns >= self.patience():
                        self.rest(then)
                        return
                index = then
        self.stand(index)

    def count_turns(self) -> None:
        """Nobody stands behind those who go on: what turns others have to wait for begins now."""
        self.turns, self.since = 0, (self.polls, self.memory.changes.count)

    def patience(self) -> int:
        """So many turns of loops before others have theirs."""
        polls, changes = self.since
        if self.polls - polls < self.turns:
            return LONG_PATIENCE
        return PATIENCE if self.memory.changes.count > changes else IDLE

    def rest(self, index: int) -> None:
        """The threads that are here go on at an instruction when others have had their turn."""
        self.stand(index)
        self.tired = True
        if self.here is None:
            self.resting[:] = True
        else:
            self.resting |= self.here

    def watch_time(self) -> None:
        if self.steps > self.setup.longest:
            lane = int(self.active()[0])
            self.fail("endless", f"still running after {self.setup.longest} instructions", lane)
        if self.steps & 0xFF == 0 or self.setup.until == NEVER:
            return
        if time.monotonic() > self.setup.until:
            lane = int(self.active()[0])
            self.fail("endless", "still running when its time was over", lane)

    def stand(self, index: int, lanes: Array | None = None) -> None:
        """Some of the threads that are here go on at an instruction later."""
        lanes = self.here if lanes is None else lanes
        if lanes is None:
            self.at[:] = index
        else:
            self.at[lanes] = index

    def end(self) -> None:
        """End the threads of the mask."""
        if self.mask is None:
            self.alive[:] = False
        else:
            self.alive &= ~self.mask


def coordinates(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)
