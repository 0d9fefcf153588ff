"""
How a recipe is made: choice after choice from short lists, by whoever chooses.

``choose`` takes a sequence and returns one of its elements: a random generator's ``choice`` to
draw, Hypothesis to shrink. Small geometry comes first in every list, so that shrinking ends at a
case one can read.
"""

from collections.abc import Callable, Sequence
from typing import Any

from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import CATALOGUE, INNER, Operation
from attnverify.inputs.masks import PATTERNS
from attnverify.inputs.recipe import Recipe

Choose = Callable[[Sequence[Any]], Any]

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
BLOCK_EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
FEW = (2, 3, 5, 8, 17, 33)
"""Lengths of the cases in which a key is hidden from some rows."""

HEADS = (1, 2, 3, 5, 6, 12)
WIDTHS = (1, 2, 4, 7, 16, 33, 64, 80, 96, 128)
SEEDS = range(2**16)
COST = 3000
"""Most elements that the largest intermediate of an ordinary case has (B H N M, or B N M A)."""

MASK_FORMS = ("bool", "infinite", "noisy", "finite", "lowest", "-1e4", "bool")
"""Of a mask: boolean twice, as most callers give it."""

LAYOUTS = ("contiguous", "transposed", "packed", "offset", "expanded", "reversed", "mixed")


def draw_recipe(
    choose: Choose,
    operation: str,
    poison: tuple[str | None, ...] = (None, None, "finite"),
    hiding: bool = False,
    from_some: bool = False,
) -> Recipe:
    """
    Draw a recipe of one operation.

    ``poison`` lists what may stand in hidden slots; ``hiding`` asks for masks that hide something
    from everyone, ``from_some`` for those that hide it from some rows, in few pairs.
    """
    op = CATALOGUE[operation]
    if op.outside is not None:
        return Recipe(operation, **op.outside.draw(choose))
    if from_some:
        return draw_partly_hidden(choose, op, poison)
    sizes, options = draw_sizes(choose, op)
    return Recipe(
        operation,
        sizes,
        draw_value_family(choose, op),
        mask=draw_mask_spec(choose, op, hiding),
        padding=draw_padding_spec(choose, hiding) if "key_padding_mask" in op.arguments else None,
        dropout=draw_dropout_spec(choose, op) if "keep" in op.arguments else None,
        layout=draw_layout(choose, op),
        poison=choose(poison)
        if {"key", "key_pages", "latent", "score"} & set(op.arguments)
        else None,
        options=options,
    )


def draw_partly_hidden(choose: Choose, op: Operation, poison: tuple[str | None, ...]) -> Recipe:
    """
    Draw a recipe that hides something from some rows: two or more rows, plain numbers in few pairs,
    and a mask unless rows are causal or read their own rows of a table.
    """
    sizes, options = draw_sizes(choose, op, (choose(FEW), choose(FEW)))
    axes = [axes for axes in op.traits.mask_axes if "N" in axes.split()]
    without = op.traits.causal or {"position", "key_pos_bias"} & {*op.arguments}
    needed = op.mask and (op.requires(op.mask) or not without or choose((True, False)))
    mask = {
        "pattern": choose(("causal", "window", "random", "sparse")),
        "axes": choose(axes or ("N M",)),
        "form": choose(("bool",) if op.mask == "visible" else MASK_FORMS[:3]),
        "seed": choose(SEEDS),
    }
    return Recipe(
        op.name,
        sizes,
        {"family": "normal", "seed": choose(SEEDS)},
        mask=mask if needed else None,
        dropout=draw_dropout_spec(choose, op)
        if "keep" in op.arguments and not op.is_gradient
        else None,
        layout=draw_layout(choose, op),
        poison=choose(poison),
        options=options,
    )


def draw_value_family(choose: Choose, op: Operation) -> dict[str, Any]:
    """Family and seed of the numbers, where there are numbers."""
    if not op.axes:
        return {"family": "normal", "seed": 0}
    return {"family": choose(op.families), "seed": choose(SEEDS)}


def draw_layout(choose: Choose, op: Operation) -> dict[str, Any]:
    if not op.is_given_arrays:
        return {"kind": "contiguous", "seed": 0}
    return {"kind": choose(LAYOUTS), "seed": choose(SEEDS)}


def draw_sizes(
    choose: Choose, op: Operation, lengths: tuple[int, int] | None = None
) -> tuple[dict[str, int], dict[str, Any]]:
    """
    Draw the sizes that the operation's axes name, unless ``lengths`` gives N and M, and the options
    that go with them.
    """
    options: dict[str, Any] = {}
    if op.sizes == {"H"}:
        return {"H": choose(range(1, 4097))}, options
    N, M = lengths or draw_lengths(choose)
    sizes = {"N": N, "M": N if op.traits.square else M, "B": choose((1, 2, 3)), "H": choose(HEADS)}
    sizes |= {letter: choose(WIDTHS) for letter in ("D", "E") if letter in op.sizes}
    sizes |= {letter: choose((1, 2, 3, 5, 8, 17)) for letter in "QKA" if letter in op.sizes}
    if op.has_heads:
        sizes["D"] = choose((1, 2, 4, 7, 16))
        options["biases"] = choose((False, True))
    limit_cost(sizes)
    if op.shares_keys:
        sizes["G"] = choose([g for g in range(sizes["H"], 0, -1) if sizes["H"] % g == 0])
    if "C" in op.sizes:
        sizes["C"] = choose((2, 1, 3, 4, 7, 17))
    sizes["P"] = max(sizes["N"], sizes["M"]) + choose(range(4))
    sizes["L"] = choose((1, 2, 3))
    sizes["F"] = sizes["H"] * sizes["D"] if "D" in sizes else choose((1, 2, 3, 5, 8))
    draw_special_sizes(choose, op, sizes, options)
    options |= draw_options(choose, op)
    sizes = {letter: size for letter, size in sizes.items() if letter in op.sizes}
    if op.traits.option and (inner := choose((0, 0, 1, 3, 8, 17))):
        sizes[INNER] = inner
    if op.is_stack:
        limit_depth(sizes)
    if "..." in " ".join(op.axes.values()):
        options["lead"] = choose(((), (1,), (2,), (2, 3), (1, 1, 2)))
    return sizes, options


def draw_special_sizes(
    choose: Choose, op: Operation, sizes: dict[str, int], options: dict[str, Any]
) -> None:
    """What only some operations have: memories, even widths, channels that turn."""
    if not op.is_given_arrays:
        sizes |= {letter: choose(range(1, 131)) for letter in "NMF"}
    if op.traits.even_width:
        sizes["F"] += sizes["F"] % 2 * (sizes["H"] if "D" in sizes else 1)
        sizes["D"] = sizes["F"] // sizes["H"]
    if op.is_packed:
        sizes |= {"T": sizes["B"] * sizes["N"], "U": sizes["B"] * sizes["M"]}
    if op.is_paged:
        sizes["W"] = choose((1, 2, 3, 4, 8, 16))
        sizes["Y"] = -(-sizes["M"] // sizes["W"])
        sizes["Z"] = choose((sizes["Y"], sizes["Y"] + 1, sizes["B"] * sizes["Y"] + 2))
    if op.is_selected:
        sizes["J"] = choose((2, 1, 3, 4, 8))
    if "R" in op.sizes:
        sizes["D"] = max(sizes["D"], 2)
        sizes["R"] = choose((sizes["D"] // 2, max(sizes["D"] // 4, 1), 1))
        if sizes["D"] == 2 * sizes["R"] and choose((False, True)):
            options["rotary_dim"] = False
    if op.has_memory:
        sizes["S"] = choose((1, 2, 3, 0, 5, 7))
        options["mems"] = choose((True, True, True, False))
        sizes["M"] = sizes["N"] + sizes["S"] * options["mems"]


def draw_options(choose: Choose, op: Operation) -> dict[str, Any]:
    """Draw what each option is; one that is left out, and is nothing then, is not named."""
    drawn = {name: draw_option(choose, domain) for name, domain in op.domains.items()}
    return {name: value for name, value in drawn.items() if value or op.requires(name)}


def draw_option(choose: Choose, domain: Domain) -> Any:
    """
    Draw one of the choices, or the seed of an array of integers; what may be left out is, in two
    draws of three, so that not everything is hidden by one option or another.
    """
    if domain.choices and domain.choices[0]:
        return choose(domain.choices)
    if not domain.required and choose((True, True, False)):
        return None
    return choose(domain.choices) if domain.integers is None else {"seed": choose(SEEDS)}


def limit_depth(sizes: dict[str, int]) -> None:
    """
    Leave a stack so many layers that its bounds say something: worst cases grow by the width with
    every layer, and by as much again with its feed-forward, of which the widest has none.
    """
    if INNER in sizes and sizes["F"] > 64:
        del sizes[INNER]
    most = min(2, 32 // sizes["F"]) if INNER in sizes else 64 // sizes["F"]
    sizes["L"] = max(min(sizes["L"], most), 1)


def draw_lengths(choose: Choose) -> tuple[int, int]:
    """N and M: alike, unlike both ways, one of them 1, one of them beside a block's edge."""
    kind = choose(("both", "both", "both", "edge keys", "edge queries", "one query", "square"))
    if kind == "edge keys":
        return choose((1, 2, 3, 5)), choose(BLOCK_EDGES)
    if kind == "edge queries":
        return choose(BLOCK_EDGES), choose((1, 2, 3, 5))
    if kind == "one query":
        return 1, choose(LENGTHS)
    N = choose(LENGTHS)
    return N, N if kind == "square" else choose(LENGTHS)


def limit_cost(sizes: dict[str, int]) -> None:
    """
    Keep an ordinary case small: where everything was drawn large at once, first the widths give
    way, then batch and heads.
    """
    for letters, least in (
        ("DE", 16),
        ("A", 5),
        ("H", 3),
        ("B", 1),
        ("DE", 4),
        ("H", 2),
        ("NM", 13),
    ):
        if cost(sizes) <= COST:
            return
        for letter in set(letters) & set(sizes):
            sizes[letter] = min(sizes[letter], least)


def cost(sizes: dict[str, int]) -> int:
    pairs = sizes["B"] * sizes["N"] * sizes["M"] * (sizes["A"] if "A" in sizes else sizes["H"])
    rows = (
        sizes["B"]
        * sizes["H"]
        * (sizes["N"] + sizes["M"])
        * max(sizes.get("D", 1), sizes.get("E", 1))
        // 4
    )
    return max(pairs, rows)


def draw_mask_spec(choose: Choose, op: Operation, hiding: bool) -> dict[str, Any] | None:
    """``mask``, ``visible`` or ``attn_mask``, whichever the operation takes."""
    if op.mask is None:
        return None
    needed = not op.allows_none(op.mask) or (hiding and "key_padding_mask" not in op.arguments)
    if not (needed or choose((True, True, False))):
        return None
    to_all = hiding and "key" in op.arguments
    axes = (op.key_mask_axes or "N M") if to_all else choose(op.traits.mask_axes)
    # a whole row at the dtype's lowest number overflows, and then no bound is finite
    forms = (
        ("bool",)
        if op.mask == "visible"
        else MASK_FORMS[:3]
        if hiding
        else tuple(f for f in MASK_FORMS if f != "lowest" or axes[-1] == "M")
    )
    patterns = (
        ("right_padding", "left_padding", "first_block", "last_block", "sparse")
        if hiding
        else tuple(PATTERNS)
    )
    return {
        "pattern": choose(patterns),
        "axes": axes,
        "form": choose(forms),
        "seed": choose(SEEDS),
    }


def draw_padding_spec(choose: Choose, hiding: bool) -> dict[str, Any] | None:
    if not (hiding or choose((False, True))):
        return None
    patterns = (
        ("right_padding", "left_padding", "sparse", "one_key")
        if hiding
        else ("right_padding", "left_padding", "random", "one_key", "nothing")
    )
    return {"pattern": choose(patterns), "seed": choose(SEEDS)}


def draw_dropout_spec(choose: Choose, op: Operation) -> dict[str, Any] | None:
    if not op.requires("keep") and choose((True, True, False)):
        return None
    return {"p": choose((0.25, 0.1, 0.75, 0.0, 0.9)), "seed": choose(SEEDS)}
