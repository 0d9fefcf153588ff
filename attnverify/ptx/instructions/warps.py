"""What the threads of a warp do together: shuffles, votes, reductions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.kinds import Array
from attnverify.ptx.text.operands import Operand, Pair, Sink

if TYPE_CHECKING:
    from attnverify.ptx.execution.machine import Machine

__all__: list[str] = []

WARP = 32
LANE = np.arange(WARP)


def rows(m: "Machine", x: Array) -> Array:
    """[warps 32] the lanes of each warp."""
    return m.full(x).reshape(-1, WARP)


def two(form: Form) -> tuple[Operand, Operand]:
    """Read the first operand, of which the second half may be left out."""
    operand = form.operand(0)
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())


def grouped(members: Step, run: Step) -> Step:
    """The step, for each set of threads of a warp that name the same members."""
    return lambda m: m.in_groups(members(m), run)


@instruction("shfl")
def shuffle(form: Form) -> Step:
    """Read a register of another lane; with a segment and a bound packed into one operand."""
    form.choice("sync")
    mode = form.choice("up", "down", "bfly", "idx")
    form.kind("b32")
    form.expect(5)
    first, second = two(form)
    put, tell = form.writing(first, "b32"), form.writing(second, "pred")
    value, by, bound, members = (form.read(place, "b32") for place in (1, 2, 3, 4))

    def run(m: "Machine") -> None:
        here = m.whole_members("shfl.sync", members(m))
        one_warp = (x if x.size == 1 else rows(m, x) for x in (by(m), bound(m)))
        found = source_lanes(mode, *one_warp)
        source, inside = (np.broadcast_to(x, (m.lanes // WARP, WARP)) for x in found)
        if here is not None:
            check_sources(m, here, source)
        put(m, np.take_along_axis(rows(m, value(m)), source, 1).reshape(-1))
        if not isinstance(second, Sink):
            tell(m, inside.reshape(-1))

    return grouped(members, run)


def source_lanes(mode: str, by: Array, bound: Array) -> tuple[Array, Array]:
    """
    Find the lane that each lane reads, itself where that is out of its range; and whether it is
    within.
    """
    by, clamp, segment = (
        (part & np.uint32(31)).astype(np.int64) for part in (by, bound, bound >> np.uint32(8))
    )
    least = LANE & segment
    most = least | (clamp & ~segment)
    source = {
        "up": lambda: LANE - by,
        "down": lambda: LANE + by,
        "bfly": lambda: LANE ^ by,
        "idx": lambda: least | (by & ~segment),
    }[mode]()
    inside = source >= most if mode == "up" else source <= most
    return np.where(inside, source, LANE), inside


def check_sources(m: "Machine", here: Array, source: Array) -> None:
    """Refuse a lane that would read one that is not here."""
    absent = here & ~np.take_along_axis(here, source, 1)
    if absent.any():
        m.fail(
            "partial warp",
            "shfl.sync reads a lane that is not here",
            int(np.flatnonzero(absent.reshape(-1))[0]),
        )


@instruction("vote")
def vote(form: Form) -> Step:
    """Compute what all lanes that take part say of a predicate."""
    form.choice("sync")
    mode = form.choice("all", "any", "uni", "ballot")
    kind = form.kind("b32" if mode == "ballot" else "pred")
    form.expect(3)
    put, asked, members = form.write(0, kind), form.read(1, "pred"), form.read(2, "b32")

    def run(m: "Machine") -> None:
        here = m.whole_members("vote.sync", members(m))
        x = rows(m, asked(m))
        here = np.ones_like(x) if here is None else here
        put(m, np.repeat(VOTES[mode](x, here), WARP))

    return grouped(members, run)


def ballot(x: Array, here: Array) -> Array:
    return ((x & here).astype(np.uint64) << LANE.astype(np.uint64)).sum(1).astype(np.uint32)


VOTES: dict[str, Callable[[Array, Array], Any]] = {
    "all": lambda x, here: np.all(x | ~here, axis=1),
    "any": lambda x, here: np.any(x & here, axis=1),
    "uni": lambda x, here: np.all(x | ~here, axis=1) | np.all(~x | ~here, axis=1),
    "ballot": ballot,
}


@instruction("activemask")
def active_mask(form: Form) -> Step:
    form.kind("b32")
    form.expect(1)
    put = form.write(0, "b32")

    def run(m: "Machine") -> None:
        here = np.ones((m.lanes // WARP, WARP), bool) if m.mask is None else rows(m, m.mask)
        put(m, np.repeat(ballot(here, here), WARP))

    return run


@instruction("elect")
def elect(form: Form) -> Step:
    """Choose one lane of those that take part: the lowest."""
    form.choice("sync")
    form.expect(2)
    first, second = two(form)
    put, tell, members = (
        form.writing(first, "b32"),
        form.writing(second, "pred"),
        form.read(1, "b32"),
    )

    def run(m: "Machine") -> None:
        here = m.whole_members("elect.sync", members(m))
        lowest = np.zeros(m.lanes // WARP, int) if here is None else np.argmax(here, axis=1)
        put(m, np.repeat(lowest, WARP).astype(np.uint32))
        tell(m, (lowest[:, None] == LANE).reshape(-1))

    return grouped(members, run)


REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
NEUTRAL = {"add": 0, "or": 0, "xor": 0, "and": -1}


@instruction("redux")
def reduce(form: Form) -> Step:
    """Compute the sum, least, largest or joined bits of the lanes that take part."""
    form.choice("sync")
    name = form.choice(*REDUCTIONS)
    kind = form.kind(*(["b32"] if name in ("and", "or", "xor") else ["u32", "s32"]))
    form.expect(3)
    put, value, members = form.write(0, kind), form.read(1, kind), form.read(2, "b32")
    limits, least = np.iinfo(kind.dtype), name == "min"
    neutral = np.array(NEUTRAL.get(name, limits.max if least else limits.min)).astype(kind.dtype)

    def run(m: "Machine") -> None:
        here = m.whole_members("redux.sync", members(m))
        x = rows(m, value(m))
        x = x if here is None else np.where(here, x, neutral)
        put(m, np.repeat(REDUCTIONS[name].reduce(x, axis=1, dtype=kind.dtype), WARP))

    return grouped(members, run)


@instruction("match")
def match(form: Form) -> Step:
    """Find which lanes hold the same value: those of each lane, or all or none."""
    mode = form.choice("any", "all")
    form.choice("sync")
    kind = form.kind("b32", "b64")
    form.expect(3)
    first, second = two(form)
    put, tell = form.writing(first, "b32"), form.writing(second, "pred")
    value, members = form.read(1, kind), form.read(2, "b32")

    def run(m: "Machine") -> None:
        here = m.whole_members("match.sync", members(m))
        x = rows(m, value(m))
        here = np.ones(x.shape, bool) if here is None else here
        same = (x[:, :, None] == x[:, None, :]) & here[:, None, :]
        if mode == "all":
            same = same & (same | ~here[:, None, :]).all(2, keepdims=True)
            tell(m, same.any(2).reshape(-1))
        put(
            m,
            (same.astype(np.uint64) << LANE.astype(np.uint64)).sum(2).astype(np.uint32).reshape(-1),
        )

    return grouped(members, run)
