"""
Bulk copies: boxes of tensor maps, or bytes in a row, between the arrays of the device and shared
memory.

What is brought lies there at once, but comes behind nothing that its issuer did: only who has
waited for the phase of its mbarrier comes behind it. What is taken away must stay until its group
has been waited for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.access import WIDE, load, store, updated
from attnverify.ptx.storage.bulk.maps import SIZE, TensorMap, read_map
from attnverify.ptx.storage.order import ACTORS
from attnverify.ptx.storage.reach import (
    check_free,
    check_leaving,
    check_written,
    in_shared,
    tell_race,
)
from attnverify.ptx.storage.shadows import SHIFT

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["Traffic", "Update"]

CHUNK = 16

Update = Callable[[TensorMap], Callable[..., Array]]
"""For the elements of a map: the bits that come of those that are there and of those that come."""


@dataclass
class Leaving:
    """What lanes take away with one instruction: which places, and in which group of each lane."""

    lanes: Array
    places: Array
    groups: Array
    index: int


class Traffic:
    """The bulk copies of a machine, and how many groups each lane has committed."""

    def __init__(self, m: "Machine") -> None:
        self.m = m
        self.committed = np.zeros(m.lanes, np.int64)
        self.leaving: list[Leaving] = []
        self.maps: dict[bytes, TensorMap] = {}
        self.acquired: set[tuple[int, int]] = set()

    # maps

    def map_of(self, addresses: Array, lanes: Array) -> list[tuple[TensorMap, Array]]:
        """The maps that lanes name, and which of the lanes each is of."""
        found: dict[bytes, list[int]] = {}
        for at, address in enumerate(addresses.tolist()):
            found.setdefault(self.bytes_of(address, int(lanes[at])), []).append(at)
        return [(self.known(of, int(lanes[at[0]])), np.array(at)) for of, at in found.items()]

    def bytes_of(self, address: int, lane: int) -> bytes:
        m = self.m
        if address % 64:
            m.fail("misaligned", f"a tensor map at {address:#x}, no multiple of 64", lane)
        block = int(m.blocks[m.block[lane]])
        if address in m.memory.maps and (block, address) not in self.acquired:
            told = "no fence.proxy.tensormap of the block since a thread wrote this tensor map"
            m.fail("missing fence", told, lane)
        at = address + np.arange(0, SIZE, CHUNK)
        return load(m, "generic", at, np.full(len(at), lane), CHUNK).tobytes()

    def known(self, of: bytes, lane: int) -> TensorMap:
        if of not in self.maps:
            made = read_map(of)
            if isinstance(made, str):
                self.m.fail("tensor map", made, lane)
            self.maps[of] = made
        return self.maps[of]

    def publish_map(self, to: Array, of: Array, lanes: Array) -> None:
        """Copy maps from shared memory to global memory, for the copies behind a fence."""
        each, lanes_of = np.arange(0, SIZE, CHUNK), np.repeat(lanes, SIZE // CHUNK)
        values = load(self.m, "shared", (of[:, None] + each).reshape(-1), lanes_of, CHUNK)
        store(self.m, "global", (to[:, None] + each).reshape(-1), lanes_of, CHUNK, values)
        self.m.memory.maps.update(to.tolist())

    def acquire_map(self, addresses: Array, lanes: Array) -> None:
        blocks = self.m.blocks[self.m.block[lanes]]
        self.acquired.update(zip(blocks.tolist(), addresses.tolist(), strict=True))

    # to shared memory

    def bring_boxes(
        self, to: Array, maps: Array, corners: Array, barriers: Array, lanes: Array
    ) -> None:
        """Lanes bring boxes; what lies outside of their arrays is filled."""
        for of, some in self.map_of(maps, lanes):
            self.check_rank(of, corners, lanes)
            mine = lanes[some]
            at, inside = of.elements(corners[some])
            values = np.full(at.shape, -1 if of.nan else 0, f"i{of.element}")
            each = np.broadcast_to(mine[:, None], at.shape)[inside]
            if each.size:
                got = load(self.m, "global", at[inside], each, of.element)
                values[inside] = got.view(values.dtype)
            self.arrive(of.chunks(to[some]), to[some], values, barriers[some], mine, of.bytes)

    def bring(self, to: Array, of: Array, size: Array, barriers: Array, lanes: Array) -> None:
        """Lanes bring so many bytes."""
        for at, lane in enumerate(lanes):
            each = np.arange(0, int(size[at]), CHUNK)
            values = load(self.m, "global", of[at] + each, np.full(len(each), lane), CHUNK)
            mine = slice(at, at + 1)
            self.arrive(
                to[mine, None] + each, to[mine], values[None], barriers[mine], lanes[mine],
                int(size[at]), CHUNK,
            )  # fmt: skip

    def arrive(
        self,
        chunks: Array,
        to: Array,
        values: Array,
        barriers: Array,
        lanes: Array,
        size: int,
        align: int = 128,
    ) -> None:
        """Values [lanes each] lie in shared memory, in chunks [lanes each], and are counted."""
        m, shared = self.m, self.m.shared
        assert m.phases is not None
        places, offsets = self.places(chunks, to, lanes, align)
        if m.setup.races:
            self.check_target(places, lanes)
        shared.bytes.view(WIDE[CHUNK])[offsets // CHUNK] = (
            np.ascontiguousarray(values).reshape(len(lanes), -1).view(WIDE[CHUNK])
        )
        for at, (lane, barrier) in enumerate(m.phases.found(barriers, lanes)):
            if shared.watched:
                who = m.grid_actors().who[lane] // ACTORS * ACTORS + barrier.engine
                shared.shadow.writer[places[at]] = (who << SHIFT) | m.index
                shared.shadow.written = True
                shared.unfenced[places[at]] = False
            m.phases.bring(lane, barrier, size)

    def check_target(self, places: Array, lanes: Array) -> None:
        """Whoever read or wrote here before comes before the issuer, and is fenced."""
        m, shared = self.m, self.m.shared
        if shared.readers:
            check_leaving(m, places, lanes)
        if shared.has_barriers:
            check_free(m, shared.barriers[places], lanes, "an mbarrier lies here", "mbarrier")
        conflict = shared.shadow.against(places, m.of(m.of_block, lanes))
        if conflict is not None:
            tell_race(m, conflict, lanes, "brings data over", "another warp", "nothing orders them")
        if shared.unfenced[places].any():
            lane = int(lanes[np.flatnonzero(shared.unfenced[places].any(1))[0]])
            told = "no fence.proxy.async since a thread stored where this copy brings data"
            m.fail("missing fence", told, lane)

    def places(self, chunks: Array, to: Array, lanes: Array, align: int) -> tuple[Array, Array]:
        """[lanes each] the places of chunks in shared memory, and the offsets of the chunks."""
        m = self.m
        if (to % align).any():
            lane = int(lanes[np.flatnonzero(to % align)[0]])
            m.fail(
                "misaligned",
                f"a bulk copy at a shared address that is no multiple of {align}",
                lane,
            )
        each = np.broadcast_to(lanes[:, None], chunks.shape).reshape(-1)
        offsets = in_shared(m, chunks.reshape(-1), each, CHUNK)
        places = m.shared.places(offsets, CHUNK).reshape(len(lanes), -1)
        return places, offsets.reshape(len(lanes), -1)

    def check_rank(self, of: TensorMap, corners: Array, lanes: Array) -> None:
        if len(of.box) != corners.shape[1]:
            told = f"a copy in {corners.shape[1]} dimensions by a map of {len(of.box)}"
            self.m.fail("tensor map", told, int(lanes[0]))

    # from shared memory

    def take_boxes(
        self, maps: Array, corners: Array, of: Array, lanes: Array, update: Update | None
    ) -> None:
        """Lanes take boxes away; what lies outside of their arrays is dropped."""
        for tensor, some in self.map_of(maps, lanes):
            self.check_rank(tensor, corners, lanes)
            mine = lanes[some]
            values = self.leave(tensor.chunks(of[some]), of[some], mine, 128)
            at, inside = tensor.elements(corners[some])
            values = values.view(f"u{tensor.element}").reshape(at.shape)[inside]
            each = np.broadcast_to(mine[:, None], at.shape)[inside]
            self.put(at[inside], each, tensor, values, update)

    def put(
        self, at: Array, lanes: Array, of: TensorMap, values: Array, update: Update | None
    ) -> None:
        if not at.size:
            return
        if update is None:
            store(self.m, "global", at, lanes, of.element, values)
            return
        updated(self.m, "global", at, lanes, values.dtype, [values[:, None]], update(of))

    def take(self, to: Array, of: Array, size: Array, lanes: Array) -> None:
        """Lanes take so many bytes away."""
        for at, lane in enumerate(lanes):
            each = np.arange(0, int(size[at]), CHUNK)
            mine = slice(at, at + 1)
            values = self.leave(of[mine, None] + each, of[mine], lanes[mine], CHUNK)
            store(
                self.m, "global", to[at] + each, np.full(len(each), lane), CHUNK, values.reshape(-1)
            )

    def leave(self, chunks: Array, of: Array, lanes: Array, align: int) -> Array:
        """[lanes each] chunks of shared memory, which are read until they are waited for."""
        m, shared = self.m, self.m.shared
        places, offsets = self.places(chunks, of, lanes, align)
        if shared.watched:
            check_written(m, places, lanes, "shared memory")
            conflict = shared.shadow.foreign(
                shared.shadow.writer[places], m.of(m.of_block, lanes), True
            )
            if conflict is not None:
                tell_race(m, conflict, lanes, "takes away", "another warp", "nothing orders them")
            if shared.unfenced[places].any():
                lane = int(lanes[np.flatnonzero(shared.unfenced[places].any(1))[0]])
                told = "no fence.proxy.async since a thread stored what this copy takes away"
                m.fail("missing fence", told, lane)
            self.leaving.append(Leaving(lanes, places, self.committed[lanes], m.index))
            self.mark()
        return shared.bytes.view(WIDE[CHUNK])[offsets // CHUNK]

    def mark(self) -> None:
        shared = self.m.shared
        shared.being_read[:] = False
        for product in self.m.groups.products:
            shared.being_read[product.places[product.warps]] = True
        for each in self.leaving:
            shared.being_read[each.places] = True
        shared.readers = len(self.m.groups.products) + len(self.leaving)

    def commit(self) -> None:
        self.committed[self.m.active()] += 1

    def wait(self, pending: int) -> None:
        """The lanes of the mask wait for their groups but the last ``pending``."""
        limit = np.zeros(self.m.lanes, np.int64)
        here = self.m.active()
        limit[here] = self.committed[here] - pending
        left = []
        for each in self.leaving:
            done = each.groups < limit[each.lanes]
            if done.any():
                lanes = each.lanes[done]
                actors = self.m.of(self.m.of_block, lanes)
                self.m.shared.shadow.note_read(each.places[done], actors, each.index)
            if not done.all():
                rest = (each.lanes[~done], each.places[~done], each.groups[~done])
                left.append(Leaving(*rest, each.index))
        changed, self.leaving = len(self.leaving) > 0, left
        if changed:
            self.mark()

    def check_end(self) -> None:
        """Shared memory is gone with its block."""
        if self.leaving:
            first = self.leaving[0]
            self.m.index = first.index
            told = "a block has ended, and this copy from its shared memory was not waited for"
            self.m.fail("not waited for", told, int(first.lanes[0]))
