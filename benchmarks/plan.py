"""
What a list of benchmarks takes on a card: CPU seconds of the host, which are measured here with a
stand-in for the device, and seconds of the device, which are planned.

    python -m benchmarks.plan --cases short
    python -m benchmarks.plan --cases long --alike

On a card the host draws no inputs; it computes what is judged, once a case and for the timed calls,
and compares, which is done here at the case's own size, in one thread, for all who are installed.
What it computes before the timing it does while the contestants are loaded and compiled, of which
only what takes longer counts; what it computes afterwards, in several threads. Of the device the
time of the rounds is known, a call is taken to last as its operations and bytes do at the ceilings,
our kernels were compiled without one, and what it takes to load them, and a compiler, is assumed.
Who is not installed costs nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from attnverify.backends.commit import commit_of_suite
from attnverify.backends.implementation import Implementation
from attnverify.bench.measure import shares
from attnverify.bench.measure.cases import COMPILED, Case
from attnverify.bench.measure.contestants import Contestant, contestants, implementation_of
from attnverify.bench.measure.inputs import draw_inputs, to_library
from attnverify.bench.measure.roofline import SHARE, Ceilings, Cost
from attnverify.bench.measure.sampling import LEAST, WARM_UPS
from attnverify.bench.measure.shares import Share, ask, draw_shares
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.judge.judging import compare_outputs
from benchmarks.processor import name_processor
from benchmarks.races.lists import LISTS, all_cases, estimate_memory

CEILINGS = {
    "bfloat16": Ceilings(flops=6e14, bandwidth=2.5e12, tanh=3e12),
    "float16": Ceilings(flops=6e14, bandwidth=2.5e12, tanh=3e12),
    "float32": Ceilings(flops=4e13, bandwidth=2.5e12, tanh=3e12),
}
"""What a card is taken to reach."""

STARTING = 25.0
"""Seconds until the first case: PyTorch, CuPy and Triton, the device, its ceilings."""

LOADING = 1.0
"""Seconds of each who takes part, to load its kernels and for its first call."""

CALLS = WARM_UPS + 2
"""Calls of each beside the rounds, when it has answered: to warm up, and for its memory."""

TRITON = {"forward": 2.0, "backward": 3.0, "both": 3.0}
CUDA = 5.0
"""
Seconds to compile our own kernels of a kind for the first time: Triton's took 0.4 to 1.9 CPU
seconds each, CUDA C++ 2.2 to 4.3 for forward and gradients together (an AMD EPYC, Zen 5; bfloat16,
D 64, for an sm_90a). The length is none of the kind.
"""

BY_A_COMPILER = 40.0
"""Seconds that flex_attention or torch.compile takes for a kind of shape."""

SIDE_BY_SIDE = 1.5
"""
How many threads' work the host gets done at once after the timing: two took 1.55 times less than
one (the median of six; an AMD EPYC, Zen 5, two cores that others used as well).
"""

Takers = dict[Contestant, Implementation]
Host = tuple[float, float]


@dataclass(frozen=True)
class Planned:
    """
    A case: CPU seconds of the host before the timing and after it; seconds of the device to load
    and compile, and of the timing; gigabytes, how many take part, how many are not installed, and
    whether the host's part was measured of this case or of one like it.
    """

    case: str
    before: float
    after: float
    loading: float
    timing: float
    gigabytes: float
    contestants: int
    missing: int
    measured: bool

    @property
    def seconds(self) -> float:
        return max(self.before, self.loading) + self.timing + self.after / SIDE_BY_SIDE

    def __str__(self) -> str:
        figures = self.before, self.after, self.loading, self.timing, self.seconds, self.gigabytes
        told = "".join(f"{x:9.1f}" for x in figures)
        return f"{self.case:48}{told}{self.contestants:6}{self.missing:8}"


COLUMNS = ("before", "after", "loading", "timing", "seconds", "GB")
HEAD = f"{'case':48}" + "".join(f"{name:>9}" for name in COLUMNS)


def plan(case: Case, compiling: float, known: Host | None = None) -> Planned:
    """Measure what the host does for a case, or take it as known, and plan the rest."""
    asked = contestants(case)
    found = {one: implementation_of(one, case) for one in asked}
    takers = {one: own for one, own in found.items() if not isinstance(own, str)}
    loading, timing = device_seconds(case, takers)
    counts = estimate_memory(case) / 1e9, len(takers), len(asked) - len(takers), known is None
    host = known or host_seconds(case, takers)
    return Planned(case.id, *host, loading + compiling, timing, *counts)


def device_seconds(case: Case, takers: Takers) -> tuple[float, float]:
    """Plan the device's part but for kernels of our own: until all have answered, and from then."""
    call, compilers = call_seconds(case), sum(one.label in COMPILED for one in takers)
    loading = len(takers) * (LOADING + call) + BY_A_COMPILER * compilers
    rounds = max(case.seconds, LEAST * len(takers) * call)
    return loading, rounds + len(takers) * CALLS * call


def call_seconds(case: Case) -> float:
    """A call at the ceilings, of one who computes every pair and moves all that a race may hold."""
    pairs = prod(case.sizes.get(letter, 1) for letter in "BHNM")
    products = 2 * case.sizes.get("D", 0) + case.sizes.get("A", 0) + case.sizes.get("E", 0)
    operations = 2.0 * pairs * products * SHARE[case.mode]
    return CEILINGS[case.dtype].floor(Cost(0.0, operations, estimate_memory(case)))


def host_seconds(case: Case, takers: Takers) -> Host:
    """
    CPU seconds to compute and compare what is judged, before the timing and after it, less those of
    drawing the inputs.
    """
    start = time.process_time()
    inputs = draw_inputs(case, 1)
    drawn, rng = time.process_time(), np.random.default_rng(0)
    compare_all(case, ask(case).shares, takers)
    before = time.process_time()
    for _ in range(2 if case.mode == "forward" else 1):
        compare_all(case, draw_shares(case, inputs, rng)[0], takers)
    return before - drawn - (drawn - start), time.process_time() - before


def compare_all(case: Case, judged: tuple[Share, ...], takers: Takers) -> None:
    """Hold what is expected, as arrays of each library, to itself in the place of each answer."""
    for share in judged:
        for own in takers.values():
            bound = share.bound(own.precision(case.dtype))
            answer = map_leaves(
                partial(to_library, own.backend.library, dtype=case.dtype), share.expected
            )
            list(compare_outputs(answer, share.expected, bound, case.dtype, own))


def plans(name: str, only: str, alike: bool = False) -> Iterator[Planned]:
    """
    Plan every case of a list whose name holds these letters; if asked to, with the host's part of
    the first case of the same operation, mode and lengths.
    """
    known: set[tuple[Any, ...]] = set()
    hosts: dict[tuple[Any, ...], Host] = {}
    for case in all_cases(name, "cuda"):
        if only in case.id:
            kind = case.operation, case.mode, case.sizes["N"], case.sizes.get("M")
            host = hosts.get(kind) if alike else None
            found = plan(case, compiling_seconds(case, known), host)
            hosts[kind] = found.before, found.after
            yield found


def compiling_seconds(case: Case, known: set[tuple[Any, ...]]) -> float:
    """Plan the compiling of our kernels, of what is not known yet; it is from now on."""
    if not CATALOGUE[case.operation].is_attention:
        return 0.0
    kind = case.operation, case.dtype, case.sizes.get("D"), str(case.mask)
    parts = {(*kind, "CUDA C++"): CUDA, (*kind, case.mode): TRITON[case.mode]}
    seconds = sum(took for part, took in parts.items() if part not in known)
    known.update(parts)
    return seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--cases", choices=LISTS, default="short")
    parser.add_argument("-k", default="", help="only cases whose name holds this")
    parser.add_argument("--alike", action="store_true", help="measure one case of each length")
    parser.add_argument("--record", type=Path, help="keep the plan there, as JSON")
    given = parser.parse_args(arguments)
    shares.THREADS = ThreadPoolExecutor(1)  # what its CPU seconds are is asked
    print(f"{HEAD}{'take':>6}{'missing':>8}")
    found = []
    for one in plans(given.cases, given.k, given.alike):
        found.append(one)
        print(one, flush=True)
        if given.record:
            given.record.parent.mkdir(parents=True, exist_ok=True)
            given.record.write_text(json.dumps(record(given.cases, found), indent=1) + "\n")
    print(f"{len(found)} cases, {describe(found)}")
    return 0


def record(name: str, found: list[Planned]) -> dict[str, Any]:
    """A plan as plain data: where the host's part was measured, and every case."""
    told = {"list": name, "commit": commit_of_suite(), "machine": name_processor()}
    cases = [asdict(one) | {"seconds": one.seconds} for one in found]
    return told | {"numpy": np.__version__, "plan": describe(found), "cases": cases}


def describe(found: list[Planned]) -> str:
    """The sums, in words."""
    whole = STARTING + sum(x.seconds for x in found)
    host = sum(x.before + x.after for x in found)
    waited = whole - STARTING - sum(x.loading + x.timing for x in found)
    return f"{whole / 60:.1f} minutes; host {host:.0f} CPU s, waited for {waited:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
