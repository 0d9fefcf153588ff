"""
Measure what is noticed, and go on where the file ends.

    nice python -m tests.sight --file docs/data/sight.json
    nice python -m tests.sight --file docs/data/sight.json --only alibi

An answer is the size of a factor's smallest error, null where none up to 30 % is noticed; of lost
keys and narrow sums, at how many lengths they were judged and at which they were missed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.traits import DTYPES
from attnverify.checks import projected_factors
from tests.sight.lengths import LOST, OPERATIONS, TILES, lengths_seen, sums_seen
from tests.sight.planted import factors_that_count
from tests.sight.smallest import SEEDS, smallest_noticed
from tests.sight.stamp import stamp

Question = tuple[tuple[str, ...], Callable[[], Any]]
"""What is asked (a table, an operation, and words that name it there), and what answers it."""


def questions() -> Iterator[Question]:
    """Everything that the two tables show."""
    for dtype in DTYPES[::-1]:
        for op in CATALOGUE.values():
            for arithmetic in arithmetics(op):
                for factor in factors_that_count(op):
                    asked = (op.name, arithmetic, dtype, factor)
                    yield ("factor", *asked), lambda asked=asked: smallest_noticed(*asked, SEEDS)
        for name in OPERATIONS:
            yield from questions_of_keys(name, dtype)


def questions_of_keys(name: str, dtype: str) -> Iterator[Question]:
    """Lost keys, and running totals in a narrow format."""
    for lost in LOST:
        asked = (name, dtype, lost)
        yield ("key", *asked), lambda asked=asked: lengths_seen(*asked)
    for tile in TILES if not CATALOGUE[name].is_gradient else ():
        for narrow, what in product(("bfloat16", "float16"), ("sum", "normaliser")):
            given = (name, dtype, tile, narrow, what)
            yield (
                (f"narrow {what}", name, dtype, f"{narrow} over {tile}"),
                lambda given=given: sums_seen(*given),
            )


def arithmetics(op: Operation) -> tuple[str, ...]:
    """What is claimed: unfused code, and a fused kernel where there are such."""
    return ("eager", "fused") if op.is_attention else ("eager",)


def measure(file: Path, only: str) -> None:
    """Ask what the file has no answer to yet, and write it after each answer."""
    told: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"operations": {}}
    for asked, ask in questions():
        table, operation, *rest = asked
        answers = told["operations"].setdefault(operation, {}).setdefault(table, {})
        words = " ".join(rest)
        if words in answers or only not in " ".join(asked):
            continue
        start = time.process_time()
        answers[words] = ask()
        told |= stamp()
        file.write_text(json.dumps(told, indent=1) + "\n")
        seconds = time.process_time() - start
        print(f"{seconds:.1f} s {' '.join(asked)}: {answers[words]}", flush=True)


def keep_references() -> None:
    """Keep what every factor of an operation is measured by, for all seeds."""
    for name in ("drawn_inputs", "directions"):
        compute = getattr(projected_factors, name).__wrapped__
        setattr(projected_factors, name, lru_cache(SEEDS * projected_factors.CALLS)(compute))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--only", default="", metavar="WORD", help="what is asked has this word")
    given = parser.parse_args(arguments)
    keep_references()
    measure(given.file, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
