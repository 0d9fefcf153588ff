"""Where an access goes, and all that can be wrong with it: bounds, alignment, races."""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.device import ALONE, Allocation
from attnverify.ptx.storage.shadows import Actors, Conflict, Shadow

if TYPE_CHECKING:
    from attnverify.ptx.machine import Machine

__all__ = [
    *("FREE", "FREE_WRITE", "READ", "UPDATE", "WRITE", "address_of", "check_shared", "in_local"),
    *("in_shared", "reach", "some", "tell_race", "touch_device"),
]

READ, WRITE, UPDATE = "reads", "writes", "updates"
FREE, FREE_WRITE = "reads freely", "writes freely"
"""volatile, relaxed, acquire and release accesses: how they order others is not modelled."""

WRITING = (WRITE, UPDATE, FREE_WRITE)


# shared and local memory


def in_shared(m: "Machine", at: Array, lanes: Array, size: int) -> Array:
    """
    Find the offsets of addresses in the bytes of all blocks; within a block's own, and aligned.
    """
    at = at & 0xFFFFFFFF
    if at.size and int(at.max()) + size > m.shared.size:
        place = int(np.flatnonzero(at + size > m.shared.size)[0])
        told = f"{size} bytes at {int(at[place])} of a shared memory of {m.shared.size} bytes"
        m.fail("out of bounds", told, int(lanes[place]))
    check_aligned(m, at, lanes, size)
    return at + m.block[lanes] * m.shared.stride


def in_local(m: "Machine", at: Array, lanes: Array, size: int) -> Array:
    room = m.local.shape[1]
    bad = (at < 0) | (at + size > room)
    if bad.any():
        place = int(np.flatnonzero(bad)[0])
        m.fail(
            "out of bounds",
            f"{size} bytes at {int(at[place])} of a local memory of {room} bytes",
            int(lanes[place]),
        )
    check_aligned(m, at, lanes, size)
    return at + lanes * room


def check_aligned(m: "Machine", at: Array, lanes: Array, size: int) -> None:
    if size > 1 and int(np.bitwise_or.reduce(at)) & (size - 1):
        place = int(np.flatnonzero(at & (size - 1))[0])
        told = (
            f"an access of {size} bytes at {address_of(at[place])}, which is no multiple of {size}"
        )
        m.fail("misaligned", told, int(lanes[place]))


def check_shared(m: "Machine", offsets: Array, lanes: Array, size: int, what: str) -> None:
    """Races between warps, and what is under way."""
    shared = m.shared
    if not shared.watched:
        return
    places, actors = shared.places(offsets, size), m.of(m.of_block, lanes)
    if shared.arrivals:
        check_free(
            m, shared.arriving[places], lanes, "a cp.async that was not waited for brings data here"
        )
    if what in WRITING and shared.readers:
        check_free(
            m, shared.being_read[places], lanes, "a wgmma that was not waited for reads here"
        )
    conflict = touch_places(shared.shadow, places, actors, m.index, what)
    if conflict is not None:
        tell_race(m, conflict, lanes, what, "another warp", "no barrier of the block lies between")
    if what in WRITING and shared.asynchronous:
        shared.unfenced[places] = True


def check_free(m: "Machine", busy: Array, lanes: Array, why: str) -> None:
    if busy.any():
        m.fail("not waited for", why, int(lanes[np.flatnonzero(busy.any(1))[0]]))


def touch_places(
    shadow: Shadow, places: Array, actors: Actors, index: int, what: str
) -> Conflict | None:
    if what == READ:
        return shadow.read(places, actors, index)
    if what == WRITE:
        return shadow.write(places, actors, index)
    return shadow.update(places, actors, index) if what == UPDATE else None


def tell_race(
    m: "Machine", conflict: Conflict, lanes: Array, what: str, who: str, why: str
) -> None:
    did = "wrote" if conflict.wrote else "read"
    m.fail(
        "race",
        f"a thread {what} what {who} {did}, and {why}",
        int(lanes[conflict.lane]),
        conflict.other,
    )


# the memory of the device


def reach(
    m: "Machine", at: Array, lanes: Array, size: int
) -> list[tuple[Allocation, Array, Array | slice]]:
    """
    Find the arrays that addresses lie in, offsets in their bytes, and which of the lanes these are.
    """
    check_aligned(m, at, lanes, size)
    array = m.memory.at(int(at[0]))
    if array is not None:
        offsets = at - array.start
        if int(offsets.min()) >= array.low and int(offsets.max()) + size <= array.high:
            return [(array, offsets, slice(None))]
    return [reach_one(m, int(number), at, lanes, size) for number in np.unique(at >> ALONE)]


def reach_one(
    m: "Machine", number: int, at: Array, lanes: Array, size: int
) -> tuple[Allocation, Array, Array]:
    """Find those addresses that lie in one stretch of 64 GiB."""
    where = np.flatnonzero(at >> ALONE == number)
    array = m.memory.at(number << ALONE)
    if array is None:
        m.fail(
            "out of bounds",
            f"the address {address_of(at[where[0]])} is that of no array",
            int(lanes[where[0]]),
        )
    offsets = at[where] - array.start
    bad = (offsets < array.low) | (offsets + size > array.high)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        m.fail(
            "out of bounds",
            describe_distance(array, int(offsets[first]), size),
            int(lanes[where[first]]),
        )
    return array, offsets, where


def describe_distance(array: Allocation, offset: int, size: int) -> str:
    """In words, how far an access is from the array in whose addresses it lies."""
    room = array.high - array.low
    at = offset - array.low
    if at < 0:
        return f"{size} bytes at {-at} bytes before the start of {array.label} ({room} bytes)"
    return f"{size} bytes at {at} of {array.label}, which has {room} bytes"


def touch_device(
    m: "Machine", array: Allocation, offsets: Array, lanes: Array, size: int, what: str
) -> None:
    """Races between blocks, and reads of what nobody wrote."""
    if array.written is not None:
        note_written(m, array, offsets, lanes, size, what)
    array.touched = array.touched or what in WRITING
    if m.setup.races:
        unit = m.kernel.unit("global")
        first = offsets // unit
        places = first[:, None] + np.arange(size // unit) if size > unit else first[:, None]
        conflict = touch_places(array.shadowed(unit), places, m.of(m.of_grid, lanes), m.index, what)
        if conflict is not None:
            tell_race(
                m, conflict, lanes, what, "another block", f"nothing orders blocks ({array.label})"
            )


def note_written(
    m: "Machine", array: Allocation, offsets: Array, lanes: Array, size: int, what: str
) -> None:
    assert array.written is not None
    each = offsets[:, None] + np.arange(size)
    if what not in (WRITE, FREE_WRITE):
        missing = ~array.written[each].all(1)
        if missing.any():
            lane = int(lanes[np.flatnonzero(missing)[0]])
            m.fail("unwritten", f"a read of {array.label} where nobody has written", lane)
    if what in WRITING:
        array.written[each] = True


# in words, and of some lanes


def address_of(at: int) -> str:
    return f"{int(at) % (1 << 64):#x}"


def some(lanes: Array, where: Array | slice) -> Array:
    """Some of the lanes; all of them as they are."""
    return lanes if isinstance(where, slice) else lanes[where]
