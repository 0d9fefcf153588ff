"""
The case that a failure is shown by: the smallest that fails in the same way.

What tells the failing cases from the others proposes it, without a call: "when M > 32" is M = 33,
and nearly everything else 1. A proposal that does not fail refutes the condition, which is sought
again with it among the others. The calls that are left make the case smaller step by step, within
the condition as long as that is possible.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnverify.diagnosis.regions.condition_search import find_conjunction
from attnverify.inputs.conditions import Condition, parse_condition
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import (
    one_part_less,
    resized,
    shrink,
    simpler_recipes,
    without_parts,
)
from attnverify.judge.case import Case, case_of

CONDITIONS = 3
"""So many conditions are sought at most."""
A_FEW = {"N": 5, "M": 2}
"""As many a proposal has: a single row may hide a failure, and a single key does."""


def find_smallest(
    failing: Sequence[Case],
    passing: Sequence[Case],
    what: str,
    outcome: Callable[[Case], str],
) -> Case:
    """
    Find a small case that fails in the way of those that do; ``outcome`` says of a case how it
    fails, "passed", or "" where nothing is known of it.
    """
    dtype = failing[0].dtype

    def fails(recipe: Recipe) -> bool:
        return outcome(case_of(recipe, dtype)) == what

    smallest, others = [case.recipe for case in failing], [*passing]
    region = Region((), dtype)
    for _ in range(CONDITIONS):
        before, region = region, Region(find_conjunction(failing, others), dtype)
        if not region.conditions or region == before:
            break
        proposed = propose(smallest, region)
        if fails(proposed):
            smallest = [proposed]
            break
        others.append(case_of(proposed, dtype))
    within = shrink(smallest, lambda recipe: region.holds(recipe) and fails(recipe))
    return case_of(shrink([within], fails), dtype)


def bisect_sizes(recipe: Recipe, fails: Callable[[Recipe], bool]) -> Recipe:
    """
    Make a large call that fails smaller: without its parts, then each size in turn by halves, as
    long as it still fails. What is tried next to the smallest passes.
    """
    for plainer in (without_parts(recipe), *one_part_less(recipe)):
        if plainer != recipe and fails(plainer):
            recipe = plainer
            break
    for letter in (letter for letter in "BHLNMDEFQKAS" if recipe.sizes.get(letter, 0) > 1):
        passes, size = 0, recipe.sizes[letter]
        while size - passes > 1:
            middle = (passes + size) // 2 if passes else 1
            smaller = resized(recipe, {letter: middle})
            if smaller.sizes[letter] >= size:
                break  # the size hangs on others
            if fails(smaller):
                recipe, size = smaller, smaller.sizes[letter]
            else:
                passes = middle
    return recipe


@dataclass(frozen=True)
class Region:
    """The recipes of which conditions hold."""

    conditions: tuple[str, ...]
    dtype: str

    @cached_property
    def parsed(self) -> list[Condition]:
        """The conditions, those first that need no arrays."""
        parsed = [parse_condition(text) for text in self.conditions]
        return sorted(parsed, key=lambda condition: condition.topic != "size")

    def holds(self, recipe: Recipe) -> bool:
        case = Case(recipe, self.dtype)  # one of very many, none of which need be kept
        return all(holds(case) for holds in self.parsed)


def propose(failing: Sequence[Recipe], region: Region) -> Recipe:
    """
    Return the smallest recipe of a region but for a few rows and two keys, of ordinary numbers;
    where a size must be large, the next that is one more than a power of two, as a tile is full
    with one.
    """
    smallest = shrink(failing, region.holds, smaller_recipes)
    while plainer := next(filter(region.holds, one_part_less(smallest)), None):
        smallest = plainer
    for letter, size in smallest.sizes.items():
        edge = resized(smallest, {letter: 1 + (1 << (size - 2).bit_length())})
        least = min(recipe.sizes[letter] for recipe in failing)
        if size > 2 and edge.sizes[letter] <= least and region.holds(edge):
            smallest = edge
    more = {k: max(smallest.sizes[k], n) for k, n in A_FEW.items() if k in smallest.sizes}
    larger = resized(smallest, more)
    return larger if region.holds(larger) else smallest


def smaller_recipes(recipe: Recipe) -> Iterator[Recipe]:
    """Recipes with less in them, and with every smaller size: to be asked without a call."""
    yield from simpler_recipes(recipe)
    for letter, size in recipe.sizes.items():
        yield from (resized(recipe, {letter: smaller}) for smaller in range(1, size))
    if {"N", "M"} <= recipe.sizes.keys():
        both = min(recipe.sizes["N"], recipe.sizes["M"])
        yield from (resized(recipe, {"N": smaller, "M": smaller}) for smaller in range(1, both))
