"""Probes: a fixed set of recipes that every implementation meets, whatever Hypothesis draws."""

from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, INNER, Operation
from attnverify.catalogue.pairs import PRESENT, deals
from attnverify.inputs.memory_layouts import LAYOUTS, SHARED
from attnverify.inputs.recipe import Recipe

SIZES = {
    "B": 2,
    "H": 3,
    "N": 5,
    "M": 7,
    "D": 4,
    "E": 6,
    "Q": 3,
    "K": 5,
    "A": 4,
    "C": 3,
    "J": 3,
    "S": 2,
    "L": 2,
    "F": 6,
}
GEOMETRIES: tuple[dict[str, int], ...] = (
    {},
    {"N": 1, "M": 1, "B": 1, "H": 1, "D": 1, "E": 1},
    {"N": 3, "M": 5},
    {"N": 1, "M": 9},
    {"N": 9, "M": 1},
    {"N": 2, "M": 33, "B": 1},
    {"N": 2, "M": 65, "B": 1, "H": 2},
    {"N": 129, "M": 3, "B": 1, "H": 1},
    {"N": 128, "M": 3, "B": 1, "H": 1},
    {"N": 6, "M": 6, "H": 6, "B": 1},
    {"N": 4, "M": 5, "H": 12, "B": 1, "D": 1},
    {"N": 2, "M": 3, "H": 80, "B": 1, "D": 1, "E": 1},
    {"N": 2, "M": 3, "H": 2, "B": 1, "D": 192, "E": 256, "Q": 192, "K": 256, "A": 192},
    {"N": 1025, "M": 2, "B": 1, "H": 2, "D": 2, "E": 2},
    {
        "N": 2,
        "M": 3,
        "B": 17,
        "H": 1,
        "D": 257,
        "E": 257,
        "Q": 70,
        "K": 66,
        "A": 257,
        "S": 67,
        "F": 258,
    },
)
"""
Alike, the smallest, as many positions as the memory, one query, one key, a key beyond a block, more
queries than keys and whole blocks of them, N = M = H, twelve slopes, eighty, the widths of large
models, queries beyond 1024, batches and widths beyond those that are drawn.
"""

FEW_GEOMETRIES = (*GEOMETRIES[:5], GEOMETRIES[-1])
"""
What the gradient of a layer is probed with: the attention between its projections meets all of
them, and every layout, as an operation of its own. And every gradient whose library compiles each
shape, two programs for one.
"""

WIDE = 192
"""Columns of a head beyond which projections of standard normal numbers saturate a layer."""

TURNED = (
    *({"D": 7, "R": 2}, {"D": 16, "R": 8}, {"D": 64, "R": 16}, {"D": 5, "R": 1}),
    *({"D": 33, "R": 16}, {"D": 128, "R": 64}, {"D": 80, "R": 16, "N": 130, "B": 1}),
    {"D": 256, "R": 32, "N": 65},
    *({"D": 128, "R": 64, "N": 1, "H": 8}, {"D": 128, "R": 64, "N": 170, "B": 1}),
)
"""Widths of heads and pairs that turn; the last ones are those of models."""

PAIRS = 2**15
"""Most pairs of a probe: where N = M, or with a memory, the longest are left out."""

LONG = {"N": 2, "M": 1025, "B": 1, "H": 2, "D": 2, "E": 2}
EDGE = {"N": 3, "M": 65, "H": 2, "D": 2, "E": 2}
"""Long keys, under a mask where there is one; a key beyond a block in every layout."""

FAMILY_SIZES = {"N": 3, "M": 17, "E": 17, "B": 1, "D": 16}
FAMILIES = ("identity", "needles", "one_signed", "spread", "offset_values")
CLIFF = {"N": 3, "M": 136, "B": 2, "H": 2}
"""Keys of whole tiles of up to 128, and of one that follows them."""
FAR = ("far_below", "farthest_below")
"""Under them, a finite number that stands for "hidden" lets in what is hidden."""


@lru_cache(maxsize=128)
def fixed_cases(operation: str, few: bool = False) -> tuple[Recipe, ...]:
    """
    Return the probes of an operation: each geometry (or few of them, for a library that compiles
    each), each family, each way of hiding keys, each optional thing left out.
    """
    op = CATALOGUE[operation]
    if op.outside is not None:
        return tuple({r.text: r for r in _of_outside(op)}.values())
    if op.shares_keys:
        return tuple({r.text: r for r in _of_many_options(op)}.values())
    geometries = FEW_GEOMETRIES if few or op.is_layer_gradient else GEOMETRIES
    found = [fixed_recipe(op, sizes, _family_of(op, sizes)) for sizes in geometries]
    if op.is_given_arrays and not op.is_layer_gradient:
        found += [
            replace(fixed_recipe(op, EDGE, "normal"), layout={"kind": kind, "seed": 1})
            for kind in LAYOUTS
        ]
    if "value" in op.arguments:
        found += [fixed_recipe(op, FAMILY_SIZES, family) for family in FAMILIES]
    if "x" in op.arguments and op.chapter == "layers":
        found += [
            fixed_recipe(op, {"H": 2, "D": 16, "F": 32}, family)
            for family in ("large", "offset_values")
        ]
    if not op.traits.parameters and (op.is_attention or "score" in op.arguments):
        found.append(fixed_recipe(op, CLIFF, "cliff"))
    if op.traits.option:
        found += [fixed_recipe(op, {INNER: inner}) for inner in (12, 33)]
    if op.mask:
        found += [
            fixed_recipe(op, {}, "spread", fixed_mask(op, pattern))
            for pattern in ("left_padding", "empty_rows", "one_key", "nothing", "first_block")
        ]
    if "key_padding_mask" in op.arguments:
        found.append(fixed_recipe(op, {"B": 4, "N": 4}, "spread", fixed_mask(op, "random")))
    found.append(fixed_recipe(op, LONG, "normal", fixed_mask(op, "random") if op.mask else None))
    if not op.traits.parameters:  # a stack's two options are drawn; its cases are dear
        found += [dealt_recipe(op, deal, row) for row, deal in enumerate(deals(op))]
    found += _beside_finite_numbers(op, few) + _under_padding(op) + _turned(op)
    found += [] if few else _shared_arrays(op)
    if "keep" in op.arguments:
        found.append(replace(fixed_recipe(op, {}, "normal"), dropout=None))
        drawn = [{}] if op.traits.parameters else [{"axes": axes} for axes in op.traits.mask_axes]
        found += [
            replace(fixed_recipe(op, {}, "spread"), dropout={"p": 0.25, "seed": 2} | axes)
            for axes in drawn
        ]
    return tuple({r.text: r for r in found if pair_count(r) <= PAIRS}.values())


def _of_many_options(op: Operation) -> list[Recipe]:
    """
    Few geometries and families, and every pair of options; where options meet, layouts and dropout
    take turns, and each option meets each form of a mask.
    """
    found = [fixed_recipe(op, sizes) for sizes in (*FEW_GEOMETRIES, LONG)]
    found.append(fixed_recipe(op, CLIFF, "cliff"))
    found += [fixed_recipe(op, FAMILY_SIZES, family) for family in FAMILIES]
    met = set[tuple[str, str, int]]()
    for row, deal in enumerate(deals(op)):
        recipe = dealt_recipe(op, deal, row)
        layout = {"kind": tuple(LAYOUTS)[row % len(LAYOUTS)], "seed": 1}
        if op.mask is None:
            poison = (None, "nan", "finite")[row % 3]
            found.append(replace(recipe, layout=layout, poison=poison))
            continue
        mask = fixed_mask(op, ("random", "left_padding", "empty_rows")[row % 3])
        beside = [{(name, str(value), k) for name, value in deal.items()} for k in range(3)]
        new = [len(pairs - met) for pairs in beside]
        form = new.index(max(new))
        met |= beside[form]
        found.append(
            replace(
                recipe,
                layout=layout,
                mask=(None, mask, mask | {"form": "noisy"})[form],
                dropout={"p": 0.25, "seed": row} if row % 7 == 0 else None,
            )
        )
    return found


def _of_outside(op: Operation) -> list[Recipe]:
    assert op.outside is not None
    return [Recipe(op.name, **parts) for parts in op.outside.fixed()]


def _family_of(op: Operation, sizes: dict[str, int]) -> str:
    """
    Choose the family of a geometry: standard normal numbers, except in layers as wide as large
    models. There the scores of standard normal projections grow with the width, until the layer's
    bound says nothing.
    """
    return "small" if op.traits.parameters and sizes.get("D", 0) >= WIDE else "normal"


def _beside_finite_numbers(op: Operation, few: bool) -> list[Recipe]:
    """
    Scores below whatever finite number may stand for "hidden", with large numbers in hidden slots;
    the dtype's lowest number over a row's first keys; outputs near the end of float16.
    """
    found: list[Recipe] = []
    if op.mask in ("mask", "visible") and (op.is_attention or "score" in op.arguments):
        hidden = {"pattern": "random", "axes": op.key_mask_axes or "1 M", "form": "bool", "seed": 2}
        found += [
            replace(fixed_recipe(op, {"N": 5, "M": 9}, family, hidden), poison="finite")
            for family in FAR
        ]
        if op.mask == "mask":
            lowest = {"pattern": "first_block", "axes": "N M", "form": "lowest", "seed": 5}
            found.append(fixed_recipe(op, {"N": 3, "M": 65, "B": 1, "H": 2}, "spread", lowest))
    if op.is_attention and not op.is_gradient:
        sizes = FAMILY_SIZES if few else {"N": 3, "M": 17, "B": 1}
        found.append(fixed_recipe(op, sizes, "near_overflow"))
    return found


def _under_padding(op: Operation) -> list[Recipe]:
    """
    NaN in a float attn_mask where the padding hides the key anyway: of the function that merges the
    two, whose answer it is. Of layers that merge them it is a question of what is hidden.
    """
    if op.chapter != "masks" or "key_padding_mask" not in op.arguments:
        return []
    mask = {"pattern": "random", "axes": "B*H N M", "form": "finite", "seed": 3}
    return [replace(fixed_recipe(op, {}, "normal", mask), poison="nan")]


def _turned(op: Operation) -> list[Recipe]:
    """
    Widths of which some channels turn, in both pairings, at positions of every size; all of them,
    unsaid; a prompt, and a step of decoding behind it.
    """
    if "R" not in op.sizes:
        return []
    found = []
    for (seed, sizes), pairing in product(enumerate(TURNED), op.domains["pairing"].choices):
        recipe = fixed_recipe(op, {"N": 9, "B": 2, "H": 2} | sizes, seed=seed)
        own: dict[str, Any] = {"pairing": pairing, "positions": {"seed": seed}}
        own |= {} if 2 * sizes["R"] < sizes["D"] else {"rotary_dim": False}
        found.append(replace(recipe, options=recipe.options | own))
    return found


def _shared_arrays(op: Operation) -> list[Recipe]:
    """One array as key and as value."""
    if not {"key", "value"} <= set(op.arguments):
        return []
    recipe = fixed_recipe(op, {"N": 3, "M": 7, "D": 6, "E": 6, "K": 6})
    return [replace(recipe, layout={"kind": SHARED, "seed": 1})]


def pair_count(recipe: Recipe) -> int:
    """Queries times keys; an operation that names no keys attends to its own positions."""
    N = recipe.sizes.get("N", 1)
    return N * recipe.sizes.get("M", N)


def fixed_mask(op: Operation, pattern: str) -> dict[str, Any]:
    axes = op.traits.mask_axes
    return {"pattern": pattern, "axes": axes[1 % len(axes)], "form": "bool", "seed": 5}


def fixed_recipe(
    op: Operation,
    sizes: dict[str, int],
    family: str = "normal",
    mask: dict[str, Any] | None = None,
    seed: int = 7,
) -> Recipe:
    """
    Return a recipe with these sizes, the others as usual, fitted to what the operation needs.

    This is the one way to make a recipe that is not drawn.
    """
    if op.outside is not None:
        return _of_outside(op)[0]
    options = {name: d.choices[0] for name, d in op.domains.items() if d.choices and d.choices[0]}
    options |= {name: {"seed": seed} for name, d in op.domains.items() if d.required}
    options |= {"mem_len": (SIZES | sizes)["S"] + 1} if "mem_len" in options else {}
    needed = {"pattern": "causal", "axes": "N M", "form": "bool", "seed": 1}
    return Recipe(
        op.name,
        fitting_sizes(op, sizes),
        {"family": family, "seed": seed},
        mask=mask or (needed if op.mask and op.requires(op.mask) else None),
        padding={"pattern": "right_padding", "seed": 6}
        if mask and "key_padding_mask" in op.arguments
        else None,
        dropout={"p": 0.25, "seed": 2} if op.requires("keep") else None,
        options=options,
    )


DEALT: tuple[dict[str, int], ...] = (
    {},
    {"N": 9, "M": 4},
    {"N": 1, "M": 19, "B": 3},
    {"N": 33, "M": 34, "B": 1, "H": 2},
)
"""Sizes of the cases in which options meet: both ways unlike, one row, beyond a block."""


def dealt_recipe(op: Operation, deal: dict[str, Any], row: int) -> Recipe:
    """Return the recipe in which options meet as dealt."""
    recipe = fixed_recipe(op, DEALT[row % len(DEALT)])
    given = {
        name: {"seed": row} if value is PRESENT else value for name, value in deal.items() if value
    }
    return replace(recipe, options=recipe.options | given)


def fitting_sizes(op: Operation, sizes: dict[str, int]) -> dict[str, int]:
    """
    Return the sizes that the operation has: these, the others as usual, some bound to each other.
    """
    full = SIZES | sizes
    if op.traits.square:
        full["M"] = full["N"]
    if op.has_heads:
        full["D"] += full["D"] % 2
        full["F"] = full["H"] * full["D"]
    if op.shares_keys:
        full["H"] *= 1 + (full["H"] % 2 and full["H"] > 1)
        full = {"G": 2 if full["H"] > 2 else 1} | full
    if op.has_memory:
        full["M"] = full["N"] + full["S"]
    if "R" in op.sizes:
        full["D"] = max(full["D"], 2)
        full = {"R": full["D"] // 2} | full
    full = {"P": max(full["N"], full["M"]) + 1, "T": full["B"] * full["N"]} | full
    full = {"U": full["B"] * full["M"], "W": 4} | full
    full = {"Y": -(-full["M"] // full["W"])} | full
    full = {"Z": full["Y"] + full["B"]} | full
    letters = op.sizes | {INNER} if op.traits.option else op.sizes
    return {letter: size for letter, size in full.items() if letter in letters}
