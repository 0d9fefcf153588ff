"""
What one process does under a code path: hold our columns to their bounds, and say what the inputs
were.

    python -m tests.machines.check [--operation NAME] [--column NAME] [--strict]

Judged are what an earlier bound or another machine has accused, and an ordinary case of each
operation, by every implementation that no emulator runs. What was found is printed as JSON.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.backends.source import PROJECT_BACKENDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.expand import checksum
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.value_families import FAMILIES
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.machine import describe_machine
from attnverify.precision import DTYPES
from attnverify.verdicts.cell import pair_with_gradients
from tests import rounding_variants

EMULATED = ("_triton", "_cuda")
"""How the names of kernels end that are emulated where there is no GPU."""

OF_PARTS = ("absent_parts", "far_lses")
"""Families of operations that take log-sum-exps."""

GOLDEN = Path(__file__).parent / "golden_checksums.json"
RED_ONCE = json.loads(
    (Path(rounding_variants.__file__).parent / "exceeded_before.json").read_text()
)


def implementations(
    operations: set[str], columns: Iterable[str] = PROJECT_BACKENDS
) -> Iterator[Implementation]:
    """Those of our columns, forward and backward, that run here without an emulator."""
    for name in columns:
        for pair in pair_with_gradients(load(name)):
            for each in filter(None, pair):
                emulated = each.name.removesuffix("_grad").endswith(EMULATED)
                if each.operation.name in operations and not emulated:
                    yield each


def cases(operation: str) -> Iterator[tuple[Recipe, str]]:
    """The recipes of an operation and their dtypes."""
    for told in RED_ONCE:
        if told["recipe"]["operation"] == operation:
            yield Recipe(**told["recipe"]), told["dtype"]
    for dtype in CATALOGUE[operation].dtypes:
        yield fixed_recipe(CATALOGUE[operation], {}), dtype


def judge_all(operations: set[str], columns: Iterable[str] = PROJECT_BACKENDS) -> dict[str, Any]:
    """How many cases were judged, the largest share of a bound, and what exceeded one."""
    judged, largest, red = 0, 0.0, []
    for implementation in implementations(operations, columns):
        for recipe, dtype in cases(implementation.operation.name):
            try:
                largest = max(largest, judge(implementation, case_of(recipe, dtype)).budget)
            except Unsupported:
                continue
            except Disagreement as error:
                red.append(f"{implementation.label} {dtype} {recipe}: {error}")
            judged += 1
    return {"judged": judged, "largest share": largest, "red": red}


def checksums() -> dict[str, str]:
    """Of the inputs of recipes of every family of values."""
    return {
        f"{family} {dtype}": checksum(
            fixed_recipe(CATALOGUE[operation], {"N": 33, "M": 65}, family), dtype
        )
        for family in FAMILIES
        if family not in OF_PARTS
        for operation in ("scaled_dot_product_attention_grad",)
        for dtype in DTYPES
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--operation", action="append", choices=list(CATALOGUE))
    parser.add_argument("--column", action="append", choices=PROJECT_BACKENDS)
    parser.add_argument(
        "--strict", action="store_true", help="status 1 if one is red or a checksum not golden"
    )
    given = parser.parse_args()
    found = judge_all(set(given.operation or CATALOGUE), given.column or PROJECT_BACKENDS)
    found |= {"checksums": checksums(), "machine": describe_machine()}
    print(json.dumps(found))
    golden = found["checksums"] == json.loads(GOLDEN.read_text())
    return int(given.strict and (bool(found["red"]) or not golden))


if __name__ == "__main__":
    sys.exit(main())
