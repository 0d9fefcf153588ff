"""
The score of the watch itself: every barrier, wait and fence of a kernel is taken out, one at a
time, and its launches are repeated.

A removal is *noticed* if the machine has a finding, *wrong* if it has none but the kernel leaves
other bits than before, *idle* if the instruction never had anything to order (a wait when nothing
was under way, a barrier before which nobody touched shared memory). Those that pass are taken out
for good, one after the other: of two that cover for each other the second is then noticed. What
can be gone together with all others of its kind, without a finding and without another bit, is
*redundant*: for these launches, and as far as the machine sees.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnverify.ptx.findings import Finding
from attnverify.ptx.kernel import Recorded
from attnverify.ptx.storage.device import Memory
from attnverify.ptx.text.syntax import Instruction

__all__ = ["OUTCOMES", "Removal", "is_for_order", "remove_each", "summary"]


OUTCOMES = ("noticed", "wrong", "redundant", "idle")


@dataclass(frozen=True)
class Removal:
    """One instruction that was taken out, and what came of it."""

    kernel: str
    target: int
    instruction: str
    line: int
    outcome: str
    finding: Finding | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.instruction)


def kind_of(text: str) -> str:
    """Name the kind: ``bar.sync``, ``cp.async.wait_group``, ``wgmma.fence`` ..."""
    name = (
        text.split()[-1]
        if text.startswith("@") and len(text.split()) == 1
        else next(w for w in text.split() if not w.startswith("@"))
    )
    return name.rstrip(";").replace(".sync.aligned", "").replace(".shared::cta", "")


def is_for_order(instruction: Instruction) -> bool:
    """Tell whether an instruction is there for the order of others alone."""
    name, first = instruction.name, instruction.modifiers[:1]
    if name in ("bar", "barrier"):
        return "sync" in instruction.modifiers
    if name == "fence":
        return first == ("proxy",)
    if name == "cp":
        return any(word.startswith("wait") for word in instruction.modifiers)
    return name == "wgmma" and first in (("fence",), ("wait_group",))


def remove_each(*launches: Recorded) -> Iterator[Removal]:
    """
    Every such instruction of a kernel: what comes of it in the launch where it matters most.

    Fences of registers count where the kernel has all of them.
    """
    trials = [Trial.of(watch_fences(recorded)) for recorded in launches]
    kernel = trials[0].recorded.kernel
    gone: list[int] = []
    for instruction in filter(is_for_order, kernel.program.instructions):
        index, finding = instruction.index, None
        outcome = "idle"
        if any(index in trial.useful for trial in trials):
            outcome, finding = outcome_without([index], trials)
            if outcome == "redundant" and gone:
                outcome, finding = outcome_without([*gone, index], trials)
            gone += [index] if outcome == "redundant" else []
        told = kernel.name, kernel.module.target, instruction.text, instruction.line
        yield Removal(*told, outcome, finding)


def watch_fences(recorded: Recorded) -> Recorded:
    """The launch with the watch over fences of registers, if it passes that as it is."""
    strict = replace(recorded, setup=replace(recorded.setup, register_fences=True))
    try:
        strict.repeat()
    except Finding:
        return recorded
    return strict


@dataclass(frozen=True)
class Trial:
    """A launch as it is: which instructions had something to order, and what memory holds then."""

    recorded: Recorded
    useful: set[int]
    expected: list[bytes]

    @classmethod
    def of(cls, recorded: Recorded) -> "Trial":
        memory, useful = recorded.repeat()
        return cls(recorded, useful, contents(memory))

    def without(self, indices: list[int]) -> tuple[str, Finding | None]:
        try:
            memory, _ = self.recorded.repeat(self.recorded.kernel.without(*indices))
        except Finding as finding:
            return "noticed", finding
        return ("redundant" if contents(memory) == self.expected else "wrong"), None


def outcome_without(indices: list[int], trials: list[Trial]) -> tuple[str, Finding | None]:
    """Tell what the first launch shows to which it matters that these instructions are gone."""
    told = (trial.without(indices) for trial in trials)
    return next((each for each in told if each[0] != "redundant"), ("redundant", None))


def contents(memory: Memory) -> list[bytes]:
    return [np.asarray(array.contents).tobytes() for array in memory.arrays]


def summary(removals: list[Removal]) -> str:
    """
    Write a line for each kind of instruction, and one for each that was not noticed or was idle.
    """
    lines = []
    for kind in sorted({removal.kind for removal in removals}):
        of_kind = [removal for removal in removals if removal.kind == kind]
        counted = Counter(removal.outcome for removal in of_kind)
        told = ", ".join(f"{counted[outcome]} {outcome}" for outcome in OUTCOMES)
        lines.append(f"{kind:24} {len(of_kind):4}: {told}")
    for removal in removals:
        if removal.outcome in ("wrong", "redundant"):
            lines.append(
                f"  {removal.outcome}: {removal.kernel} sm_{removal.target}, "
                f"PTX line {removal.line}: {removal.instruction}"
            )
    return "\n".join(lines)
