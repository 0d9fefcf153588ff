"""``mbarrier``: barriers in shared memory, at which threads and bytes arrive."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.decode import Form, Read, Step, instruction
from attnverify.ptx.instructions.loads import memory_space
from attnverify.ptx.kinds import Array
from attnverify.ptx.storage.asynchronous import arrive as finish_copies
from attnverify.ptx.storage.bulk.phases import BYTES, Phases
from attnverify.ptx.storage.device import SHARED_WINDOW
from attnverify.ptx.storage.order import Strength

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__ = ["arrive_behind_copies", "barrier_at", "note_bulk", "phases"]

NOW = "now"


def note_bulk(form: Form) -> None:
    """The kernel has barriers in memory or copies in bulk, which go by the order of warps."""
    form.kernel.bulk = form.kernel.asynchronous = form.kernel.waits = True


def barrier_at(form: Form, place: int, generic: bool = False) -> Read:
    """The shared address of a barrier."""
    form.kernel.touches("shared", BYTES)
    address = form.address(place)
    return (lambda m: address(m) - SHARED_WINDOW) if generic else address


def phases(m: "Machine") -> Phases:
    assert m.phases is not None
    return m.phases


def strength(form: Form, default: str) -> Strength:
    """What an arrival releases, and a wait acquires."""
    how = form.choice("release", "acquire", "relaxed", default=default)
    form.choice("cta", "cluster", default="")
    return Strength(NOW if how == "acquire" else "", NOW if how == "release" else "", True)


@instruction("mbarrier")
def barrier_of_memory(form: Form) -> Step:
    """A barrier begins and ends; threads arrive, and ask whether a phase is over."""
    note_bulk(form)
    name = form.modifiers[0] if form.modifiers else ""
    if name not in BUILDERS:
        raise form.refuse(f"wanted one of .{', .'.join(BUILDERS)}")
    form.modifiers.remove(name)
    return BUILDERS[name](form, name)


def place_of(form: Form, place: int) -> Read:
    space = memory_space(form)
    form.kind("b64")
    if space not in ("shared", "generic"):
        raise form.refuse("an mbarrier lies in shared memory")
    return barrier_at(form, place, space == "generic")


def on_lanes(
    form: Form, place: int, operands: list[Read], function: Callable[..., Any]
) -> Callable[["Machine"], Any]:
    """A function of the phases, the addresses and lanes of the mask, and some operands."""
    address = place_of(form, place)

    def run(m: "Machine") -> Any:
        lanes = m.active()
        given = [m.full(read(m))[lanes] for read in operands]
        return function(phases(m), m.full(address(m))[lanes], lanes, *given)

    return run


def begin(form: Form, name: str) -> Step:
    form.expect(2)
    return on_lanes(form, 0, [form.read(1, "u32")], Phases.begin)


def end(form: Form, name: str) -> Step:
    form.expect(1)
    return on_lanes(form, 0, [], Phases.end)


def expect(form: Form, name: str) -> Step:
    form.flag("relaxed")
    form.choice("cta", "cluster", default="")
    form.expect(2)
    sign = 1 if name == "expect_tx" else -1
    return on_lanes(
        form, 0, [form.read(1, "u32")],
        lambda of, at, lanes, size: of.expect(at, lanes, sign * size.astype(np.int64)),
    )  # fmt: skip


def arrive(form: Form, name: str) -> Step:
    """So many arrivals, one if none are named; or one that expects bytes."""
    how = strength(form, "release")
    form.flag("noComplete")
    expecting = form.flag("expect_tx")
    form.expect(2, 3)
    given = [form.read(2, "u32")] if len(form.operands) == 3 else []
    if expecting and not given:
        raise form.refuse("wanted the bytes that are expected")
    put = form.write(0, "b64")

    def counted(of: Phases, at: Array, lanes: Array, *more: Array) -> Array:
        ones = np.ones(len(lanes), np.int64)
        counts = ones if expecting or not more else more[0]
        size = more[0] if expecting else 0 * ones
        return of.arrive(at, lanes, counts, size, name == "arrive_drop", how)

    states = on_lanes(form, 1, given, counted)

    def run(m: "Machine") -> None:
        found = np.zeros(m.lanes, np.uint64)
        found[m.active()] = states(m)
        put(m, found)

    return run


def arrive_behind_copies(form: Form) -> Step:
    """
    ``cp.async.mbarrier.arrive``: a thread's copies that are under way arrive at a barrier; with
    ``.noinc`` that is one of the arrivals it waits for, else one more.
    """
    note_bulk(form)
    form.choice("arrive")
    counts = int(form.flag("noinc"))
    form.expect(1)

    def counted(of: Phases, at: Array, lanes: Array) -> None:
        finish_copies(of.m, None)
        zeros = np.zeros(len(lanes), np.int64)
        of.arrive(at, lanes, zeros + counts, zeros, False, Strength("", NOW, True))

    return on_lanes(form, 0, [], counted)


def wait(form: Form, name: str) -> Step:
    """
    Whether a phase is over: that of a parity, or that of a state. ``try_wait`` may also suspend the
    thread for a while; here it does not.
    """
    how = strength(form, "acquire")
    by_parity = form.flag("parity")
    form.expect(*((3, 4) if name == "try_wait" else (3,)))
    put = form.write(0, "pred")
    which = form.read(2, "u32" if by_parity else "b64")

    def parity(x: Array) -> Array:
        return (x if by_parity else x >> np.uint64(32)).astype(np.int64) & 1

    over = on_lanes(form, 1, [which], lambda of, at, lanes, x: of.ended(at, lanes, parity(x), how))

    def run(m: "Machine") -> None:
        found = np.zeros(m.lanes, bool)
        lanes = m.active()
        found[lanes] = over(m)
        m.polls += not found[lanes].all()
        put(m, found)

    return run


def pending(form: Form, name: str) -> Step:
    """How many were missing in a state."""
    form.kind("b64")
    form.expect(2)
    return form.result("u32", lambda x: x.astype(np.uint32), [form.read(1, "b64")])


BUILDERS: dict[str, Callable[[Form, str], Step]] = {
    "init": begin,
    "inval": end,
    "expect_tx": expect,
    "complete_tx": expect,
    "arrive": arrive,
    "arrive_drop": arrive,
    "test_wait": wait,
    "try_wait": wait,
    "pending_count": pending,
}
