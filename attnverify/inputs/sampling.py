"""
Draws: the recipes that an operation is judged by, and the smallest that still fails.

First each choice is drawn evenly and from the seed alone, so that a few hundred recipes meet
everything, in every process alike (Hypothesis' own draws repeat each other and depend on the
modules that are loaded: that serves its search). All implementations of an operation are shown the
same recipes, so that what the specification says of them is computed once. Then Hypothesis hunts
for a failure with the same choices; where one is found, by either, it shrinks.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any

from hypothesis import HealthCheck, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import DrawFn, composite, sampled_from

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.strategies import draw_recipe
from attnverify.options import PROFILES

KINDS: dict[str, dict[str, Any]] = {
    "any": {},
    "nan": {"poison": ("nan", "inf"), "hiding": True},
}
"""``nan`` hides some keys from every query and plants NaN or infinity there."""

CASES = PROFILES
"""At least as many cases for each operation, implementation and dtype."""

SHRINK_SECONDS = 15.0


@lru_cache(maxsize=256)
def draw_recipes(operation: str, kind: str, cases: int, seed: int) -> tuple[Recipe, ...]:
    """As many different recipes as asked for (or as there are), the same for the same seed."""
    rng, drawn = Random(f"{operation} {kind} {seed}"), dict[Recipe, None]()
    for _ in range(10 * cases):
        if len(drawn) < cases:
            drawn[draw_recipe(rng.choice, operation, **KINDS[kind])] = None
    return tuple(drawn)


def count_draws(operation: str, cases: int) -> int:
    """How many of so many cases an operation is drawn: a fourth for the gradient of a layer."""
    return max(10, cases // 4) if CATALOGUE[operation].is_layer_gradient else cases


def draw_first_fifth(operation: str, profile: str, seed: int) -> tuple[Recipe, ...]:
    """The first fifth of the profile's recipes, for checks that make several calls."""
    return draw_recipes(operation, "any", CASES[profile], seed)[: max(10, CASES[profile] // 5)]


@composite
def strategy(draw: DrawFn, operation: str, kind: str) -> Recipe:
    """The same recipes with Hypothesis choosing."""
    return draw_recipe(lambda options: draw(sampled_from(options)), operation, **KINDS[kind])


QUIET = settings(
    max_examples=2000, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


@lru_cache(maxsize=256)
def hypothesis_examples(operation: str, kind: str, cases: int, seed: int) -> tuple[Recipe, ...]:
    """
    The recipes that Hypothesis generates while none fails, kept so that every implementation is
    shown the same ones.
    """
    tried: list[Recipe] = []

    def passes(recipe: Recipe) -> bool:
        tried.append(recipe)
        return False

    with suppress(NoSuchExample):
        find(
            strategy(operation, kind),
            passes,
            settings=settings(QUIET, max_examples=cases),
            random=Random(seed),
        )
    return tuple(tried)


def shrink(
    failing: Recipe,
    kind: str,
    fails: Callable[[Recipe], bool],
    seed: int,
    seconds: float = SHRINK_SECONDS,
) -> Recipe:
    """
    A small recipe that fails like the given one: the smallest that Hypothesis finds in the time.
    """
    smallest, end, known = failing, time.monotonic() + seconds, dict[Recipe, bool]()

    def still_fails(recipe: Recipe) -> bool:
        nonlocal smallest
        if recipe not in known:
            known[recipe] = time.monotonic() < end and fails(recipe)
        if known[recipe] and shrink_key(recipe) < shrink_key(smallest):
            smallest = recipe
        return known[recipe]

    with suppress(NoSuchExample):
        find(strategy(failing.operation, kind), still_fails, settings=QUIET, random=Random(seed))
    return smallest


def shrink_key(recipe: Recipe) -> tuple[int, int]:
    """Small geometry first, then few words."""
    product = 1
    for letter in "BHNMDEFQKAL":
        product *= max(recipe.sizes.get(letter, 1), 1)
    return product, len(recipe.text)
