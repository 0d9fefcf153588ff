"""
How often is drawn what kernels get wrong at real sizes: the recipes of seed 0 over all operations.

    python -m tests.sight.drawn > docs/data/drawn.json
"""

import json
from collections.abc import Callable, Iterator

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.rows import has_independent_rows
from attnverify.checks.call_sequences import OTHER_DTYPE
from attnverify.checks.large_sizes import grid_recipes
from attnverify.checks.long_sequences import LENGTHS, long_recipe
from attnverify.checks.registry import checks
from attnverify.inputs.fixed_cases import FAR, fixed_cases
from attnverify.inputs.memory_layouts import SHARED
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.inputs.real.required_kinds import FAR_ROW, WHOLE, kinds_of, required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import count_draws, draw_recipes
from attnverify.options import PROFILES
from attnverify.precision import FORMATS
from tests.sight.stamp import stamp

WIDTHS = {192, 256, 257}
LONG = 4096


def size(recipe: Recipe, letter: str) -> int:
    return recipe.sizes.get(letter, 1)


def heads(recipe: Recipe) -> int:
    return size(recipe, "B") * size(recipe, "H")


def family(recipe: Recipe) -> str:
    return str(recipe.values["family"])


def operation(recipe: Recipe) -> Operation:
    return CATALOGUE[recipe.operation]


OF_RECIPES: dict[str, Callable[[Recipe], bool]] = {
    "near-uniform weights over 513 keys and more, values of one sign": lambda r: (
        family(r) == "one_signed" and size(r, "M") >= 513
    ),
    "values with disjoint columns over 15 to 8192 keys": lambda r: family(r) == "columns",
    "half of a row's weight at 0, at M - 1 and at edges of tiles, 513 keys and more": lambda r: (
        family(r) == "spotlight" and size(r, "M") >= 513
    ),
    "8192 keys, at most 3 queries": lambda r: size(r, "M") >= 2 * LONG and size(r, "N") <= 3,
    "square layers of 2048": lambda r: operation(r).traits.square and size(r, "N") == 2048,
    "more than 4096 keys or queries": lambda r: max(size(r, "M"), size(r, "N")) > LONG,
    "B x H beyond 1024": lambda r: heads(r) > 1024,
    "B x H beyond 65535": lambda r: heads(r) > 65535,
    "a width of 192, 256 or 257": lambda r: bool(WIDTHS & {size(r, letter) for letter in "DEQKA"}),
    "as many positions as the tables have on one side": lambda r: (
        "P" in r.sizes and r.sizes["P"] in (size(r, "N"), size(r, "M"))
    ),
    "one array as key and as value": lambda r: r.layout["kind"] == SHARED,
    "width not last in memory": lambda r: r.layout["kind"] == "width_first",
    "the lowest finite number of a mask over a row's first keys": lambda r: (
        (r.mask or {}).get("form") == "lowest"
    ),
    "NaN in a float attn_mask under the padding": lambda r: (
        r.operation == "merge_masks" and r.poison == "nan"
    ),
    "outputs near the end of float16": lambda r: family(r) == "near_overflow",
    "visible scores far below any sentinel, large hidden values": lambda r: family(r) in FAR,
    "layers with 12 heads and more": lambda r: (
        bool(operation(r).traits.parameters) and size(r, "H") >= 12
    ),
    "a tile of hidden keys before or behind scores far below 0": lambda r: FAR_ROW in kinds_of(r),
    "a mask over queries and keys that tiles of 16 divide": lambda r: WHOLE in kinds_of(r),
}
"""What recipes have, in words."""

OF_CHECKS: dict[str, Callable[[str], bool]] = {
    "an attn_mask with one batch entry for several, to be refused": lambda name: (
        name in ("attn_mask of one batch entry's heads", "attn_mask with one entry for all")
    ),
    "a narrow dtype before a wide one in calls in a row": lambda name: (
        name.startswith("calls in a row") and is_narrower(OTHER_DTYPE["float32"], "float32")
    ),
    "gradients of each input alone, of all but one, of some": lambda name: (
        name == "training: gradients of some inputs"
    ),
    "a second backward pass through one graph": lambda name: (
        name == "training: a second backward pass"
    ),
    "gradients added to others": lambda name: name == "training: gradients added to others",
}
"""What is a check of its own."""


def is_narrower(one: str, other: str) -> bool:
    return FORMATS[one].p < FORMATS[other].p


def recipes(op: Operation, profile: str) -> Iterator[Recipe]:
    """Yield every recipe of an operation whose outputs or gradients the profile judges."""
    yield from (*fixed_cases(op.name), *required_cases(op.name))
    yield from draw_recipes(op.name, "any", count_draws(op.name, PROFILES[profile]), 0)
    yield from (*everyday_calls(op.name, profile, 0), *far_calls(op, profile))
    yield from grid_recipes(op, profile)
    if has_independent_rows(op):
        yield from (long_recipe(op.name, N, M) for N, M in LENGTHS[profile])


def count_drawn(profile: str) -> dict[str, list[int]]:
    """By what is drawn: how many recipes or checks have it, and in how many operations."""
    found: dict[str, list[int]] = {words: [0, 0] for words in (*OF_RECIPES, *OF_CHECKS)}
    for op in CATALOGUE.values():
        own, names = list(recipes(op, profile)), list(names_of_checks(op, profile))
        counts = {words: sum(map(has, own)) for words, has in OF_RECIPES.items()}
        counts |= {words: sum(map(is_it, names)) for words, is_it in OF_CHECKS.items()}
        for words, count in counts.items():
            found[words] = [found[words][0] + count, found[words][1] + (count > 0)]
    return found


def names_of_checks(op: Operation, profile: str) -> Iterator[str]:
    for aspect in ("gradients", "refusals", "side effects"):
        yield from checks(op.name, aspect, profile=profile, seed=0)


def all_drawn() -> dict[str, dict[str, list[int]]]:
    return {profile: count_drawn(profile) for profile in ("quick", "default")}


if __name__ == "__main__":
    print(json.dumps(stamp() | {"kinds": all_drawn()}, indent=1))
