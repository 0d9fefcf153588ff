"""
Loads and stores of lanes, in every space, with all that can be wrong with them.

Values travel as they lie in memory: one number of 1, 2, 4, 8 or 16 bytes for each lane.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.kinds import Array, in_units
from attnverify.ptx.storage.device import (
    LOCAL_WINDOW,
    PARAMETER_WINDOW,
    SHARED_WINDOW,
    Allocation,
)
from attnverify.ptx.storage.order import Strength
from attnverify.ptx.storage.reach import (
    FREE,
    FREE_WRITE,
    READ,
    UPDATE,
    WRITE,
    address_of,
    check_shared,
    in_local,
    in_shared,
    note_local,
    reach,
    some,
    touch_device,
)

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["WIDE", "load", "store", "updated"]

WARP = 32

WIDE = {
    size: np.dtype(name) for size, name in ((1, "u1"), (2, "u2"), (4, "u4"), (8, "u8"), (16, "c16"))
}


def group_by_space(
    m: "Machine", space: str, addresses: Array, lanes: Array
) -> list[tuple[str, Array, Array]]:
    """Lanes and addresses by the space they lie in: generic addresses say it themselves."""
    if space != "generic":
        return [(space, addresses, lanes)]
    found = []
    windows = (
        ("shared", SHARED_WINDOW, LOCAL_WINDOW),
        ("local", LOCAL_WINDOW, PARAMETER_WINDOW),
        ("global", 0, SHARED_WINDOW),
        ("param", PARAMETER_WINDOW, PARAMETER_WINDOW * 2),
    )
    for name, start, end in windows:
        here = (addresses >= start) & (addresses < end)
        if here.all():
            return [(name, addresses - start, lanes)]
        if here.any():
            found.append((name, addresses[here] - start, lanes[here]))
    strange = (addresses < 0) | (addresses >= PARAMETER_WINDOW * 2)
    if strange.any():
        at = int(np.flatnonzero(strange)[0])
        m.fail(
            "out of bounds",
            f"the generic address {address_of(addresses[at])} lies in no space",
            int(lanes[at]),
        )
    return found


def load(
    m: "Machine",
    space: str,
    addresses: Array,
    lanes: Array,
    size: int,
    how: Strength | None = None,
) -> Array:
    """
    What lanes read at their addresses; accesses that say ``how`` they order others are made to
    race, and not watched for it.
    """
    values = np.empty(len(lanes), WIDE[size])
    parts = group_by_space(m, space, addresses, lanes)
    for name, at, of in parts:
        found = load_from(m, name, at, of, size, how)
        if len(parts) == 1:
            return found
        values[np.searchsorted(lanes, of)] = found
    return values


def load_from(
    m: "Machine", space: str, at: Array, lanes: Array, size: int, how: Strength | None
) -> Array:
    what = READ if how is None else FREE
    if space == "shared":
        offsets = in_shared(m, at, lanes, size)
        m.note_traffic(space, at, lanes, size)
        check_shared(m, offsets, lanes, size, what)
        return m.shared.bytes.view(WIDE[size])[in_units(offsets, size)]
    if space == "local":
        offsets = in_local(m, at, lanes, size)
        note_local(m, offsets, lanes, size, READ)
        return m.local.reshape(-1).view(WIDE[size])[in_units(offsets, size)]
    if space == "param":
        return load_parameters(m, at, lanes, size)
    m.note_traffic("global", at, lanes, size)
    values = np.empty(len(at), WIDE[size])
    for array, offsets, where in reach(m, at, lanes, size):
        touch_device(m, array, offsets, some(lanes, where), size, what)
        if how is not None:
            m.note_watch(array, offsets, some(lanes, where))
            if m.setup.races and m.order.published:
                acquire(m, array, offsets, some(lanes, where), how)
        values[where] = array.typed(WIDE[size])[in_units(offsets, size)]
    return values


def load_parameters(m: "Machine", at: Array, lanes: Array, size: int) -> Array:
    """What lanes read of the parameters, at addresses that they took of them."""
    if at.size and int(at.max()) + size > m.setup.parameters.size:
        m.fail("out of bounds", "a parameter beyond the last", int(lanes[at.argmax()]))
    return m.setup.parameters[at[:, None] + np.arange(size)].view(WIDE[size]).reshape(-1)


def store(
    m: "Machine",
    space: str,
    addresses: Array,
    lanes: Array,
    size: int,
    values: Array,
    how: Strength | None = None,
) -> None:
    """Lanes write values at their addresses."""
    plain = how is None
    what = WRITE if plain else FREE_WRITE
    for name, at, of in group_by_space(m, space, addresses, lanes):
        given = values if len(of) == len(lanes) else values[np.searchsorted(lanes, of)]
        if name == "param":
            m.fail("out of bounds", "a parameter is written, and none may be", int(of[0]))
        if name != "local":
            m.note_traffic(name, at, of, size)
        if name == "shared":
            offsets = in_shared(m, at, of, size)
            check_shared(m, offsets, of, size, what)
            write(m, m.shared.bytes.view(WIDE[size]), offsets, of, size, given, plain)
        elif name == "local":
            offsets = in_local(m, at, of, size)
            note_local(m, offsets, of, size, WRITE)
            m.local.reshape(-1).view(WIDE[size])[in_units(offsets, size)] = given
        else:
            for array, offsets, where in reach(m, at, of, size):
                idle = partial(same_bits, array.typed(WIDE[size]), offsets, size, given[where])
                touch_device(m, array, offsets, some(of, where), size, what, idle)
                if how is not None:
                    note_free_write(m, array, offsets, some(of, where), size, given[where], how)
                write(
                    m, array.typed(WIDE[size]), offsets, some(of, where), size, given[where], plain
                )


def write(
    m: "Machine", memory: Array, offsets: Array, lanes: Array, size: int, values: Array, plain: bool
) -> None:
    """Into the bytes of one space."""
    places = in_units(offsets, size)
    memory[places] = values
    if m.setup.races and plain:
        left = ~same_bits(memory, offsets, size, values)
        if left.any():
            settle(m, memory, places, lanes, values, left)


def same_bits(memory: Array, offsets: Array, size: int, values: Array) -> Array:
    """Tell of each lane whether its value stands where it writes."""
    word = WIDE[min(size, 8)]
    stands = memory[in_units(offsets, size)].view(word) == values.view(word)
    return stands.reshape(len(offsets), -1).all(1)


def settle(
    m: "Machine", memory: Array, places: Array, lanes: Array, values: Array, left: Array
) -> None:
    """
    Threads write different values to one place with one instruction. Of one warp any may win, as
    the ISA has it: sums of a warp differ by thread where a product was fused into the first
    addition. Threads of different warps race, unless these hold copies of the same several values.
    """

    def copied(place: int) -> bool:
        here = np.flatnonzero(places == place)
        of_warp: dict[int, set[bytes]] = {}
        for lane, value in zip(lanes[here] // WARP, values[here], strict=True):
            of_warp.setdefault(int(lane), set()).add(value.tobytes())
        return all(each == of_warp[int(lanes[here[0]]) // WARP] for each in of_warp.values())

    several = np.isin(places, find_shared_by_warps(places, lanes)) & left
    if m.setup.replicated and several.any():
        several &= ~np.isin(places, [at for at in places[several] if copied(at)])
    if several.any():
        lane = int(lanes[np.flatnonzero(several)[0]])
        m.fail("race", "threads write different values to one place with one instruction", lane)
    order = m.draw.random.permutation(len(lanes))
    memory[places[order]] = values[order]


def find_shared_by_warps(places: Array, lanes: Array) -> Array:
    """Find the places that lanes of more than one warp write."""
    pairs = np.unique(np.stack([places, lanes // WARP], axis=1), axis=0)
    found, warps = np.unique(pairs[:, 0], return_counts=True)
    return np.asarray(found[warps > 1])


# what orders


def by_warp(m: "Machine", offsets: Array, lanes: Array) -> list[tuple[int, int, int]]:
    """The offset, block and warp of accesses: each once."""
    of = np.stack([offsets, m.blocks[m.block[lanes]], m.warp[lanes]], 1)
    return [(int(at), int(block), int(warp)) for at, block, warp in np.unique(of, axis=0)]


def acquire(m: "Machine", array: Allocation, offsets: Array, lanes: Array, how: Strength) -> None:
    for at, block, warp in by_warp(m, offsets, lanes):
        m.order.read((array.start, at), block, warp, how)


def release(
    m: "Machine", array: Allocation, offsets: Array, lanes: Array, how: Strength, update: bool
) -> None:
    if not m.setup.races or (m.order.quiet and how.releases != "now"):
        return
    for at, block, warp in by_warp(m, offsets, lanes):
        m.order.write((array.start, at), block, warp, how, update)
    m.of_grid = None


def note_free_write(
    m: "Machine",
    array: Allocation,
    offsets: Array,
    lanes: Array,
    size: int,
    values: Array,
    how: Strength,
) -> None:
    """A write that others may wait for: it publishes, and is remembered."""
    before = array.typed(WIDE[size])[in_units(offsets, size)]
    m.note_change(array, offsets, lanes, before.tobytes() != values.tobytes())
    release(m, array, offsets, lanes, how, False)


# one thread after the other


def updated(
    m: "Machine",
    space: str,
    addresses: Array,
    lanes: Array,
    part: np.dtype[Any],
    operands: list[Array],
    function: Callable[..., Array],
    how: Strength = Strength(),  # noqa: B008
) -> Array:
    """
    Each lane replaces numbers [lanes count] in memory by a function of them and of its operands;
    what was there before.
    """
    count = operands[0].shape[1]
    before = np.empty((len(lanes), count), part)
    for name, at, of in group_by_space(m, space, addresses, lanes):
        whole = len(of) == len(lanes)
        chosen = np.arange(len(lanes)) if whole else np.searchsorted(lanes, of)
        given = [operand[chosen] for operand in operands]
        size = part.itemsize * count
        if name == "shared":
            offsets = in_shared(m, at, of, size)
            check_shared(m, offsets, of, size, UPDATE)
            before[chosen] = in_turns(
                m, m.shared.bytes.view(part), offsets // part.itemsize, given, function
            )
            continue
        for array, offsets, where in reach(m, at, of, size):
            touch_device(m, array, offsets, some(of, where), size, UPDATE)
            mine = [operand[where] for operand in given]
            before[chosen[where]] = in_turns(
                m,
                array.typed(part),
                offsets // part.itemsize,
                mine,
                function,
                order_of(m, array, offsets, some(of, where), how),
            )
    return before


Ordering = Callable[[Array, Array], None]


def order_of(
    m: "Machine", array: Allocation, offsets: Array, lanes: Array, how: Strength
) -> Ordering | None:
    """What updates order, turn by turn: called with those of the turn, and which of them wrote."""
    if not m.kernel.waits:
        return None
    m.note_watch(array, offsets, lanes)
    watched = m.setup.races and not (m.order.quiet and how.releases != "now")

    def order(now: Array, wrote: Array) -> None:
        m.note_change(array, offsets[now[wrote]], lanes[now[wrote]], bool(wrote.any()))
        if watched:
            acquire(m, array, offsets[now], lanes[now], how)
            release(m, array, offsets[now[wrote]], lanes[now[wrote]], how, True)

    return order


def in_turns(
    m: "Machine",
    memory: Array,
    first: Array,
    operands: list[Array],
    function: Callable[..., Array],
    order: Ordering | None = None,
) -> Array:
    """
    Lanes that hit one place take turns, in a drawn order; once a turn has changed nothing, all that
    are left, if none of them would, have theirs at once: those who find a lock closed.
    """
    before = np.empty(operands[0].shape, memory.dtype)
    left = m.draw.random.permutation(len(first))
    columns = np.arange(operands[0].shape[-1])

    def updated_by(now: Array) -> tuple[Array, Array]:
        places = first[now][:, None] + columns
        before[now] = memory[places]
        after = function(before[now], *(operand[now] for operand in operands))
        return places, after

    while left.size:
        _, turn = np.unique(first[left], return_index=True)
        now = left[turn]
        places, after = updated_by(now)
        wrote = (after != before[now]).any(1)
        memory[places] = after
        left = np.delete(left, turn)
        if order is not None:
            order(now, wrote)
        if left.size and not wrote.any() and (updated_by(left)[1] == before[left]).all():
            if order is not None:
                order(left, np.zeros(left.size, bool))
            return before
    return before
