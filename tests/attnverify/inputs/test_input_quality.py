"""The draws are worth judging: what is drawn has bounds that are finite and say something."""

from functools import lru_cache

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.precision import resolve

COMPUTED = sorted(name for name, operation in CATALOGUE.items() if not operation.exact)
HIDING = [
    name
    for name in COMPUTED
    if "key" in CATALOGUE[name].arguments and {"mask", "visible"} & set(CATALOGUE[name].arguments)
]
DRAWN = [*((name, "any") for name in COMPUTED), *((name, "nan") for name in HIDING)]


def arrays(tree: object) -> list[ndarray]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, ndarray) and leaf.dtype.kind == "f"]


def scale(recipe: Recipe, dtype: str) -> float:
    """
    The size of the numbers that went in, and of all that came out; an output of exact zeros (the
    gradient by a query that sees one key) is small beside it.
    """
    both = expand(recipe, dtype), case_of(recipe, dtype).expected
    finite = [x[np.isfinite(x)] for x in arrays(both)]
    return max((float(np.abs(x).max(initial=0.0)) for x in finite), default=1.0)


def say_nothing(recipe: Recipe, dtype: str) -> tuple[ndarray, ndarray]:
    """
    Which elements have an infinite bound, and which one of more than twice anything that came out.
    """
    precision = resolve("wide", recipe.operation, recipe.operation, dtype)
    infinite, vacuous = [], []
    case = case_of(recipe, dtype)
    for expected, bound in zip(arrays(case.expected), arrays(case.bounds(precision)), strict=True):
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        infinite.append((np.isinf(bound) & ~np.isnan(expected)).ravel())
        # where one key has all the weight, gradients by queries and keys are 0 by cancellation
        small = (1e-3 if largest else 1e-2) * scale(recipe, dtype)
        vacuous.append((np.isfinite(bound) & (bound > max(2 * largest, small))).ravel())
    return np.concatenate(infinite), np.concatenate(vacuous)


@lru_cache
def shares(operation: str, kind: str) -> tuple[float, float, float]:
    """
    The shares of infinite and of vacuous bounds among the elements, and of cases that are not
    judged.
    """
    found = [say_nothing(recipe, "float32") for recipe in draw_recipes(operation, kind, 100, 0)]
    infinite, vacuous = (np.concatenate(part) for part in zip(*found, strict=True))
    return infinite.mean(), vacuous.mean(), float(np.mean([each.mean() > 0.1 for each, _ in found]))


@pytest.mark.parametrize(("operation", "kind"), DRAWN)
def test_few_bounds_are_infinite_or_vacuous(operation: str, kind: str) -> None:
    infinite, vacuous, not_judged = shares(operation, kind)
    assert vacuous <= 0.03
    assert infinite <= 0.05 and not_judged <= 0.06


def test_a_useless_bound_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe("softmax", {"N": 2, "M": 3}, {"family": "normal", "seed": 1})
    monkeypatch.setattr(Case, "bounds", lambda case, _: np.full(case.expected.shape, 1e6))
    assert say_nothing(recipe, "float32")[1].all()
