"""
Large sizes: what a kernel does with thousands of keys, with thousands of queries, and with more
pairs of batch and head than a grid's axis holds.

Few queries see many keys, so that every element of a call is judged as any other case is. Weights
are near-uniform and values of one sign, which is the worst for an accumulator, or each value stands
in one column alone, so that a single lost key shows.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from time import process_time

from attnverify.backends.loader import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, errors_of_large
from attnverify.judge.errors import Unsupported
from attnverify.judge.judging import judge
from attnverify.machine import available_memory

Check = Callable[[Implementation, str], float | None]

COLUMNS = {"B": 1, "H": 2, "D": 8, "E": 128, "Q": 4, "K": 5, "A": 6}
SUMS = COLUMNS | {"E": 8}
FEW = {"B": 1, "H": 1, "D": 6, "E": 2, "Q": 2, "K": 2, "A": 2, "L": 1, "F": 6}

SHOWN = (15, 31, 63, 64, 127, 128, 129, 513, 1025, 2051, 4099)
"""Lengths at which any one lost key shows."""
SUMMED = (513, 1025, 2051, 4099, 8192)
"""Lengths at which a running total in a narrow format shows."""

ATTENDED = {
    "quick": (("columns", COLUMNS | {"N": 2, "M": 2051}),),
    "default": (
        *(("columns", COLUMNS | {"N": 2, "M": M}) for M in SHOWN),
        ("columns", COLUMNS | {"H": 1, "N": 2, "M": 8192, "E": 256}),
        *(
            (family, SUMS | {"N": 3, "M": M})
            for M in SUMMED
            for family in ("columns", "one_signed")
        ),
        ("one_signed", SUMS | {"N": 4099, "M": 3}),
    ),
}
"""Family and sizes for an attention and for its gradient; thorough: as default."""

LONG = FEW | {"N": 3, "M": 8192, "S": 8189}
SQUARE = FEW | {"N": 2048}
SQUARE_GRADIENT = FEW | {"N": 1025}
"""Of a gradient in the default profile: its bound takes three times as long as that of a layer."""
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
    recipes = large_recipes(CATALOGUE[operation], profile)
    found: list[tuple[str, Check]] = [
        (f"large: {describe_sizes(recipe)}", partial(judge_whole, recipe)) for recipe in recipes
    ]
    if profile == "thorough" and CATALOGUE[operation].traits.square:
        longest = fixed_recipe(CATALOGUE[operation], LONGEST_SQUARE, "normal", WINDOW)
        found.append((f"large: {describe_sizes(longest)}", partial(judge_in_memory, longest)))
    if grids := grid_recipes(CATALOGUE[operation], profile):
        found.append(("large: every block of two grids", partial(judge_grids, grids)))
    return found


def large_recipes(op: Operation, profile: str) -> list[Recipe]:
    """Recipes of thousands of keys, or of queries; few enough pairs to be judged one by one."""
    if op.skips("long sequences"):
        return []
    if op.is_gradient and profile == "quick":
        return []
    if "value" in op.arguments and not op.traits.parameters:
        cases = ATTENDED["quick" if profile == "quick" else "default"]
        return [
            fixed_recipe(op, sizes, family)
            for family, sizes in cases
            if sizes["M"] >= sizes["N"] or not op.traits.causal  # who sees nothing shows nothing
        ]
    if profile == "quick":
        return []
    squares = SQUARE_GRADIENT if op.is_gradient and profile == "default" else SQUARE
    long = fixed_recipe(op, squares if op.traits.square else LONG)
    padded = {"pattern": "right_padding", "axes": "N M", "form": "bool", "seed": 5}
    masked = [fixed_recipe(op, LONG, "normal", padded)] if op.mask == "attn_mask" else []
    return [long, *(masked if not op.traits.square else [])]


def describe_sizes(recipe: Recipe) -> str:
    sizes = " ".join(f"{x}={recipe.sizes[x]}" for x in "NMSFE" if recipe.sizes.get(x, 0) > 10)
    return f"{recipe.values['family']} {sizes}" + (", padded" if recipe.padding else "")


def judge_whole(recipe: Recipe, implementation: Implementation, dtype: str) -> float:
    """Judge a large call; the worst share of its bound."""
    return judge(implementation, large_case(recipe, dtype)).budget


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


@lru_cache(maxsize=max(map(len, ATTENDED.values())) + len(GRIDS))
def large_case(recipe: Recipe, dtype: str) -> Case:
    """
    Return the case of a recipe, kept for the next implementation: as many as one operation has, no
    more, for their arrays are large (at most 0.3 GB were seen).
    """
    return Case(recipe, dtype)


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
        worst = max(worst, judge_whole(recipe, implementation, dtype))
        spent = process_time() - start
    return worst


def _blocks(recipe: Recipe) -> int:
    return recipe.sizes["B"] * recipe.sizes["H"]
