"""
Why an instruction that is there for the order of others is redundant: what lies on both sides of
it, seen in launches from which all that are redundant are gone.

A barrier orders what is done to shared memory before it, back to the barrier that is left, with
what is done behind it, up to the next. A wait and a fence order what they find under way (bytes
that are copied to, or that products do not see yet; registers) with what is done until the next.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from attnverify.ptx.execution.machine import Machine
from attnverify.ptx.kernel import Kernel, Recorded
from attnverify.ptx.removal import is_for_order
from attnverify.ptx.storage import asynchronous
from attnverify.ptx.storage.groups import Groups
from attnverify.ptx.storage.shadows import Shadow
from attnverify.ptx.text.syntax import Instruction

Marks = np.ndarray[Any, np.dtype[np.bool_]]
"""Places of shared memory, or registers of products."""


@dataclass
class Window:
    """What an instruction that is gone would order, and what it would order that with."""

    index: int
    kind: str
    before: Marks
    behind: Marks
    written: Marks

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        both = self.before & self.behind
        marked = self.before, self.behind, both, both & self.written
        before, behind, both_sides, written = map(np.count_nonzero, marked)
        return int(before), int(behind), int(both_sides), int(written)


UNDER_WAY: dict[str, Callable[[Machine], Marks]] = {
    "cp": lambda m: m.shared.arriving,
    "fence": lambda m: m.shared.unfenced,
    "wgmma.fence": lambda m: m.groups.unfenced.any(1),
    "wgmma.wait_group": lambda m: m.groups.written.any(1),
}


def kind_of(of: Instruction) -> str:
    return f"wgmma.{of.modifiers[0]}" if of.name == "wgmma" else of.name


class Diary:
    """What is done, from one instruction of a kind that is left to the next."""

    def __init__(self) -> None:
        self.shadow: Shadow | None = None
        self.since, self.written = np.zeros(0, bool), np.zeros(0, bool)
        self.open: list[Window] = []
        self.seen: dict[int, tuple[int, ...]] = {}

    def enter(self, shadow: Shadow) -> None:
        """Each block has shared memory of its own here."""
        if shadow is not self.shadow:
            self.close()
            self.shadow = shadow
            self.since, self.written = np.zeros((2, len(shadow.writer)), bool)

    def close(self, kind: str = "") -> None:
        for window in self.open:
            if kind in ("", window.kind):
                sizes = zip(window.sizes, self.seen.get(window.index, (0,) * 4), strict=True)
                self.seen[window.index] = tuple(map(max, sizes))
        self.open = [window for window in self.open if kind not in ("", window.kind)]

    def pass_by(self, m: Machine, index: int, kind: str) -> None:
        """Execution comes by where an instruction was taken out."""
        self.enter(m.shared.shadow)
        before = self.since if kind in ("bar", "barrier") else UNDER_WAY[kind](m)
        written = self.written.copy() if kind in ("bar", "barrier") else np.zeros_like(before)
        self.open.append(Window(index, kind, before.copy(), np.zeros_like(before), written))

    def keep(self, m: Machine, kind: str) -> None:
        """Execution comes by an instruction that is left."""
        self.enter(m.shared.shadow)
        self.close(kind)
        if kind in ("bar", "barrier"):
            self.since[:], self.written[:] = False, False

    def note(self, marks: Any, writes: bool, kinds: Sequence[str]) -> None:
        for window in self.open:
            if window.kind in kinds:
                window.behind[marks] = True
                window.written[marks] |= writes

    def touch(self, shadow: Shadow, places: Any, writes: bool) -> None:
        if shadow.time is None:
            return  # of an array of the device
        self.enter(shadow)
        self.since[places] = True
        self.written[places] |= writes
        self.note(places, writes, ("bar", "barrier", "cp"))


def with_gone(kernel: Kernel, gone: Sequence[int], diary: Diary) -> Kernel:
    """The kernel, some instructions of which are written down and do nothing."""
    made = copy(kernel)
    made.__dict__["steps"] = steps = list(kernel.steps)
    for of in filter(is_for_order, kernel.program.instructions):
        steps[of.index] = written_down(of, steps[of.index], of.index in gone, diary)
    return made


def written_down(of: Instruction, step: Callable[..., Any], gone: bool, diary: Diary) -> Any:
    def run(m: Machine) -> Any:
        if gone:
            return diary.pass_by(m, of.index, kind_of(of))
        diary.keep(m, kind_of(of))
        return step(m)

    return run


@contextmanager
def watching(diary: Diary) -> Iterator[None]:
    """All accesses to shared memory and to registers of products are written down."""

    def before(place: Any, name: str, note: Callable[..., None]) -> None:
        function = getattr(place, name)

        def run(*args: Any, **given: Any) -> Any:
            note(*args)
            return function(*args, **given)

        patch.setattr(place, name, run)

    def access(writes: bool) -> Callable[..., None]:
        def note(shadow: Shadow, places: Any, *_: Any) -> None:
            diary.touch(shadow, places, writes)

        return note

    def product(groups: Groups, product: Any, strict: bool) -> None:
        used = groups.rows_of((*product.accumulator, *product.left))
        diary.note(used, True, ("wgmma.fence",))

    def registers(groups: Groups, reads: Any, writes: Any, warps: Any) -> None:
        diary.note(np.concatenate([reads, writes]), True, ("wgmma.wait_group",))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("note_read", "write", "update"):
            before(Shadow, name, access(name != "note_read"))
        operand = lambda m, places, lanes: diary.note(places, False, ("fence",))
        before(asynchronous, "check_operand", operand)
        before(Groups, "start", product)
        before(Groups, "touched", registers)
        before(Groups, "copied", registers)
        yield


def explain(launches: Sequence[Recorded], gone: Sequence[int]) -> dict[int, str]:
    """What lies on both sides of each of these instructions, where it is most."""
    diary = Diary()
    with watching(diary):
        for launch in launches:
            alone = replace(launch, lanes=32)
            alone.repeat(with_gone(launch.kernel, gone, diary))
    diary.close()
    unit = launches[0].kernel.unit("shared")
    found = {of.index: kind_of(of) for of in launches[0].kernel.program.instructions}
    return {
        index: in_words(sizes, "registers" if found[index].startswith("wgmma") else "bytes", unit)
        for index, sizes in diary.seen.items()
    }


def in_words(sizes: Sequence[int], what: str, unit: int) -> str:
    before, behind, both, written = (size * (unit if what == "bytes" else 1) for size in sizes)
    told = f"{before} {what} before it, {behind} behind it, {both} of both"
    if not both:
        return told
    return f"{told}, {written} of them written, by one warp" if written else f"{told}, only read"
