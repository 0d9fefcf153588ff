"""``cp.async.bulk``, ``cp.reduce.async.bulk`` and ``tensormap``: copies that need no thread."""

from typing import TYPE_CHECKING

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.instructions import atomics
from attnverify.ptx.instructions.bulk.barriers import barrier_at, note_bulk
from attnverify.ptx.instructions.loads import memory_space, skip_hints
from attnverify.ptx.kinds import KINDS
from attnverify.ptx.storage.access import WIDE, store
from attnverify.ptx.storage.bulk.maps import FIELDS, SIZE, TensorMap
from attnverify.ptx.storage.bulk.traffic import CHUNK, Traffic, Update
from attnverify.ptx.text.operands import Box

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["acquire_map", "copy_in_bulk", "reduce_in_bulk"]

GRAIN = 2
"""Bytes of global memory that are watched at least, where elements are known at a launch alone."""


def traffic(m: "Machine") -> Traffic:
    assert m.traffic is not None
    return m.traffic


def copy_in_bulk(form: Form) -> Step:
    """A ``cp`` that is ``.bulk``: of a tensor, or of bytes in a row; and the groups of both."""
    note_bulk(form)
    if form.flag("commit_group"):
        form.expect(0)
        return lambda m: traffic(m).commit()
    if form.flag("wait_group"):
        form.flag("read")
        form.expect(1)
        pending = form.whole(0)
        return lambda m: traffic(m).wait(pending)
    if form.flag("prefetch"):
        form.modifiers.clear()
        return lambda m: None
    form.kernel.touches("shared", CHUNK)
    form.kernel.touches("global", GRAIN)
    hinted = skip_hints(form)
    return of_tensor(form, hinted) if form.flag("tensor") else of_row(form, hinted)


def of_tensor(form: Form, hinted: bool, update: Update | None = None) -> Step:
    form.flag("tile")
    rank = int(form.choice("1d", "2d", "3d", "4d", "5d")[0])
    brings = update is None and form.modifiers[0] != "global"
    take_direction(form, brings)
    form.expect((3 if brings else 2) + hinted)
    box = form.operand(1 if brings else 0)
    if not isinstance(box, Box) or len(box.corner.items) != rank:
        raise form.refuse(f"wanted [map, {{{rank} coordinates}}]")
    corner = [form.reading(item, "s32") for item in box.corner.items]
    map_at, shared = form.address_of(box.of), form.address(0 if brings else 1)
    barrier = barrier_at(form, 2) if brings else None

    def run(m: "Machine") -> None:
        lanes = m.active()
        corners = np.stack([m.full(read(m))[lanes] for read in corner], 1).astype(np.int64)
        maps, at = (m.full(read(m))[lanes] for read in (map_at, shared))
        if barrier is None:
            traffic(m).take_boxes(maps, corners, at, lanes, update)
        else:
            traffic(m).bring_boxes(at, maps, corners, m.full(barrier(m))[lanes], lanes)

    return run


def take_direction(form: Form, brings: bool) -> None:
    """Takes where a copy goes from and to, and by what it is waited for."""
    if brings:
        form.choice("shared::cta", "shared::cluster")
        form.choice("global")
        form.choice("mbarrier::complete_tx::bytes")
    else:
        form.choice("global")
        form.choice("shared::cta")
        form.choice("bulk_group")


def of_row(form: Form, hinted: bool) -> Step:
    brings = form.modifiers[0] != "global"
    take_direction(form, brings)
    form.expect((4 if brings else 3) + hinted)
    to, of, size = form.address(0), form.address(1), form.read(2, "u32")
    barrier = barrier_at(form, 3) if brings else None

    def run(m: "Machine") -> None:
        lanes = m.active()
        to_, of_, sizes = (m.full(read(m))[lanes] for read in (to, of, size))
        if (sizes % CHUNK).any():
            lane = int(lanes[np.flatnonzero(sizes % CHUNK)[0]])
            m.fail("misaligned", f"a bulk copy of a size that is no multiple of {CHUNK}", lane)
        if barrier is None:
            traffic(m).take(to_, of_, sizes, lanes)
        else:
            traffic(m).bring(to_, of_, sizes, m.full(barrier(m))[lanes], lanes)

    return run


def reduce_in_bulk(form: Form) -> Step:
    """Boxes are added to what lies in an array, or joined with it in another way."""
    note_bulk(form)
    form.choice("async")
    form.choice("bulk")
    form.choice("tensor")
    form.kernel.touches("shared", CHUNK)
    form.kernel.touches("global", GRAIN)
    hinted = skip_hints(form)
    name = form.choice("add", "min", "max", "inc", "dec", "and", "or", "xor")

    def update(of: TensorMap) -> atomics.Operation:
        kind = KINDS[of.kind]
        bits = KINDS[f"b{8 * kind.size}"] if name in atomics.BITWISE else kind
        return atomics.operation(form, name, bits, "global")

    return of_tensor(form, hinted, update)


@instruction("tensormap")
def change_map(form: Form) -> Step:
    note_bulk(form)
    if form.flag("cp_fenceproxy"):
        return publish_map(form)
    form.choice("replace")
    form.choice("tile")
    name = form.choice(*(FIELDS.names or ()))
    space = memory_space(form)
    form.choice("b1024")
    size = FIELDS[name].base.itemsize
    form.kind(f"b{8 * size}")
    several = FIELDS[name].shape != ()
    form.expect(3 if several else 2)
    at = FIELDS.fields[name][1]  # type: ignore[index]
    if several:
        place = form.whole(1)
        if not 0 <= place < FIELDS[name].shape[0]:
            raise form.refuse(f"a map has {FIELDS[name].shape[0]} of these")
        at += place * size
    form.kernel.touches(space, size)
    address, value = form.address(0), form.read(len(form.operands) - 1, f"b{8 * size}")

    def run(m: "Machine") -> None:
        lanes = m.active()
        values = np.ascontiguousarray(m.full(value(m))[lanes]).view(WIDE[size])
        store(m, space, m.full(address(m))[lanes] + at, lanes, size, values)

    return run


def publish_map(form: Form) -> Step:
    """A whole warp copies one map from shared to global memory, for other proxies to see."""
    for name in ("global", "shared::cta", "tensormap::generic", "release"):
        form.choice(name)
    form.choice("cta", "cluster", "gpu", "sys")
    form.choice("sync")
    form.choice("aligned")
    form.expect(3)
    check_size(form, 2)
    form.kernel.touches("shared", CHUNK)
    form.kernel.touches("global", CHUNK)
    to, of = form.address(0), form.address(1)

    def run(m: "Machine") -> None:
        m.whole_warps("tensormap.cp_fenceproxy")
        lanes = m.active()[::32]
        traffic(m).publish_map(m.full(to(m))[lanes], m.full(of(m))[lanes], lanes)

    return run


def acquire_map(form: Form) -> Step:
    """``fence.proxy.tensormap``: copies behind it see what was written to a map."""
    note_bulk(form)
    way = form.choice("acquire", "release")
    form.choice("cta", "cluster", "gpu", "sys")
    if way == "release":
        form.expect(0)
        return lambda m: None
    form.expect(2)
    check_size(form, 1)
    address = form.address(0)

    def run(m: "Machine") -> None:
        lanes = m.active()
        traffic(m).acquire_map(m.full(address(m))[lanes], lanes)

    return run


def check_size(form: Form, place: int) -> None:
    if form.whole(place) != SIZE:
        raise form.refuse(f"a tensor map has {SIZE} bytes")
