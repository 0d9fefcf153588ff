"""
Sizes that are no call like others: layers whose pairs of positions fill the memory, and more pairs
of batch and head than a grid's axis holds.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import process_time

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.real.calls import FEW
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of, errors_of_large
from attnverify.judge.errors import Unsupported
from attnverify.judge.judging import judge
from attnverify.machine import available_memory

Check = Callable[[Implementation, str], float | None]

LONGEST_SQUARE = FEW | {"N": 8192}
"""Thorough alone: a layer that attends to its own sequence has a weight for each pair."""
WINDOW = {"pattern": "window", "axes": "N M", "form": "bool", "seed": 5}
"""Rows that see five keys each: one that is lost shows."""
BYTES_OF_A_PAIR = 220
"""Memory for a pair of positions: 2.9 to 3.3 GiB were seen at 4096 (gradients; NumPy 2.4)."""

GRID = {"N": 1, "M": 2, "D": 2, "E": 2}
GRIDS = (GRID | {"B": 33, "H": 32}, GRID | {"B": 2049, "H": 32})
PATIENCE = 20.0
"""CPU seconds that a grid may take: kernels that are emulated walk it block by block."""


def large_size_checks(operation: str, profile: str) -> list[tuple[str, Check]]:
    """Named checks of one operation at the profile's sizes."""
    found: list[tuple[str, Check]] = []
    if profile == "thorough" and CATALOGUE[operation].traits.square:
        longest = fixed_recipe(CATALOGUE[operation], LONGEST_SQUARE, "normal", WINDOW)
        found.append(("large: normal N=8192 M=8192", partial(judge_in_memory, longest)))
    if grids := grid_recipes(CATALOGUE[operation], profile):
        found.append(("large: every block of two grids", partial(judge_grids, grids)))
    return found


def judge_in_memory(recipe: Recipe, implementation: Implementation, dtype: str) -> float:
    """Judge a square layer, where there is memory for its pairs; its case is not kept."""
    needed, free = BYTES_OF_A_PAIR * recipe.sizes["N"] ** 2, available_memory()
    if free is not None and free < needed:
        raise Unsupported(f"needs {needed >> 30} GiB of memory, of which {free >> 30} are free")
    errors_of_large.cache_clear()
    try:
        return judge(implementation, Case(recipe, dtype)).budget
    finally:
        errors_of_large.cache_clear()


def grid_recipes(op: Operation, profile: str) -> list[Recipe]:
    """Recipes of more pairs of batch and head than a grid's axis holds; none in the quick one."""
    if profile == "quick" or not ({"B", "H"} <= op.sizes and op.is_attention):
        return []
    dropout = {"p": 0.25, "seed": 2} if "keep" in op.arguments else None
    return [replace(fixed_recipe(op, sizes), dropout=dropout) for sizes in GRIDS]


def judge_grids(recipes: list[Recipe], implementation: Implementation, dtype: str) -> float:
    """
    Judge one grid after the other, as long as the next is not bound to take minutes.
    """
    spent = worst = 0.0
    for before, recipe in zip([None, *recipes], recipes, strict=False):
        if before and spent * _blocks(recipe) / _blocks(before) > PATIENCE:
            break
        start = process_time()
        worst = max(worst, judge(implementation, case_of(recipe, dtype)).budget)
        spent = process_time() - start
    return worst


def _blocks(recipe: Recipe) -> int:
    return recipe.sizes["B"] * recipe.sizes["H"]
