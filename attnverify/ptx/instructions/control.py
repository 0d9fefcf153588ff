"""Where a thread goes on: branches, ends, barriers, fences, and hints that change no result."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.execution.barriers import arrive, wait
from attnverify.ptx.instructions.bulk.tensors import acquire_map
from attnverify.ptx.kinds import Array, Kind
from attnverify.ptx.text.operands import Symbol
from attnverify.ptx.text.syntax import RESULT

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

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


@instruction("brx", own_guard=True)
def branch_by_number(form: Form) -> Step:
    """Each thread goes to the label that its number chooses, as in a ``switch``."""
    form.choice("idx")
    form.flag("uni")
    form.expect(2)
    table, program = form.operand(1), form.kernel.program
    if not isinstance(table, Symbol) or table.name not in program.tables:
        raise form.refuse("wanted a table of labels")
    names = program.tables[table.name]
    targets = np.array([program.target(name, form.of.scopes) for name in names])
    number, lanes, index = form.read(0, "u32"), guard_of(form), form.of.index

    def run(m: "Machine") -> int | None:
        taken = lanes(m)
        going = m.active() if taken is m.mask else np.flatnonzero(taken)
        if not going.size:
            return None
        chosen = m.full(number(m))[going]
        if (chosen >= len(targets)).any():
            lane = int(going[np.flatnonzero(chosen >= len(targets))[0]])
            m.fail(
                "out of bounds", f"a branch to a label of {len(targets)} that is not there", lane
            )
        m.stand(index + 1)
        m.at[going] = targets[chosen]
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
    """``bar.sync`` of a block, or of so many of its threads, ``.arrive``; of a warp."""
    if form.flag("warp"):
        form.choice("sync")
        form.expect(1)
        return warp_barrier(form)
    if form.flag("cluster"):
        raise form.refuse("clusters of blocks are not executed")
    form.flag("cta")
    if form.flag("red"):
        return barrier_with_votes(form)
    how = form.choice("sync", "arrive")
    form.flag("aligned")
    form.expect(1, 2)
    number = form.whole(0)
    if not 0 <= number < 16:
        raise form.refuse("a block has barriers 0 to 15")
    threads = form.read(1, "u32") if len(form.operands) == 2 else None
    if how == "arrive":
        if threads is None:
            raise form.refuse("bar.arrive says how many threads are waited for")
        return lambda m: arrive(m, number, threads(m))
    return lambda m: wait(m, number, None if threads is None else threads(m))


VOTES: dict[str, Callable[[Array, Array], Array]] = {
    "popc": lambda block, said: np.bincount(block, said),
    "and": lambda block, said: np.bincount(block, ~said) == 0,
    "or": lambda block, said: np.bincount(block, said) > 0,
}
"""By the name of a vote: what comes out for each block, of the block and the word of each lane."""


def barrier_with_votes(form: Form) -> Step:
    """
    ``bar.red``: a barrier, at which each thread says yes or no; behind it all know how many said
    yes, whether all did, or whether any did. Read as two instructions: threads that have passed
    stand at the second one together.
    """
    name = form.choice(*VOTES)
    form.flag("aligned")
    kind = form.kind("u32" if name == "popc" else "pred")
    form.expect(3, 4)
    said, votes = form.read(len(form.operands) - 1, "pred"), form.kernel.votes
    number = form.whole(1)
    if not 0 <= number < 16:
        raise form.refuse("a block has barriers 0 to 15")
    if form.flag(RESULT):
        return result_of_votes(form, name, kind)
    threads = form.read(2, "u32") if len(form.operands) == 4 else None

    def run(m: "Machine") -> int | None:
        m.put(votes, m.full(said(m)))
        return wait(m, number, None if threads is None else threads(m))

    return run


def result_of_votes(form: Form, name: str, kind: Kind) -> Step:
    put, votes, count = form.write(0, kind), form.kernel.votes, VOTES[name]

    def run(m: "Machine") -> None:
        lanes = m.active()
        lanes = lanes[m.alive[lanes]]
        said, block = m.full(m.registers[votes])[lanes], m.block[lanes]
        of = count(block, said)
        found = np.zeros(len(m.blocks), kind.dtype)
        found[: len(of)] = of
        put(m, found[m.block])

    return run


def warp_barrier(form: Form) -> Step:
    members = form.read(0, "u32")

    def run(m: "Machine") -> None:
        m.in_groups(members(m), lambda m: m.whole_members("bar.warp.sync", members(m)))

    return run


@instruction("fence", "membar")
def fence(form: Form) -> Step:
    """
    ``fence.proxy.async`` shows the asynchronous proxy what was written to shared memory; other
    fences make releases of relaxed writes behind them, and acquires of relaxed reads before.
    """
    if form.flag("proxy"):
        if form.flag("tensormap::generic"):
            return acquire_map(form)
        form.expect(0)
        form.choice("async", "async.shared::cta")
        form.choice("shared::cta", "global", default="")
        return fence_shared
    form.expect(0)
    form.flag("mbarrier_init")
    for_block = form.choice("cta", "gpu", "gl", "sys", "cluster") in ("cta", "cluster")
    form.choice("acq_rel", "sc", "acquire", "release", default="")
    return lambda m: m.fence(for_block)


def fence_shared(m: "Machine") -> None:
    if m.shared.asynchronous and m.setup.races:
        lanes = m.active()
        m.note_use(m.shared.fence(m.block[lanes], m.of(m.of_block, lanes)))


def nothing(m: "Machine") -> None:
    """Changes no result."""


@instruction("setmaxnreg")
def give_registers(form: Form) -> Step:
    """How many registers the threads of four warps have from now on: 24 to 256, in eights."""
    form.choice("inc", "dec")
    form.choice("sync")
    form.choice("aligned")
    form.kind("u32")
    form.expect(1)
    count = form.whole(0)
    if count % 8 or not 24 <= count <= 256:
        raise form.refuse("registers are 24 to 256, in eights")

    def run(m: "Machine") -> None:
        m.whole_warps("setmaxnreg")

    return run


@instruction("nanosleep", "prefetch", "prefetchu", "griddepcontrol", "pmevent")
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
