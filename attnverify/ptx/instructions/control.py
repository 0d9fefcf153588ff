"""Where a thread goes on: branches, ends, barriers, fences, and hints that change no result."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.kinds import Array
from attnverify.ptx.text.operands import Symbol

if TYPE_CHECKING:
    from attnverify.ptx.machine import Machine

__all__: list[str] = []

STOP = -1


def guard_of(form: Form) -> "Step":
    """
    Find the lanes for which an instruction's own guard holds; None stands for all lanes that are
    here.
    """
    guard, inverted = form.of.guard, form.of.inverted
    if guard is None:
        return lambda m: m.mask
    index = guard.index

    def lanes(m: "Machine") -> Array | None:
        holds = ~m.registers[index] if inverted else m.registers[index]
        if holds.size == 1:
            if holds[0]:
                return m.mask
            return np.zeros(m.lanes, bool)
        return holds if m.mask is None else holds & m.mask

    return lanes


@instruction("bra", own_guard=True)
def branch(form: Form) -> Step:
    form.expect(1)
    form.flag("uni")
    label = form.operand(0)
    if not isinstance(label, Symbol):
        raise form.refuse("wanted a label")
    target, lanes, index = (
        form.kernel.program.target(label.name, form.of.scopes),
        guard_of(form),
        form.of.index,
    )
    if form.of.guard is None:
        return lambda m: target

    def run(m: "Machine") -> int | None:
        taken = lanes(m)
        if taken is None or (m.mask is not None and np.array_equal(taken, m.mask)):
            return target
        if not taken.any():
            return None
        if m.mask is None and taken.all():
            return target
        m.stand(index + 1)
        m.stand(target, taken)
        return STOP

    return run


@instruction("ret", "exit", own_guard=True)
def end(form: Form) -> Step:
    form.expect(0)
    form.flag("uni")
    lanes, index = guard_of(form), form.of.index

    def run(m: "Machine") -> int | None:
        ending = lanes(m)
        if ending is not None and not ending.any():
            return None
        m.stand(index + 1)
        before, m.mask = m.mask, ending
        m.end()
        m.mask = before
        return STOP

    return run


@instruction("bar", "barrier")
def barrier(form: Form) -> Step:
    """``bar.sync`` of a block, or of so many of its threads; ``bar.warp.sync`` of a warp."""
    if form.flag("warp"):
        form.choice("sync")
        form.expect(1)
        return warp_barrier(form)
    form.flag("cta")
    form.choice("sync")
    form.flag("aligned")
    form.expect(1, 2)
    number = form.whole(0)
    if not 0 <= number < 16:
        raise form.refuse("a block has barriers 0 to 15")
    threads = form.read(1, "u32") if len(form.operands) == 2 else None
    return lambda m: m.wait(number, None if threads is None else threads(m))


def warp_barrier(form: Form) -> Step:
    members = form.read(0, "u32")

    def run(m: "Machine") -> None:
        m.whole_members("bar.warp.sync", members(m))

    return run


@instruction("fence", "membar")
def fence(form: Form) -> Step:
    """
    ``fence.proxy.async`` shows the asynchronous proxy what was written to shared memory.

    Other fences order memory between threads, which the machine does not model: it executes in one
    order, and they change nothing.
    """
    form.expect(0)
    if form.flag("proxy"):
        form.choice("async", "async.shared::cta")
        form.choice("shared::cta", "global", default="")
        return fence_shared
    form.choice("cta", "gpu", "gl", "sys", "cluster")
    form.choice("acq_rel", "sc", "acquire", "release", default="")
    return nothing


def fence_shared(m: "Machine") -> None:
    if m.shared.asynchronous and m.setup.races:
        lanes = m.active()
        m.note_use(m.shared.fence(m.block[lanes], m.of(m.of_block, lanes)))


def nothing(m: "Machine") -> None:
    """Changes no result."""


@instruction("nanosleep", "prefetch", "prefetchu", "setmaxnreg", "griddepcontrol", "pmevent")
def hint(form: Form) -> Step:
    """Of speed alone."""
    form.modifiers.clear()
    return nothing


@instruction("createpolicy")
def policy(form: Form) -> Step:
    """How a cache is used: any number will do."""
    form.modifiers.clear()
    put = form.write(0, "b64")
    return lambda m: put(m, np.zeros(1, np.uint64))


@instruction("trap")
def trap(form: Form) -> Step:
    form.expect(0)

    def run(m: "Machine") -> Any:
        m.fail("trap", "the kernel stops itself", int(m.active()[0]))

    return run
