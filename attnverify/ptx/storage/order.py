"""
What happens before what, between the warps of all blocks of a launch.

A block's time goes on with each of its barriers and with each release of its warps. An actor is a
warp of a block at a time. Another actor of the same block is ordered before a barrier; one that a
release published, by whoever acquired that: with what the releasing warp had acquired itself. A
fence makes the relaxed writes behind it releases, and the relaxed reads in front of it acquires.
Atomic and volatile accesses that say nothing of order (``atomicAdd``) are taken as their users take
them: they acquire, and release what a fence before them has fenced. What is released for the
threads of a block alone (``.cta``, ``__threadfence_block``) is no news to other blocks.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.shadows import Actors

__all__ = ["ACTORS", "Message", "Order", "Strength"]

ACTORS = 64
"""Numbers of one block at one time; a block has fewer warps."""

SEVERAL = 1 << 41
"""From here on a number stands for several actors."""


class Strength(NamedTuple):
    """How an access orders others: what it acquires, what it releases, and for whom."""

    acquires: str = ""
    releases: str = ""
    block: bool = False


class Message(NamedTuple):
    """What a release publishes: of each block and warp the times before this one."""

    times: Array
    block: int | None

    def joined(self, other: "Message | None") -> "Message":
        """Both, which are for the same."""
        return self if other is None else self._replace(times=np.maximum(self.times, other.times))


Known = dict[int, dict[int, Message]]
"""By block and warp."""


class Order:
    """The times of all blocks, what each warp knows of the others, and what was published where."""

    def __init__(
        self, blocks: int, warps: int, replicated: bool = False, engines: bool = False
    ) -> None:
        self.shape, self.replicated = (blocks, ACTORS if engines else warps), replicated
        self.warps, self.engines = warps, engines
        self.time = np.zeros(blocks, np.int64)
        self.barrier = np.zeros(blocks, np.int64)
        self.slot = np.zeros(blocks, np.int64)
        self.block_of, self.time_of = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
        self.drawn = 1
        self.known: Known = {}
        self.fenced: Known = {}
        self.fenced_for_block: Known = {}
        self.pending: Known = {}
        self.published: dict[tuple[int, int], dict[int | None, Message]] = {}
        """By array and offset, and the block that it is for, if it is for one alone."""
        self.sets: list[frozenset[int]] = []
        self.numbers: dict[frozenset[int], int] = {}

    @property
    def quiet(self) -> bool:
        """Whether nothing was fenced or published yet."""
        return not (self.fenced or self.fenced_for_block or self.published)

    # actors

    def actors(self, blocks: Array, block: Array, warp: Array) -> Actors:
        """Lanes of these blocks, by their place among them, and of these warps, now."""
        self.draw_numbers(blocks[self.slot[blocks] == 0])
        of = blocks[block]
        who = self.slot[of] * ACTORS + warp
        return Actors(who, np.ones_like(who), who, of)

    def draw_numbers(self, blocks: Array) -> None:
        end = self.drawn + len(blocks)
        while end > len(self.block_of):
            self.block_of = np.concatenate([self.block_of, np.zeros_like(self.block_of)])
            self.time_of = np.concatenate([self.time_of, np.zeros_like(self.time_of)])
        self.slot[blocks] = np.arange(self.drawn, end)
        self.block_of[self.drawn : end] = blocks
        self.time_of[self.drawn : end] = self.time[blocks]
        self.drawn = end

    def block(self, actor: int) -> int:
        return int(self.block_of[actor // ACTORS])

    def by_engine(self, actor: int) -> bool:
        """Whether an actor is no warp, but what brings data for an mbarrier."""
        return actor < SEVERAL and actor % ACTORS >= self.warps

    def within(self, mine: int, other: int) -> bool:
        """Tell whether all of an actor's rivals that it does not know are of its own block."""
        rivals = (each for each in self.members(other) if not self.knows(mine, each))
        return all(self.block(each) == self.block(mine) for each in rivals)

    # what is ordered

    def unordered(self, whose: Array, actors: Actors, where: Array, writes: bool = False) -> Array:
        """
        Find those among ``where`` whose actors are not ordered before the lanes'; ``writes``: these
        write what those have read.
        """
        lanes, each = np.nonzero(where)
        other, mine, block = whose[lanes, each], actors.who[lanes], actors.group[lanes]
        slot = np.where(other < SEVERAL, other // ACTORS, 0)
        same = (self.block_of[slot] == block) & (slot > 0)
        before = self.time_of[slot] < self.barrier[block]
        if self.engines:
            before &= other % ACTORS < self.warps
        before |= (other ^ mine) % ACTORS == 0
        left = ~(same & before)
        if left.any():
            pairs, back = np.unique(
                np.stack([other[left], mine[left]], 1), axis=0, return_inverse=True
            )
            found = np.array([not self.knows(int(m), int(o), writes) for o, m in pairs])
            left[left] = found[back.reshape(-1)]
        result = np.zeros_like(where)
        result[lanes, each] = left
        return result

    def knows(self, mine: int, other: int, writes: bool = False) -> bool:
        """Tell whether an actor, now, comes behind another, or behind all of several."""
        if other >= SEVERAL:
            members = self.members(other)
            if writes and self.replicated:
                members = self.without_copies(mine, members)
            return all(self.knows(mine, each) for each in members)
        of, warp = self.block(mine), other % ACTORS
        block, time = self.block(other), int(self.time_of[other // ACTORS])
        behind_barrier = time < self.barrier[of] and warp < self.warps
        if block == of and (warp == mine % ACTORS or behind_barrier):
            return True
        known = self.known.get(of, {}).get(mine % ACTORS)
        return known is not None and bool(known.times[block, warp] > time)

    def without_copies(self, mine: int, readers: frozenset[int]) -> frozenset[int]:
        """
        Of those who have read a place, those that may need what they read: where a compiler has the
        warps of a block hold copies of the same numbers, the writer's own copy is the one that
        counts.
        """
        own = frozenset(each for each in readers if self.block(each) == self.block(mine))
        has_copy = any((each ^ mine) % ACTORS == 0 for each in own)
        return readers - own if has_copy else readers

    def together(self, before: Array, mine: Array) -> Array:
        """Numbers that stand for both of two actors each."""
        pairs, back = np.unique(np.stack([before, mine], 1), axis=0, return_inverse=True)
        made = [self.number_of(pair) for pair in pairs.tolist()]
        return np.array(made, np.int64)[back.reshape(-1)]

    def members(self, actor: int) -> frozenset[int]:
        return self.sets[actor - SEVERAL] if actor >= SEVERAL else frozenset([actor])

    def number_of(self, actors: Iterable[int]) -> int:
        """
        A number that stands for all of these, of each warp for the latest: who comes behind that
        comes behind those before. Who asks for the same ones again gets the same number at once.
        """
        asked = frozenset(actors)
        if asked not in self.numbers:
            every = sorted(frozenset().union(*map(self.members, asked)))
            warps = (self.block_of[np.array(every) // ACTORS] * ACTORS).tolist()
            of_warp = {
                block + each % ACTORS: each for block, each in zip(warps, every, strict=True)
            }
            self.numbers[asked] = self.number_of_members(frozenset(of_warp.values()))
        return self.numbers[asked]

    def number_of_members(self, members: frozenset[int]) -> int:
        if len(members) == 1:
            return next(iter(members))
        if members not in self.numbers:
            self.numbers[members] = SEVERAL + len(self.sets)
            self.sets.append(members)
        return self.numbers[members]

    def joined_at(self, places: Array, before: Array, mine: Array) -> Array:
        """
        Several actors touched each of these places at once, where others had: numbers that stand
        for all.
        """
        order = np.argsort(places, kind="stable")
        starts = np.flatnonzero(np.diff(places[order], prepend=places[order][0] - 1))
        found = np.empty(len(places), np.int64)
        for part in np.split(order, starts[1:]):
            found[part] = self.number_of({*before[part].tolist(), *mine[part].tolist()})
        return found

    # what orders

    def pass_barrier(self, blocks: Array) -> None:
        """Blocks have passed a barrier: what one of their warps knows, all know."""
        self.time[blocks] += 1
        self.barrier[blocks] = self.time[blocks]
        self.slot[blocks] = 0
        for kept in (self.known, self.fenced, self.fenced_for_block, self.pending):
            for block in set(kept).intersection(blocks.tolist()) if kept else ():
                self.share(kept, block)

    def share(self, kept: Known, block: int) -> None:
        messages = list(kept[block].values())
        for each in messages[1:]:
            messages[0] = messages[0].joined(each)
        kept[block] = dict.fromkeys(range(self.warps), messages[0])

    def message(self, block: int, warp: int, for_block: bool) -> Message:
        """A warp publishes its past, that of its block before the barrier, and what it knows."""
        known = self.known.get(block, {}).get(warp)
        times = np.zeros(self.shape, np.int64) if known is None else known.times.copy()
        of_warps = times[block, : self.warps]
        times[block, : self.warps] = np.maximum(of_warps, self.barrier[block])
        times[block, warp] = self.time[block] + 1
        return Message(times, block if for_block else None)

    def learn(self, kept: Known, block: int, warp: int, message: Message) -> None:
        """Keep a message for a warp, unless it is for another block alone."""
        if message.block in (None, block):
            of = kept.setdefault(block, {})
            of[warp] = message._replace(block=None).joined(of.get(warp))

    def fence(self, warps: Iterable[tuple[int, int]], for_block: bool) -> None:
        """Warps fence what they did, for the writes that follow, and what they have read."""
        for block, warp in warps:
            waiting = self.pending.get(block, {}).pop(warp, None)
            if waiting is not None:
                self.learn(self.known, block, warp, waiting)
            fenced = self.fenced_for_block if for_block else self.fenced
            fenced.setdefault(block, {})[warp] = self.message(block, warp, for_block)
            self.go_on(block)

    def go_on(self, block: int) -> None:
        self.time[block] += 1
        self.slot[block] = 0

    def read(self, place: tuple[int, int], block: int, warp: int, how: Strength) -> None:
        """A warp reads a place: what was published there it acquires, now or with its fence."""
        for message in self.published.get(place, {}).values():
            if how.block and self.from_elsewhere(message, block):
                continue
            if how.acquires:
                kept = self.known if how.acquires == "now" else self.pending
                self.learn(kept, block, warp, message)

    @staticmethod
    def from_elsewhere(message: Message, block: int) -> bool:
        """Whether another block's times are in a message, of which ``.cta`` hears nothing."""
        return bool(np.delete(message.times, block, 0).any())

    def bring(self, place: tuple[int, int], block: int, engine: int, update: bool) -> None:
        """What brings data without a warp publishes what it has brought, and nothing else."""
        times = np.zeros(self.shape, np.int64)
        times[block, engine] = self.time[block] + 1
        self.go_on(block)
        before = self.published.get(place, {}).get(block) if update else None
        self.published.setdefault(place, {})[block] = Message(times, block).joined(before)

    def meet(self, block: int, warps: Iterable[int], waiting: Iterable[int]) -> None:
        """Some warps of a block have met at a barrier: those that waited know what all did."""
        together = [self.message(block, warp, False) for warp in warps]
        for warp in waiting:
            for message in together:
                self.learn(self.known, block, warp, message)
        self.go_on(block)

    def write(
        self, place: tuple[int, int], block: int, warp: int, how: Strength, update: bool
    ) -> None:
        """A warp writes a place: it publishes; an update goes on with what was published there."""
        made: list[Message | None] = []
        if how.releases == "now":
            made = [self.message(block, warp, how.block)]
            self.go_on(block)
        elif how.releases:
            kept = (self.fenced, self.fenced_for_block)
            made = [each.get(block, {}).get(warp) for each in kept]
        before = self.published.pop(place, {})
        after = dict(before) if update else {}
        for each in made:
            if each is not None:
                after[each.block] = each.joined(after.get(each.block))
        if after:
            self.published[place] = after
