"""
The machine: some blocks of a grid, all their threads side by side, one instruction at a time.

Threads that stand at the same instruction go on together, those at the lowest one first, until they
meet the next ones: so threads that took different ways join again. Blocks that are executed
together share every NumPy call.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from attnverify.ptx.findings import Finding, Place
from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.errors import Draw
from attnverify.ptx.special import special_register
from attnverify.ptx.storage.block import Shared
from attnverify.ptx.storage.copies import Copies
from attnverify.ptx.storage.device import Memory
from attnverify.ptx.storage.groups import Groups
from attnverify.ptx.storage.shadows import Actors

if TYPE_CHECKING:
    from attnverify.ptx.kernel import Kernel

__all__ = ["Machine", "Setup"]

WARP = 32
NEVER = 1 << 62


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
        self.registers = list(kernel.blank)
        self.shared = Shared(
            len(blocks),
            kernel.shared_size + setup.shared,
            kernel.unit("shared"),
            setup.races,
            kernel.asynchronous,
        )
        self.local = np.full((self.lanes, kernel.local_size), 0xFF, np.uint8)
        self.specials: dict[str, Array] = {}
        self.mask: Array | None = None
        self.index, self.steps = 0, 0
        self.at = np.zeros(self.lanes, np.int64)
        self.waiting = np.zeros(self.lanes, np.int64)
        self.expected = np.zeros((len(blocks), 17), np.int64)
        self.here: Array | None = None
        number = blocks[self.block] + 1
        self.of_grid = Actors(number, np.ones_like(number), np.full_like(number, 1 << 40), number)
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
        self.of_block = self.shared.actors(self.block, self.warp)

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
        of = self.kernel.program.instructions[self.index if index is None else index]
        block = thread = None
        if lane is not None:
            block = coordinates(int(self.blocks[self.block[lane]]), self.setup.grid)
            thread = coordinates(int(self.thread[lane]), self.setup.threads)
        return Place(self.kernel.name, of.text, of.line, of.source, block, thread)

    def fail(self, kind: str, message: str, lane: int, other: int | None = None) -> NoReturn:
        """Tell what a lane does wrong at the current instruction."""
        raise Finding(
            kind, message, self.place(lane), None if other is None else self.place(None, other)
        )

    # running

    def run(self) -> None:
        """Until all threads have ended."""
        while True:
            ready = self.alive & (self.waiting == 0)
            if not ready.any():
                if not self.alive.any():
                    return
                self.release()
                continue
            first = int(self.at[ready].min())
            here = ready & (self.at == first)
            others = self.at[ready & ~here]
            self.here = None if np.count_nonzero(here) == self.lanes else here
            self.go(first, int(others.min()) if others.size else NEVER)

    def go(self, index: int, meeting: int) -> None:
        """The threads that are here, until they part, wait, end, or meet the next ones."""
        steps, self.mask, last = self.kernel.steps, self.here, self.kernel.last
        while index < meeting:
            if index > last:
                self.end()
                return
            self.index = index
            self.steps += 1
            then = steps[index](self)
            index += 1
            if then is not None:
                if then < 0:
                    return
                if then < index:
                    self.watch_time()
                index = then
        self.stand(index)

    def watch_time(self) -> None:
        if self.steps > self.setup.longest:
            lane = int(self.active()[0])
            self.fail("endless", f"still running after {self.setup.longest} instructions", lane)

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

    # barriers

    def wait(self, barrier: int, threads: Array | None) -> int | None:
        """
        The threads of the mask wait at a barrier of their blocks; None if all of their blocks are
        here, and go on at once.
        """
        self.note_use(self.shared.touched)
        if threads is None and self.passes_at_once():
            self.new_epoch()
            return None
        self.whole_warps_alive()
        lanes = self.active()
        self.waiting[lanes] = barrier + 1
        wanted = self.count if threads is None else self.full(threads)[lanes]
        self.expected[self.block[lanes], barrier] = wanted
        self.stand(self.index + 1)
        return -1

    def passes_at_once(self) -> bool:
        """Tell whether whole blocks are here, which then have passed a barrier."""
        if self.mask is None:
            self.shared.pass_barrier()
            return True
        here = self.mask.reshape(len(self.blocks), -1)
        some = here.any(1)
        if (here[some] != self.launched).any():
            return False
        self.shared.pass_barrier(np.flatnonzero(some))
        return True

    def whole_warps_alive(self) -> None:
        """Barriers are for whole warps: all threads that a warp was launched with."""
        if self.mask is None:
            return
        each = self.mask.reshape(len(self.blocks), -1, WARP)
        part = (each.any(2) & (each != self.launched.reshape(-1, WARP)).any(2)).reshape(-1)
        if part.any():
            lane = int(np.flatnonzero(self.mask & np.repeat(part, WARP))[0])
            self.fail(
                "partial warp",
                "a barrier is for all threads of a warp at once, and some are not here",
                lane,
            )

    def release(self) -> None:
        """Open the barriers that are complete; if there is none, nobody will ever go on."""
        opened = False
        waiting, alive = (
            self.waiting.reshape(len(self.blocks), -1),
            self.alive.reshape(len(self.blocks), -1),
        )
        for block in np.flatnonzero(alive.any(1)):
            for barrier in np.unique(waiting[block][alive[block]]) - 1:
                here = alive[block] & (waiting[block] == barrier + 1)
                if barrier >= 0 and here.sum() == self.expected[block, barrier]:
                    waiting[block][here] = 0
                    self.shared.pass_barrier(np.array([block]))
                    opened = True
        if not opened:
            self.tell_deadlock()
        self.new_epoch()

    def tell_deadlock(self) -> NoReturn:
        lane = int(np.flatnonzero(self.alive & (self.waiting > 0))[0])
        self.index = int(self.at[lane]) - 1
        mine = self.block == self.block[lane]
        barrier = int(self.waiting[lane]) - 1
        here = int((mine & self.alive & (self.waiting == barrier + 1)).sum())
        ended = int((mine & ~self.alive & (self.thread < self.count)).sum())
        wanted = int(self.expected[self.block[lane], barrier])
        told = (
            f"{here} threads of a block wait at barrier {barrier}, which {wanted} must reach; "
            f"{ended} of the block have ended"
        )
        self.fail("deadlock", told, lane)


def coordinates(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)
