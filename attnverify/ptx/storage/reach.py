"""Where an access goes, and all that can be wrong with it: bounds, alignment, races."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.kinds import Array, in_units
from attnverify.ptx.storage.device import ALONE, Allocation
from attnverify.ptx.storage.shadows import Actors, Conflict, Shadow

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = [
    *("FREE", "FREE_WRITE", "READ", "UPDATE", "WRITE", "address_of", "check_shared"),
    *(
        "check_free",
        "check_leaving",
        "check_written",
        "in_local",
        "in_shared",
        "note_local",
        "reach",
        "some",
        "tell_race",
    ),
    "touch_device",
]

READ, WRITE, UPDATE = "reads", "writes", "updates"
FREE, FREE_WRITE = "reads freely", "writes freely"
"""volatile, relaxed, acquire and release accesses: made to race, and not watched for it."""

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
    return at + (m.own_shared if lanes is m.everyone else m.own_shared[lanes])


def in_local(m: "Machine", at: Array, lanes: Array, size: int) -> Array:
    """Find the offsets of addresses in the local memory of all threads; within each one's own."""
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


def note_local(m: "Machine", offsets: Array, lanes: Array, size: int, what: str) -> None:
    """What a thread reads of its own memory, it has written."""
    each = offsets[:, None] + np.arange(size)
    if what == WRITE:
        m.local_written[each] = True
    elif not m.local_written[each].all():
        lane = int(lanes[np.flatnonzero(~m.local_written[each].all(1))[0]])
        m.fail("unwritten", "a read of local memory where the thread has not written", lane)


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
    if shared.has_barriers:
        told = "an mbarrier that was not invalidated lies here"
        check_free(m, shared.barriers[places], lanes, told, "mbarrier")
    if what in WRITING and shared.readers:
        check_leaving(m, places, lanes)
    if what not in (WRITE, FREE_WRITE):
        check_written(m, places, lanes, "shared memory")
    conflict = touch_places(shared.shadow, places, actors, m.index, what)
    if conflict is not None:
        tell_race(m, conflict, lanes, what, "another warp", "no barrier of the block lies between")
    if what in WRITING and shared.asynchronous:
        shared.unfenced[places] = True


def check_written(m: "Machine", places: Array, lanes: Array, where: str) -> None:
    writers = m.shared.shadow.writer[places]
    if not writers.all():
        lane = int(lanes[np.flatnonzero(~writers.all(1))[0]])
        m.fail("unwritten", f"a read of {where} where nobody of the block has written yet", lane)


def check_leaving(m: "Machine", places: Array, lanes: Array) -> None:
    """Nobody writes what is still being read."""
    reader = "wgmma" if m.groups.products else "bulk copy"
    told = f"a {reader} that was not waited for reads here"
    check_free(m, m.shared.being_read[places], lanes, told)


def check_free(
    m: "Machine", busy: Array, lanes: Array, why: str, kind: str = "not waited for"
) -> None:
    if busy.any():
        m.fail(kind, why, int(lanes[np.flatnonzero(busy.any(1))[0]]))


def touch_places(
    shadow: Shadow,
    places: Array,
    actors: Actors,
    index: int,
    what: str,
    idle: Callable[[], Array] | None = None,
) -> Conflict | None:
    if what == READ:
        return shadow.read(places, actors, index)
    if what == WRITE:
        return shadow.write(places, actors, index, idle)
    if what == UPDATE:
        return shadow.update(places, actors, index)
    if what == FREE_WRITE:
        shadow.write_freely(places)
    return None


def tell_race(
    m: "Machine", conflict: Conflict, lanes: Array, what: str, who: str, why: str
) -> None:
    if conflict.wrote and m.phases is not None and m.order.by_engine(conflict.whose):
        told = f"a thread {what} what a bulk copy brings whose mbarrier it has not waited for"
        m.fail("not waited for", told, int(lanes[conflict.lane]), conflict.other)
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
    found: list[tuple[Allocation, Array, Array | slice]] = []
    left = np.arange(len(at))
    while left.size:
        array, start, mine = array_of(m, at, left, lanes)
        found.append(within(m, array, at[mine] - start, lanes, mine, size))
        left = np.setdiff1d(left, mine)
    return found


def array_of(m: "Machine", at: Array, left: Array, lanes: Array) -> tuple[Allocation, int, Array]:
    """
    Find the array of the first address that is left, the address of its first byte, and who else
    is there: in its stretch of 64 GiB, or, by an address of the host, within its bytes.
    """
    first = int(at[left[0]])
    array = m.memory.at(first)
    if array is not None:
        return array, array.start, left[at[left] >> ALONE == first >> ALONE]
    outside = m.memory.find_outside(first)
    if outside is None or isinstance(outside, str):
        told = outside or f"the address {address_of(first)} is that of no array"
        m.fail("out of bounds", told, int(lanes[left[0]]))
    array, start = outside
    inside = (at[left] >= start) & (at[left] < start + array.high - array.low)
    return array, start - array.low, left[inside]


def within(
    m: "Machine", array: Allocation, offsets: Array, lanes: Array, where: Array, size: int
) -> tuple[Allocation, Array, Array]:
    """Hold offsets in an array against its bounds."""
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
    m: "Machine",
    array: Allocation,
    offsets: Array,
    lanes: Array,
    size: int,
    what: str,
    idle: Callable[[], Array] | None = None,
) -> None:
    """Races between blocks, and reads of what nobody wrote; ``idle`` as of :meth:`Shadow.write`."""
    if array.written is not None:
        note_written(m, array, offsets, lanes, size, what)
    array.touched = array.touched or what in WRITING
    if m.setup.races:
        unit = m.kernel.unit("global")
        first = in_units(offsets, unit)
        places = first[:, None] + np.arange(size // unit) if size > unit else first[:, None]
        shadow = array.shadowed(unit, m.order)
        actors = m.of(m.grid_actors(), lanes)
        conflict = touch_places(shadow, places, actors, m.index, what, idle)
        if conflict is not None and not behind_own_update(m, array, offsets, lanes, conflict):
            tell_global_race(m, array, conflict, lanes, what)


def behind_own_update(
    m: "Machine", array: Allocation, offsets: Array, lanes: Array, conflict: Conflict
) -> bool:
    """
    Whether a warp touches a number that it was the last to update atomically: the updates of
    others came before its own, as the last block of a reduction knows when it resets their count.
    """
    lane = int(lanes[conflict.lane])
    change = m.memory.changes.last.get((array.start, int(offsets[conflict.lane])))
    atomic = m.kernel.program.instructions[conflict.other].name in ("atom", "red")
    mine = int(m.blocks[m.block[lane]]), int(m.warp[lane])
    return atomic and change is not None and (change.block, change.thread // 32) == mine


def tell_global_race(
    m: "Machine", array: Allocation, conflict: Conflict, lanes: Array, what: str
) -> None:
    mine = int(m.grid_actors().who[lanes[conflict.lane]])
    if m.order.within(mine, conflict.whose):
        why = f"no barrier of the block lies between ({array.label})"
        tell_race(m, conflict, lanes, what, "another warp", why)
    tell_race(m, conflict, lanes, what, "another block", f"nothing orders blocks ({array.label})")


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
