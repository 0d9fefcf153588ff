"""
Every barrier, wait and fence of every kernel of ours, taken out one at a time: how many the machine
notices, and which of them can all be gone at once. What is known already is made again where it is
named alone.

    python -m tests.ptx.own_kernels.removals --record docs/data/removals.json --only "triton sm_90"
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from attnverify.ptx.kernel import Recorded
from attnverify.ptx.removal import Removal, remove_each
from tests.ptx.own_kernels.cases import CASES, LONGER, Case
from tests.ptx.own_kernels.cuda import cuda_on_machine, run_cuda
from tests.ptx.own_kernels.published import lines_of, write
from tests.ptx.own_kernels.redundancy import explain
from tests.ptx.own_kernels.triton import run_triton, triton_on_machine


@dataclass(frozen=True)
class Compiled:
    """The kernels of one column, for one GPU and dtype, that a kind of case needs."""

    column: str
    target: int
    dtype: str
    case: str

    def __str__(self) -> str:
        return f"{self.column} sm_{self.target} {self.dtype}, {self.case}"

    def launches(self) -> Iterator[list[Recorded]]:
        """The launches of each kernel, with few keys and with many."""
        calls = [*self.record(CASES[self.case]), *self.record(LONGER[self.case])]
        of_kernel: dict[tuple[str, str], list[Recorded]] = {}
        for call in calls:
            of_kernel.setdefault((call.kernel.name, call.kernel.module.text.text), []).append(call)
        yield from of_kernel.values()

    def sizes(self) -> str:
        cases = CASES[self.case].shapes, LONGER[self.case].shapes
        return ", ".join(f"{query[-2]} queries and {key[-2]} keys" for query, key, *_ in cases)

    def record(self, case: Case) -> list[Recorded]:
        calls: list[Recorded] = []
        if self.column == "triton":
            with triton_on_machine(self.target, record=calls):
                run_triton(case, self.dtype)
        else:
            with cuda_on_machine(self.target, record=calls):
                run_cuda(case, self.dtype)
        return calls


ALL = [
    Compiled(column, target, "bfloat16", case)
    for (column, target), case in product((("triton", 90), ("triton", 80), ("cuda", 80)), CASES)
]
"""NVRTC makes the same instructions of our CUDA C++ for sm_80 and for sm_90a."""


def told(
    of: Compiled, removals: Sequence[Removal], reasons: Sequence[str], seconds: float
) -> dict[str, Any]:
    """What is published: counts by kind of instruction, and what is redundant, with its reason."""
    kinds: dict[str, dict[str, int]] = {}
    for removal in removals:
        counts = kinds.setdefault(removal.kind, {})
        counts[removal.outcome] = counts.get(removal.outcome, 0) + 1
    rest = [
        f"{removal.kernel}, PTX line {removal.line}: {removal.instruction}: {reason}"
        for removal, reason in zip(redundant(removals), reasons, strict=True)
    ]
    spent = {"CPU seconds": round(seconds)}
    return {"kernels": str(of), "launches": of.sizes(), "kinds": kinds, "redundant": rest} | spent


def redundant(removals: Sequence[Removal]) -> list[Removal]:
    return [removal for removal in removals if removal.outcome == "redundant"]


def reasons_of(calls: Sequence[Recorded], removals: Sequence[Removal]) -> list[str]:
    """What lies on both sides of each instruction that is redundant in these launches."""
    at = {(of.line, of.text): of.index for of in calls[0].kernel.program.instructions}
    gone = [at[removal.line, removal.instruction] for removal in redundant(removals)]
    found = explain(calls, gone)
    return [found[index] for index in gone]


def remove(of: Compiled) -> dict[str, Any]:
    started = time.process_time()
    removals, reasons = list[Removal](), list[str]()
    for calls in of.launches():
        made = list(remove_each(*calls))
        removals += made
        reasons += reasons_of(calls, made)
    return told(of, removals, reasons, time.process_time() - started)


def count(lines: Sequence[dict[str, Any]], outcome: str) -> int:
    return sum(kind.get(outcome, 0) for line in lines for kind in line["kinds"].values())


def share_noticed(lines: Sequence[dict[str, Any]]) -> float:
    """Of what has something to order in some launch."""
    noticed = count(lines, "noticed")
    return noticed / (noticed + count(lines, "redundant") + count(lines, "wrong"))


def order(line: dict[str, Any]) -> int:
    return list(map(str, ALL)).index(line["kernels"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--only", default="", help="these, whether they are known or not")
    given = parser.parse_args()
    held = {line["kernels"]: line for line in lines_of(given.record, "kernels")}
    for each in ALL:
        if given.only in str(each) and (given.only or str(each) not in held):
            held[str(each)] = remove(each)
            lines = sorted(held.values(), key=order)
            write(given.record, "two launches of each kernel", "kernels", lines)
            print(each, f"{share_noticed([held[str(each)]]):.1%}", flush=True)
    lines = list(held.values())
    print(f"{share_noticed(lines):.1%} noticed, {count(lines, 'redundant')} redundant")
