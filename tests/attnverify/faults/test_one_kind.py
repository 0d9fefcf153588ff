"""
The quick profile shows each kind of case that one fault hangs on, whatever else a file refuses:
what is refused is replaced.

More seeds by hand: ``ATTNVERIFY_KIND_SEEDS=20 pytest -m faults .../test_one_kind.py``.
"""

import os
from typing import Any

import pytest

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

pytestmark = pytest.mark.faults

SEEDS = range(int(os.environ.get("ATTNVERIFY_KIND_SEEDS", "1")))


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


@pytest.mark.parametrize("harsh", [False, True], ids=["sizes refused", "other masks refused"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.operation}: {fault.name}")
def test_what_one_kind_of_case_reveals_the_quick_profile_sees(
    fault: OneKind, harsh: bool, tmp_path: str
) -> None:
    unseen = [seed for seed in SEEDS if not is_seen(fault, harsh, seed, str(tmp_path))]
    assert not unseen
