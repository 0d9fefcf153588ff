"""
Search for legal evaluations beyond their derived bound, of operations outside of the catalogue, of
what is written by hand inside it, and of their gradients:

    python -m tests.outside.search --runs 10000 --dtype float32
    python -m tests.outside.search --specification rms_norm

It prints the largest share of the bound for each, and how to see again what exceeds it. Each climb
takes twelve evaluations of one call under one arithmetic.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np

from attnverify.derived import Derived, derive, derive_gradient
from attnverify.derived.legal.evaluations import climb
from attnverify.inputs.expand import expand
from attnverify.precision import FORMATS, PRESETS
from tests.outside.catalogue import WRITTEN
from tests.outside.draws import draw, gradient_of
from tests.outside.specifications import SEARCHED
from tests.rounding_variants.cases import small_recipe

DECLARED = ("eager", "fused", "wide", "sloppy", "stepwise")
ARRIVING = ("d_output", "d_weights")
STEPS = 12

Trace = Callable[[str, int], Derived]


def traces() -> dict[str, Trace]:
    """What is searched: each draws a call in a dtype by a seed."""
    found: dict[str, Trace] = {}
    for function in SEARCHED:
        found |= _of_outside(function)
    for function, names in WRITTEN.items():
        found |= _of_catalogue(function, names.split())
    return found


def _of_outside(function: Callable[..., Any]) -> dict[str, Trace]:
    def forward(dtype: str, seed: int) -> Derived:
        return derive(function, draw(function, dtype, seed))

    def backward(dtype: str, seed: int) -> Derived:
        return gradient_of(function, draw(function, dtype, seed), dtype)[0]

    return {function.__name__: forward, f"{function.__name__}_grad": backward}


def _of_catalogue(function: Callable[..., Any], wanted: list[str]) -> dict[str, Trace]:
    name = function.__name__

    def forward(dtype: str, seed: int) -> Derived:
        return derive(function, catalogued(name, dtype, seed))

    def backward(dtype: str, seed: int) -> Derived:
        return gradient_in(function, wanted, catalogued(f"{name}_grad", dtype, seed))

    return {name: forward, f"{name}_grad": backward}


def catalogued(operation: str, dtype: str, seed: int) -> dict[str, Any]:
    """A small call of the catalogue, without numbers in hidden slots that are none."""
    rng = Random(f"{operation} {dtype} {seed}")
    while (recipe := small_recipe(rng, operation)).poison:
        pass
    return expand(recipe, dtype)


def gradient_in(function: Callable[..., Any], wanted: list[str], inputs: dict[str, Any]) -> Derived:
    given = {name: x for name, x in inputs.items() if name not in ARRIVING}
    arriving = [inputs[name] for name in ARRIVING if name in inputs]
    return derive_gradient(function, given, arriving, wanted, cut=True)


def search(names: list[str], dtype: str, runs: int) -> Iterator[tuple[str, str, int, float]]:
    """Climb in one after the other, until that many evaluations were made."""
    known, seed, done = traces(), 0, 0
    while done < runs:
        seed += 1
        preset = DECLARED[seed % len(DECLARED)]
        for name in names:
            found = known[name](dtype, seed)
            yield name, preset, seed, climb(found, PRESETS[preset](FORMATS[dtype]), STEPS, seed)
            done += STEPS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--specification", action="append", choices=traces())
    given = parser.parse_args()
    worst: dict[str, float] = {}
    beyond, count, begun = 0, 0, time.process_time()
    np.seterr(all="ignore")
    for name, preset, seed, share in search(
        given.specification or [*traces()], given.dtype, given.runs
    ):
        worst[name], count = max(worst.get(name, 0.0), share), count + STEPS
        if share > 1:
            beyond += 1
            print(f"beyond: {name} {preset} {given.dtype} seed {seed}: {share:.3g}x of its bound")
    for name, share in sorted(worst.items()):
        print(f"{name:34s} {share:.3f}")
    seconds = time.process_time() - begun
    print(
        f"{given.dtype}: {count} evaluations, {beyond} climbs beyond a bound, {seconds:.0f} CPU s"
    )
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main())
