"""
Whether the quick profile sees each fault of :mod:`one_kind`, by what its file refuses and by seed:
``python -m tests.attnverify.faults.one_kind_seen [SEEDS] > docs/data/one_kind.json`` (minutes).
"""

import json
import sys
from tempfile import TemporaryDirectory
from typing import Any

from attnverify.backends.array_libraries import numpy_library
from attnverify.backends.declarations import Declarations
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import count_draws
from attnverify.verdicts.search import Search
from attnverify.verdicts.shown import shown_recipes
from attnverify.verdicts.tally import Options
from tests.attnverify.faults.one_kind import FAULTS, OneKind, rounded
from tests.sight.stamp import stamp

ADAPTERS = {"sizes refused": False, "other masks refused": True}
"""What a file refuses, and whether that is harsh: E != D, N != M and draws; each mask but one."""


class Seen(Exception):
    """A case has shown the fault: the rest need not be judged."""


class FirstFailure(Search):
    """A search that ends at the first failure."""

    def judge(self, recipe: Recipe) -> None:
        super().judge(recipe)
        if self.failing:
            raise Seen


def implementation_of(fault: OneKind, harsh: bool) -> Implementation:
    """The file that has the fault, in NumPy: computed in float64, and rounded."""

    def function(**given: Any) -> Any:
        wide = map_leaves(as_wide, given)
        return rounded(fault.call(harsh, **wide), "float32")

    backend = Backend("mine", "mine.py", library=numpy_library(), declared=Declarations())
    return Implementation(backend, CATALOGUE[fault.operation], "", function)


def as_wide(x: Any) -> Any:
    return x.astype(float) if getattr(getattr(x, "dtype", None), "kind", "") == "f" else x


def search(implementation: Implementation, seed: int, folder: str) -> Search:
    """Judge it as the quick profile does, up to the first failure."""
    options = Options("quick", seed, folder)
    found = FirstFailure(implementation, "float32", options)
    cases = count_draws(implementation.operation.name, options.cases)
    aspect = "gradients" if implementation.operation.is_gradient else "values"
    found.judge_shown(shown_recipes(implementation, aspect, options, "any", cases), cases)
    return found


def is_seen(fault: OneKind, harsh: bool, seed: int, folder: str) -> bool:
    try:
        search(implementation_of(fault, harsh), seed, folder)
    except Seen:
        return True
    return False


def record(seeds: int) -> dict[str, Any]:
    """Count the pairs of fault and adapter, and name the seeds that did not see one."""
    unseen = {}
    with TemporaryDirectory() as folder:
        for adapter, harsh in ADAPTERS.items():
            for at, fault in enumerate(FAULTS):
                missed = [s for s in range(seeds) if not is_seen(fault, harsh, s, folder)]
                if missed:
                    unseen[f"{at}: {fault.operation}: {fault.name} ({adapter})"] = missed
    return stamp() | {
        "profile": "quick",
        "dtype": "float32",
        "seeds": seeds,
        "faults": len(FAULTS),
        "adapters": [*ADAPTERS],
        "runs": seeds * len(FAULTS) * len(ADAPTERS),
        "unseen": unseen,
    }


if __name__ == "__main__":
    print(json.dumps(record(int(*sys.argv[1:] or ["20"])), indent=1))
