"""
Real calls: the sizes that models make, of which every element is judged.

An everyday call has as many pairs of batch and head as a GPU runs at once or more, several tiles of
queries and of keys, and the widths of heads that models have. A few are the same in every run, one
for each way that a caller has; others are drawn. Far calls have thousands of keys, or of queries:
weights are near-uniform and values of one sign, which is the worst for an accumulator, or each
value stands in one column alone, so that a single lost key shows.
"""

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.real.dealt_calls import (
    calls_under_options,
    dealt_calls,
    usual_family,
    with_parts,
)
from attnverify.inputs.real.model_calls import model_calls
from attnverify.inputs.recipe import Recipe

Sizes = dict[str, int]

HEADS = {"B": 2, "H": 8, "N": 512, "M": 512, "D": 64, "E": 64, "P": 512}
ADDITIVE = {"B": 2, "N": 256, "M": 256, "Q": 64, "K": 64, "A": 64, "E": 64}
ROWS = {"N": 512, "M": 512}
TABLE = {"B": 2, "H": 8, "N": 512, "M": 512, "F": 512, "S": 256, "L": 2}
PARTS = {"B": 2, "H": 8, "N": 512, "E": 64, "C": 4}
LAYER = {"B": 2, "H": 8, "N": 512, "M": 512, "D": 64, "F": 512, "K": 64, "E": 64, "L": 1, "P": 512}
WITH_MEMORY = LAYER | {"S": 256}
LATENTS = {"B": 2, "H": 16, "N": 2, "M": 130, "D": 64, "E": 512}
TOKENS = {"B": 1, "H": 16, "G": 1, "N": 3, "M": 600, "D": 192, "E": 128, "J": 64}
LONGER = {"B": 1, "N": 512, "M": 512, "A": 16}
"""
What is called every day, in every profile. Of a layer the model is 512 wide. Under a mask, padding
or a draw it is one entry of the batch, unless these differ between entries; what has a memory has
fewer queries then. Additive attention is called once more, longer and with fewer hidden units;
latents once more, as wide as DeepSeek's and what carries their positions; chosen blocks once more,
of one key each.
"""

SMALLEST = {"B": 1, "H": 2, "N": 66, "M": 130, "S": 64, "D": 64, "F": 128, "P": 130}
"""More than one tile of queries and of keys: what is executed by an emulated GPU has no more."""

ROUNDS = {"quick": 1, "default": 1, "thorough": 6}
"""How often the calls of every width, mask and layout are dealt."""

BOOLEAN = {"pattern": "causal", "axes": "N M", "form": "bool", "seed": 1}
FLOAT = {"pattern": "random", "form": "noisy", "seed": 3}
SCATTERED = {"pattern": "random", "axes": "N M", "form": "bool", "seed": 1}
PADDED = {"pattern": "right_padding", "form": "bool", "seed": 15}
"""By this seed an entry has nine tenths of its keys and the next two thirds: no tile of most."""


@lru_cache(maxsize=256)
def everyday_calls(
    operation: str, profile: str, seed: int, emulated: bool = False, few: bool = False
) -> tuple[Recipe, ...]:
    """
    List the everyday calls of an operation in a profile; of what an emulated GPU executes the
    smallest of each kind. ``few``: those that are the same in every run have few entries and heads,
    and of the dealt ones it is a third.
    """
    op = CATALOGUE[operation]
    least = SMALLEST if emulated else few_of_each(op) if few else {}
    found = [*usual_calls(op, profile, least)]
    if found and not emulated:
        rng = Random(f"real {operation} {seed}")
        dealt = [*calls_under_options(op, rng)]
        if everyday_sizes(op) is not TABLE:
            for _ in range(ROUNDS[profile]):
                dealt += [*dealt_calls(op, rng), *model_calls(op, rng)]
        found += dealt[seed % 3 :: 3] if few else dealt
    return tuple(dict.fromkeys(found))


def everyday_sizes(op: Operation) -> Sizes | None:
    """The sizes of an everyday call; None of an operation that has no positions."""
    if op.traits.parameters:
        return WITH_MEMORY if op.has_memory else LAYER
    if "A" in op.sizes:
        return ADDITIVE
    if "D" in op.sizes:
        return HEADS
    if {"score", "weights"} & set(op.arguments) or op.chapter == "shifts":
        return ROWS
    if "C" in op.sizes:
        return PARTS
    return TABLE if {"N", "M"} & op.sizes else None


def few_of_each(op: Operation) -> Sizes:
    """
    Return the most entries and heads of an everyday call that has few; as many heads as make up the
    width of a model, and in place of them fewer rows.
    """
    if op.has_heads:
        return {"B": 1} | (
            {"N": 128, "S": 128} if op.has_memory else {"N": 160, "M": 160, "P": 160}
        )
    if "A" in op.sizes:
        return {"B": 1, "N": 256, "M": 256}
    return {"B": 2, "H": 2} if "G" not in op.sizes and "H" in op.sizes else {"B": 1, "H": 4}


def usual_calls(op: Operation, profile: str, most: Sizes) -> Iterator[Recipe]:
    """
    Yield the same calls in every run: as they come, under a boolean mask, under a float mask with a
    draw and with padding; beyond the quick profile also under each of these alone. ``most``: sizes
    that none exceeds.
    """
    sizes = everyday_sizes(op)
    if sizes is None:
        return
    for number, parts in enumerate(ways_of_calling(op, profile)):
        alone = number > 0 and not differs_between_entries(parts)
        some = (later_sizes(sizes) if number else sizes) | ({"B": 1} if alone else {})
        some |= {"H": 4} if alone and op.shares_keys else {}
        few = limited(some, few_keys(op, some))
        if sizes is ROWS and not number:
            parts = parts | {"options": {"lead": (2, 8)}}
        yield with_parts(op, limited(few, most), usual_family(op), parts, number)
    if op.is_latent:
        yield fixed_recipe(op, limited(LATENTS, most), usual_family(op))
    if op.is_selected:
        parts = {"options": {"block": 1}}
        yield with_parts(op, limited(TOKENS, most), usual_family(op), parts, 10)
    if "A" in sizes:
        masked = {"mask": BOOLEAN} if op.mask else {}
        yield with_parts(op, limited(sizes | LONGER, most), usual_family(op), masked, 10)
    each = next((axes for axes in ("B 1 N M", "B N M") if axes in op.traits.mask_axes), "")
    if each and not op.traits.causal:
        few = later_sizes(sizes) | {"H": min(2, sizes.get("H", 1))}
        parts = {"mask": PADDED | {"axes": each}}
        yield with_parts(op, limited(few, most), usual_family(op), parts, 11)


def few_keys(op: Operation, sizes: Sizes) -> Sizes:
    """
    Return the most keys of what is bounded on its graph, where a pair takes a kilobyte: those of
    two gigabytes, so that a call of few heads has all. Of packed sequences all pairs count.
    """
    if "soft_cap" not in op.arguments:
        return {}
    rows = sizes["B"] * sizes["H"] * sizes["N"] * (sizes["B"] if op.is_packed else 1)
    return {"M": PAIRS // rows}


PAIRS = 16 * 512 * 272
"""A tile more than 2^17 pairs of each head, of which a kernel may take another path."""


def later_sizes(sizes: Sizes) -> Sizes:
    """The sizes of every call but the first."""
    return sizes | ({"N": 256} if "S" in sizes else {})


def limited(sizes: Sizes, most: Sizes) -> Sizes:
    return {letter: min(size, most.get(letter, size)) for letter, size in sizes.items()}


def differs_between_entries(parts: dict[str, Any]) -> bool:
    """Whether a mask or padding is another one for each entry of the batch."""
    axes = (parts.get("mask") or {}).get("axes", "")
    return "padding" in parts or axes.startswith("B")


def ways_of_calling(op: Operation, profile: str) -> list[dict[str, Any]]:
    """Which masks, padding and draws a call is given, each way once."""
    boolean = {"mask": SCATTERED if op.traits.causal else BOOLEAN}
    added = {"mask": hiding_mask(op, PADDED if op.mask == "visible" else FLOAT)}
    draw = {"dropout": {"p": 0.25, "seed": 2}} if "keep" in op.arguments else {}
    padding = {"padding": {"pattern": "right_padding", "seed": 15}}
    padding = padding if "key_padding_mask" in op.arguments else {}
    found = [{}, boolean if op.mask else padding, (added if op.mask else {}) | padding | draw]
    if profile != "quick":
        found += [added if op.mask else {}, draw, padding, boolean | draw]
    return list({str(parts): parts for parts in found}.values())


def hiding_mask(op: Operation, mask: dict[str, Any]) -> dict[str, Any]:
    """The mask in a documented shape: one for each entry of the batch, where there is such."""
    shapes = ("B 1 N M", "B N M", "B*H N M", "N M")
    return mask | {"axes": next(axes for axes in shapes if axes in (*op.traits.mask_axes, "N M"))}


# far calls

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


def far_calls(op: Operation, profile: str) -> list[Recipe]:
    """Calls of thousands of keys, or of queries; few enough pairs to be judged one by one."""
    if op.skips("long sequences") or (op.is_gradient and profile == "quick"):
        return []
    if "value" in op.arguments and not op.traits.parameters:
        return [
            fixed_recipe(op, sizes, family)
            for family, sizes in ATTENDED["quick" if profile == "quick" else "default"]
            if sizes["M"] >= sizes["N"] or not op.traits.causal  # who sees nothing shows nothing
        ]
    if profile == "quick":
        return []
    squares = SQUARE_GRADIENT if op.is_gradient and profile == "default" else SQUARE
    long = fixed_recipe(op, squares if op.traits.square else LONG)
    padded = {"pattern": "right_padding", "axes": "N M", "form": "bool", "seed": 5}
    masked = [fixed_recipe(op, LONG, "normal", padded)] if op.mask == "attn_mask" else []
    return [long, *(masked if not op.traits.square else [])]
