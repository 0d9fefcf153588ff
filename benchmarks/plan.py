"""
What a list of benchmarks takes on a card: CPU seconds of the host, which are measured here with a
stand-in for the device, and seconds of the device, which are planned.

    python -m benchmarks.plan --cases short

On a card the host draws no inputs; it computes what is judged, once a case and for the timed calls,
which is done here at the case's own size. Of the device the time of the rounds is known; what it
takes to compile is assumed.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from attnverify.bench.lists import LISTS, all_cases, estimate_memory
from attnverify.bench.measure.cases import COMPILED, Case
from attnverify.bench.measure.contestants import contestants, has_operation
from attnverify.bench.measure.inputs import draw_inputs
from attnverify.bench.measure.shares import Share, ask, draw_shares
from attnverify.catalogue.operation import CATALOGUE
from attnverify.precision import resolve

CLAIMS = 3
"""Arithmetics that the contestants of a case claim: each has bounds of its own."""

COMPILING = {"forward": 6.0, "backward": 15.0, "both": 15.0}
"""Seconds to compile our own kernels of a case for the first time, in Triton and CUDA C++."""

BY_A_COMPILER = 40.0
"""Seconds that flex_attention or torch.compile takes for a kind of shape."""

A_CONTESTANT = 1.5
"""Seconds of warming up, copies and comparisons on the device, of each who takes part."""


@dataclass(frozen=True)
class Planned:
    """
    A case: seconds of the host and of the device, gigabytes, and how many take part, those that are
    not installed included.
    """

    case: str
    host: float
    device: float
    gigabytes: float
    contestants: int

    def __str__(self) -> str:
        figures = f"{self.host:8.1f} {self.device:8.1f} {self.gigabytes:8.1f} {self.contestants:5}"
        return f"{self.case:48} {figures}"


def plan(case: Case) -> Planned:
    """Measure what the host does for a case, and plan the rest."""
    asked = contestants(case)
    compilers = sum(one.label in COMPILED and has_operation(one, case) for one in asked)
    device = case.seconds + A_CONTESTANT * len(asked)
    device += COMPILING[case.mode] + BY_A_COMPILER * compilers
    return Planned(case.id, host_seconds(case), device, estimate_memory(case) / 1e9, len(asked))


def host_seconds(case: Case) -> float:
    """Seconds to compute all that is judged of a case, less those in which the inputs are drawn."""
    start = time.process_time()
    inputs = draw_inputs(case, 1)
    drawn = time.process_time() - start
    start, rng = time.process_time(), np.random.default_rng(0)
    question = ask(case)
    shares: list[Share] = list(question.shares)
    for _ in range(2 if case.mode == "forward" else 1):
        shares += draw_shares(case, inputs, rng)[0]
    computed = time.process_time() - start - drawn
    claimed = resolve("fused", case.timed, case.timed, case.dtype)
    start = time.process_time()
    for share in shares:
        for claim in range(CLAIMS):
            share.bound(replace(claimed, exp_ulps=claimed.exp_ulps + claim))
    return computed + time.process_time() - start


def plans(name: str, only: str) -> Iterator[Planned]:
    """Plan every case of a list whose name holds these letters."""
    for case in all_cases(name, "cuda"):
        if only in case.id and CATALOGUE[case.operation].is_attention:
            yield plan(case)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--cases", choices=LISTS, default="short")
    parser.add_argument("-k", default="", help="only cases whose name holds this")
    parser.add_argument("--record", type=Path, help="keep the plan there, as JSON")
    given = parser.parse_args(arguments)
    print(f"{'case':48} {'host s':>8} {'device s':>8} {'GB':>8} {'asked':>5}")
    found = []
    for one in plans(given.cases, given.k):
        found.append(one)
        print(one, flush=True)
        if given.record:
            given.record.write_text(json.dumps([asdict(x) for x in found], indent=1) + "\n")
    host, device = sum(x.host for x in found), sum(x.device for x in found)
    minutes = f"{(host + device) / 60:.1f} minutes: host {host:.0f} s, device {device:.0f} s"
    print(f"{len(found)} cases, {minutes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
