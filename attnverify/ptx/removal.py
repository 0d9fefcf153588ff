"""
The score of the watch itself: every barrier, wait and fence of a kernel is taken out, one at a
time, and the launch is repeated.

A removal is *noticed* if the machine has a finding, *wrong* if it has none but the kernel leaves
other bits than before, *idle* if the instruction never had anything to order (a wait when nothing
was under way, a barrier before which nobody touched shared memory), and *silent* otherwise: then
this launch did not need it, or the machine does not see what it is for.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnverify.ptx.findings import Finding
from attnverify.ptx.kernel import Kernel, Recorded
from attnverify.ptx.storage.device import Memory
from attnverify.ptx.text.syntax import Instruction

__all__ = ["OUTCOMES", "Removal", "orders", "remove_each", "summary"]


OUTCOMES = ("noticed", "wrong", "silent", "idle")


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
    """``bar.sync``, ``cp.async.wait_group``, ``wgmma.fence`` ..."""
    name = (
        text.split()[-1]
        if text.startswith("@") and len(text.split()) == 1
        else next(w for w in text.split() if not w.startswith("@"))
    )
    return name.rstrip(";").replace(".sync.aligned", "").replace(".shared::cta", "")


def orders(instruction: Instruction) -> bool:
    """Whether an instruction is there for the order of others alone."""
    name, first = instruction.name, instruction.modifiers[:1]
    if name in ("bar", "barrier"):
        return "sync" in instruction.modifiers
    if name == "fence":
        return first == ("proxy",)
    if name == "cp":
        return any(word.startswith("wait") for word in instruction.modifiers)
    return name == "wgmma" and first in (("fence",), ("wait_group",))


def remove_each(recorded: Recorded) -> Iterator[Removal]:
    """
    Every such instruction of the kernel that the launch executes; fences of registers count where
    the kernel has all of them.
    """
    recorded = strictly(recorded)
    kernel = recorded.kernel
    memory, useful = recorded.repeat()
    for instruction in kernel.program.instructions:
        if orders(instruction):
            outcome, finding = outcome_without(
                recorded, kernel, instruction.index, contents(memory)
            )
            if outcome == "silent" and instruction.index not in useful:
                outcome = "idle"
            yield Removal(
                kernel.name,
                kernel.module.target,
                instruction.text,
                instruction.line,
                outcome,
                finding,
            )


def strictly(recorded: Recorded) -> Recorded:
    """The launch with the watch over fences of registers, if it passes that as it is."""
    strict = replace(recorded, setup=replace(recorded.setup, register_fences=True))
    try:
        strict.repeat()
    except Finding:
        return recorded
    return strict


def outcome_without(
    recorded: Recorded, kernel: Kernel, index: int, expected: list[bytes]
) -> tuple[str, Finding | None]:
    try:
        memory, _ = recorded.repeat(kernel.without(index))
    except Finding as finding:
        return "noticed", finding
    return ("silent" if contents(memory) == expected else "wrong"), None


def contents(memory: Memory) -> list[bytes]:
    return [np.asarray(array.contents).tobytes() for array in memory.arrays]


def summary(removals: list[Removal]) -> str:
    """
    A line for each kind of instruction, and one for each removal of something useful that was not
    noticed.
    """
    lines = []
    for kind in sorted({removal.kind for removal in removals}):
        of_kind = [removal for removal in removals if removal.kind == kind]
        counted = Counter(removal.outcome for removal in of_kind)
        told = ", ".join(f"{counted[outcome]} {outcome}" for outcome in OUTCOMES)
        lines.append(f"{kind:24} {len(of_kind):4}: {told}")
    for removal in removals:
        if removal.outcome in ("wrong", "silent"):
            lines.append(
                f"  {removal.outcome}: {removal.kernel} sm_{removal.target}, "
                f"PTX line {removal.line}: {removal.instruction}"
            )
    return "\n".join(lines)
