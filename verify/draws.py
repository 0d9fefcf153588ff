"""
Draws: the recipes that Hypothesis makes for an operation, and the smallest that still fails.

All implementations of an operation are shown the same recipes, so that what the law says of them is computed once. Where
one fails, Hypothesis searches again with that implementation and shrinks.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from verify.recipes import Recipe
from verify.strategies import recipes

KINDS: dict[str, dict[str, Any]] = {
    "any": {},
    "nan": {"poison": ("nan", "inf"), "hiding": True},
}
"""``nan`` hides some keys from every query and plants NaN or infinity there."""

SHRINK_SECONDS = 15.0


def strategy(operation: str, kind: str) -> SearchStrategy[Recipe]:
    return recipes(operation, **KINDS[kind])


def quiet(cases: int, *phases: Phase) -> settings:
    """Hypothesis without a database, a deadline or health checks: the draws depend on the seed alone."""
    return settings(max_examples=cases, database=None, deadline=None, phases=phases, suppress_health_check=list(HealthCheck))


@lru_cache(maxsize=256)
def draw(operation: str, kind: str, cases: int, seed: int) -> tuple[Recipe, ...]:
    """As many different recipes as asked for (or as there are), the same for the same seed."""
    drawn: dict[str, Recipe] = {}

    def enough(recipe: Recipe) -> bool:
        drawn.setdefault(recipe.text, recipe)
        return len(drawn) >= cases

    with suppress(NoSuchExample):
        find(strategy(operation, kind), enough, settings=quiet(10 * cases, Phase.generate), random=Random(seed))
    return tuple(drawn.values())[:cases]


def shrink(failing: Recipe, kind: str, fails: Callable[[Recipe], bool], seed: int, seconds: float = SHRINK_SECONDS) -> Recipe:
    """A small recipe that fails like the given one: the smallest that Hypothesis finds in the time."""
    smallest, end, known = failing, time.monotonic() + seconds, dict[Recipe, bool]()

    def still_fails(recipe: Recipe) -> bool:
        nonlocal smallest
        if recipe not in known:
            known[recipe] = time.monotonic() < end and fails(recipe)
        if known[recipe] and size(recipe) < size(smallest):
            smallest = recipe
        return known[recipe]

    with suppress(NoSuchExample):
        find(strategy(failing.operation, kind), still_fails, settings=quiet(2000, Phase.generate, Phase.shrink), random=Random(seed))
    return smallest


def size(recipe: Recipe) -> tuple[int, int]:
    """Small geometry first, then few words."""
    product = 1
    for letter in "BHNMDEFQKAL":
        product *= max(recipe.sizes.get(letter, 1), 1)
    return product, len(recipe.text)
