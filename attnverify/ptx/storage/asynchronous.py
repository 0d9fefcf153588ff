"""Shared memory as copies, matrices of warps and products of warp groups touch it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.kinds import BITS, Array, in_units
from attnverify.ptx.storage.access import WIDE, load
from attnverify.ptx.storage.copies import Batch
from attnverify.ptx.storage.groups import Product
from attnverify.ptx.storage.reach import (
    READ,
    WRITE,
    check_shared,
    check_written,
    in_shared,
    tell_race,
)
from attnverify.ptx.storage.shadows import Actors

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["arrive", "copy", "finish_products", "load_rows", "read_matrix", "store_rows"]

WARP, GROUP = 32, 128


# copies


def copy(m: "Machine", to: Array, of: Array, lanes: Array, size: int, counts: Array | None) -> None:
    """Lanes start to copy; of ``size`` bytes the first ``counts``, and zeros for the rest."""
    offsets = in_shared(m, to, lanes, size)
    check_shared(m, offsets, lanes, size, WRITE)
    values = copy_bytes(m, of, lanes, size, counts)
    m.copies.start(lanes, offsets, values, m.index, size)
    if m.shared.watched:
        m.shared.arriving[m.shared.places(offsets, size)] = True
        m.shared.arrivals += 1
        if m.shared.asynchronous:
            m.shared.unfenced[m.shared.places(offsets, size)] = False


def copy_bytes(m: "Machine", of: Array, lanes: Array, size: int, counts: Array | None) -> Array:
    if counts is None:
        return load(m, "global", of, lanes, size)
    values = np.zeros(len(lanes), WIDE[size])
    whole = counts == size
    if whole.any():
        values[whole] = load(m, "global", of[whole], lanes[whole], size)
    for each in range(size):
        part = ~whole & (counts > each)
        if part.any():
            values.view(np.uint8).reshape(-1, size)[part, each] = load(
                m, "global", of[part] + each, lanes[part], 1
            )
    return values


def arrive(m: "Machine", pending: int | None) -> None:
    """The lanes of the mask wait for their copies but the last ``pending`` groups."""
    arrived = m.copies.arrived(m.active(), pending)
    m.note_use(bool(arrived))
    for batch in arrived:
        m.shared.bytes.view(WIDE[batch.size])[batch.offsets // batch.size] = batch.values
        if m.shared.watched:
            note_arrival(m, batch)
    m.shared.arrivals = len(m.copies.batches)


def note_arrival(m: "Machine", batch: Batch) -> None:
    places = m.shared.places(batch.offsets, batch.size)
    m.shared.arriving[places] = False
    conflict = m.shared.shadow.write(places, m.of(m.of_block, batch.lanes), batch.index)
    if conflict is not None:
        tell_race(
            m,
            conflict,
            batch.lanes,
            "waits for a copy to",
            "another warp",
            "no barrier of the block lies between",
        )


# rows of matrices


def load_rows(m: "Machine", addresses: Array, some: Array, rows: int) -> Array:
    """[rows 8] numbers of 16 bits that the first lanes of some warps name, warp by warp."""
    lanes = first_lanes(some, rows)
    offsets = in_shared(m, addresses[lanes], lanes, 16)
    m.note_traffic("shared", addresses[lanes], lanes, 16)
    check_shared(m, offsets, lanes, 16, READ)
    return m.shared.bytes.view(WIDE[16])[offsets // 16].view(np.uint16).reshape(-1, 8)


def store_rows(m: "Machine", addresses: Array, some: Array, rows: int, values: Array) -> None:
    lanes = first_lanes(some, rows)
    offsets = in_shared(m, addresses[lanes], lanes, 16)
    m.note_traffic("shared", addresses[lanes], lanes, 16)
    check_shared(m, offsets, lanes, 16, WRITE)
    m.shared.bytes.view(WIDE[16])[offsets // 16] = (
        np.ascontiguousarray(values).view(WIDE[16]).reshape(-1)
    )


def first_lanes(some: Array, count: int) -> Array:
    """Find the first lanes of some warps."""
    return np.asarray((np.flatnonzero(some)[:, None] * WARP + np.arange(count)).reshape(-1))


# products of warp groups


def read_matrix(
    m: "Machine", offsets: Array, places: Array, groups: Array, size: int
) -> tuple[Array, Array]:
    """
    Read the elements at offsets [groups rows K] of the shared memory of each group's block, and
    their places [groups each] in that of all blocks.
    """
    shared = m.shared
    lane = np.flatnonzero(groups) * GROUP
    if offsets.size and int(offsets.max()) + size > shared.size:
        told = f"a descriptor reaches {int(offsets.max()) + size} bytes of {shared.size}"
        m.fail("out of bounds", told, int(lane[0]))
    start = m.block[lane] * shared.stride
    places = places + (start // shared.unit)[:, None]
    if shared.watched:
        check_operand(m, places, lane)
    return shared.bytes.view(BITS[size])[in_units(offsets + start[:, None, None], size)], places


def check_operand(m: "Machine", places: Array, lanes: Array) -> None:
    """
    A factor must be there: written before a barrier, shown to the asynchronous proxy, and no copy
    on its way.
    """
    shared = m.shared
    if shared.arriving[places].any():
        m.fail(
            "not waited for",
            "a cp.async that was not waited for brings data of this product",
            int(lanes[0]),
        )
    check_written(m, places, lanes, "shared memory")
    for who, of in readers_of(m, lanes):
        stamps = shared.shadow.writer[places]
        conflict = shared.shadow.foreign(stamps, who, True) if shared.shadow.written else None
        if conflict is not None:
            tell_race(m, conflict, of, "reads", "a thread", "no barrier of the block lies between")
    if shared.unfenced[places].any():
        m.fail(
            "missing fence",
            "no fence.proxy.async since a thread stored a factor of this product",
            int(lanes[0]),
        )


def readers_of(m: "Machine", lanes: Array) -> Iterator[tuple[Actors, Array]]:
    """
    Who reads a factor, of groups that begin at these lanes: each of four warps, or, where barriers
    of the block alone order, one who is none of them. Of this time is what any thread wrote since
    the last barrier, then: the four warps are not ordered either.
    """
    if m.shared.order is None:
        actors = m.of(m.of_block, lanes)
        yield actors._replace(who=-actors.who), lanes
        return
    for first in range(0, GROUP, WARP):
        yield m.of(m.of_block, lanes + first), lanes + first


def finish_products(m: "Machine", warps: Array, pending: int) -> None:
    """
    Some warps wait for their products; what those read may be written again behind the next
    barrier.
    """
    if not m.setup.races:
        return
    finished = m.groups.finished(warps, pending)
    m.note_use(bool(finished))
    for product, of_warps in finished:
        note_read(m, product, of_warps)
    m.shared.readers = len(m.groups.products) + (len(m.traffic.leaving) if m.traffic else 0)
    for product in m.groups.products:
        m.shared.being_read[product.places[product.warps]] = True


def note_read(m: "Machine", product: Product, warps: Array) -> None:
    places = product.places[warps]
    lanes = np.flatnonzero(warps) * WARP
    actors = m.of(m.of_block, lanes)
    m.shared.being_read[places] = False
    m.shared.shadow.note_read(places, actors._replace(who=actors.several), product.index)
