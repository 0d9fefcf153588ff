"""
The shared memory of the blocks that run at a time, and what is under way in it.

It holds NaN at the start. Between two barriers of a block its warps are not ordered. What
``cp.async`` brings arrives when it is waited for; what ``wgmma`` reads must stay until it is waited
for, and is read by the asynchronous proxy: what a thread stored before is seen only behind
``fence.proxy.async``. Data of ``cp.async`` needs no such fence, as in all compilers known.
"""

import numpy as np

from attnverify.ptx.kinds import Array, in_units
from attnverify.ptx.storage.order import Order
from attnverify.ptx.storage.shadows import Actors, Shadow

__all__ = ["Shared"]

WARPS = 64
"""More than a block has; the last stands for several."""


class Shared:
    """The shared memory of some blocks, one behind the other."""

    def __init__(
        self,
        blocks: int,
        size: int,
        unit: int,
        watched: bool,
        asynchronous: bool,
        order: Order | None = None,
    ) -> None:
        self.size = size
        self.stride = (size + 15) // 16 * 16 + 16
        self.blocks, self.unit, self.watched, self.asynchronous = (
            blocks,
            unit,
            watched,
            asynchronous,
        )
        self.bytes = np.full(blocks * self.stride, 0xFF, np.uint8)
        places = len(self.bytes) // unit
        self.epoch = np.full(blocks, WARPS, np.int64)
        self.order = order
        """What orders the warps of a kernel with barriers in memory; else, barriers do."""
        self.shadow = Shadow(places if watched else 0, None if order else self.epoch, order)
        self.barriers = np.zeros(places if order and watched else 0, bool)
        self.has_barriers = False
        self.unfenced = np.zeros(places if asynchronous else 0, bool)
        self.being_read = np.zeros(places if asynchronous else 0, bool)
        self.readers = 0
        self.arriving = np.zeros(places, bool)
        self.arrivals = 0

    def actors(self, block: Array, warp: Array) -> Actors:
        """Lanes of these blocks and warps, now."""
        since = self.epoch[block]
        return Actors(since + warp, since, since + (WARPS - 1), block)

    def places(self, offsets: Array, size: int) -> Array:
        """[lanes, each] the places of an access of so many bytes."""
        first = in_units(offsets, self.unit)
        return (
            first[:, None] + np.arange(max(1, size // self.unit))
            if size > self.unit
            else first[:, None]
        )

    @property
    def touched(self) -> bool:
        """Whether anybody read or wrote since the last barrier."""
        return bool(self.shadow.written or self.shadow.stamped or self.shadow.aside)

    def pass_barrier(self, blocks: Array | None = None) -> None:
        """Some blocks have passed a barrier; None: all of them have."""
        if self.order is not None:
            return
        if blocks is None:
            self.epoch += WARPS
            self.shadow.calm()
        else:
            self.epoch[blocks] += WARPS

    def fence(self, blocks: Array, actors: Actors) -> bool:
        """
        Threads of these actors let the asynchronous proxy see what they wrote, and what a barrier
        has ordered before them.

        Whether there was any such thing.
        """
        before = np.count_nonzero(self.unfenced)
        if self.order is not None:
            self.fence_known(blocks, actors, self.order)
            return bool(np.count_nonzero(self.unfenced) < before)
        writer = self.shadow.writer.reshape(self.blocks, -1) >> 21
        unfenced = self.unfenced.reshape(self.blocks, -1)
        for block in np.unique(blocks):
            late = writer[block] >= self.epoch[block]
            foreign = late & ~np.isin(writer[block], actors.who[blocks == block])
            unfenced[block] &= foreign
        return bool(np.count_nonzero(self.unfenced) < before)

    def fence_known(self, blocks: Array, actors: Actors, order: Order) -> None:
        """Fence what these actors, or whom they come behind, have written."""
        unfenced, writer = (x.reshape(self.blocks, -1) for x in (self.unfenced, self.shadow.writer))
        for block in np.unique(blocks):
            at = np.flatnonzero(unfenced[block])
            _, first = np.unique(actors.who[blocks == block], return_index=True)
            mine = actors.of(np.flatnonzero(blocks == block)[first])
            whose = np.broadcast_to(writer[block, at] >> 21, (len(first), len(at)))
            foreign = order.unordered(whose, mine, np.ones(whose.shape, bool))
            unfenced[block, at] = foreign.all(0)
