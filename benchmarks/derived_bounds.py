"""
Bounds that are derived from a specification, beside those that are written by hand: their ratio,
element by element, and the CPU seconds of both.

    python -m benchmarks.derived_bounds                      # small drawn calls
    python -m benchmarks.derived_bounds --real 512           # N = M = 512, D = 64, one head
    python -m benchmarks.derived_bounds --operation softmax

Ratios are of elements whose bound by hand is below a quarter of the largest result: where it is
above, either says nothing. Calls with numbers in hidden slots that are none are left out.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.catalogue.pytrees import leaves
from attnverify.derived import Derived, derive, derive_gradient
from attnverify.inputs.expand import expand
from attnverify.precision import FORMATS, PRESETS, Precision
from tests.outside.catalogue import WRITTEN
from tests.rounding_variants.cases import small_recipe

DTYPES, DECLARED = ("float32", "bfloat16", "float16"), ("eager", "fused", "wide", "sloppy")
ARRIVING = ("d_output", "d_weights")
FUNCTIONS = {function.__name__: function for function in WRITTEN}
OPERATIONS = [*FUNCTIONS, *(f"{name}_grad" for name in FUNCTIONS)]

HEAD = f"{'':34s} dtype      elements  median   p90   p99     max  above 2 | CPU ms hand derived"


def trace(operation: str, inputs: Mapping[str, Any]) -> Derived:
    """Trace an operation, or its gradient as the judge does where it derives one."""
    function = FUNCTIONS[operation.removesuffix("_grad")]
    if not operation.endswith("_grad"):
        return derive(function, inputs)
    given = {name: x for name, x in inputs.items() if name not in ARRIVING}
    arriving = [inputs[name] for name in ARRIVING if name in inputs]
    return derive_gradient(function, given, arriving, WRITTEN[function].split(), cut=True)


def draw_small(
    operation: str, dtype: str, cases: int
) -> Iterator[tuple[dict[str, Any], Precision]]:
    for preset in DECLARED:
        rng, drawn = Random(f"{operation} {dtype} {preset}"), 0
        while drawn < cases:
            recipe = small_recipe(rng, operation)
            if not recipe.poison:
                drawn += 1
                yield expand(recipe, dtype), PRESETS[preset](FORMATS[dtype])


def draw_real(operation: str, dtype: str, n: int) -> Iterator[tuple[dict[str, Any], Precision]]:
    """Yield one call of n queries and keys, of those operations that take no tables."""
    rng, D = np.random.default_rng(0), 64
    shapes = {"score": (1, n, n), "u": (1, D), "v": (1, D), "position": (1, n, D)}
    shapes |= dict.fromkeys(("query", "key", "value"), (1, 1, n, D))
    shapes |= {"w_query": (D, D), "w_key": (D, D), "w_score": (D,)}
    name = operation.removesuffix("_grad")
    names = WRITTEN[FUNCTIONS[name]].split()
    if all(each in shapes for each in names):
        if "w_score" in names:
            shapes |= dict.fromkeys(("query", "key", "value"), (1, n, D))
        inputs = {each: rng.standard_normal(shapes[each]).astype("f") * 1.0 for each in names}
        if operation.endswith("_grad"):
            shape = FUNCTIONS[name](**inputs).shape
            inputs = {"d_output": rng.standard_normal(shape).astype("f") * 1.0, **inputs}
        yield {k: x.astype(float) for k, x in inputs.items()}, PRESETS["fused"](FORMATS[dtype])


def compare(operation: str, inputs: dict[str, Any], P: Precision) -> tuple[ndarray, float, float]:
    """Compute the ratios of one call, and the seconds of the bound by hand and of the derived."""
    start = time.process_time()
    by_hand = [x for x in leaves(bounds.error(operation, inputs, P)) if x is not None]
    between = time.process_time()
    derived = trace(operation, inputs)
    found = [x for x in leaves(derived.errors(P)) if x is not None]
    end = time.process_time()
    ratios = []
    for E, hand, node in zip(found, by_hand, derived.nodes, strict=False):
        top = np.nanmax(np.abs(node.value), initial=0.0)
        useful = (hand > 0) & (hand < top / 4) & np.isfinite(node.value)
        ratios.append((E / np.where(useful, hand, 1.0))[useful][:400])
    return np.concatenate(ratios), between - start, end - between


def tell(operation: str, dtype: str, calls: Iterator[tuple[dict[str, Any], Precision]]) -> None:
    with np.errstate(all="ignore"):
        told = [compare(operation, inputs, P) for inputs, P in calls]
    q = np.concatenate([ratios for ratios, _, _ in told] or [np.zeros(0)])
    if q.size:
        at = "  ".join(f"{np.quantile(q, x):6.3g}" for x in (0.5, 0.9, 0.99, 1.0))
        hand, derived = (1e3 * float(np.mean([each[k] for each in told])) for k in (1, 2))
        shares = (
            f"{100 * np.mean(q > 2):6.1f} % | {hand:7.2f} {derived:7.2f} x {derived / hand:.1f}"
        )
        print(f"{operation:34s} {dtype:8s} {q.size:9d}  {at}  {shares}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operation", nargs="*", default=OPERATIONS, choices=OPERATIONS)
    parser.add_argument("--cases", type=int, default=6, help="drawn calls of each preset")
    parser.add_argument("--real", type=int, help="one call of so many queries and keys")
    given = parser.parse_args()
    print(HEAD)
    for operation in given.operation:
        for dtype in DTYPES:
            real = given.real and draw_real(operation, dtype, given.real)
            tell(operation, dtype, real or draw_small(operation, dtype, given.cases))


if __name__ == "__main__":
    main()
