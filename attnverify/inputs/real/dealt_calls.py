"""
Dealt calls: every width of a head and of a model, each documented shape of a mask, each layout in
memory, and more pairs of batch and head than a wave of blocks.

They are much smaller than everyday calls, and of several tiles. What a kernel may have a path of
its own for, a width alone and under a mask, is in every run; which of the others it meets, and the
lengths, are drawn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from random import Random
from typing import Any, TypeVar

from attnverify.catalogue.operation import Operation
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.masks import draw_visible
from attnverify.inputs.memory_layouts import LAYOUTS
from attnverify.inputs.real.option_calls import option_calls
from attnverify.inputs.recipe import Recipe

Sizes = dict[str, int]
T = TypeVar("T")

WIDTHS = (64, 80, 96, 128)
MODELS = ((4, 64), (8, 48), (12, 64), (8, 128))
"""Widths of heads; heads of a layer and their width: models of 256 to 1024."""

LENGTHS = (130, 160, 191, 192, 200, 255, 256, 257, 320)
SHORT = (129, 130, 160)
GRIDS = ((2, 2), (2, 3), (3, 2))
SHARING = ((2, 4), (1, 6), (1, 4))
"""
Lengths of several tiles, whole and not; of a layer; pairs of batch and head, and of heads that
share two heads of keys.
"""

FORMS = ("bool", "infinite", "noisy", "finite")
HIDING = ("random", "right_padding", "left_padding", "causal", "last_block", "empty_rows")

TRIED = range(40)
"""Masks, of which the first is taken that leaves something to see: else nothing is wrong there."""

SHORT_SEQUENCES = {"N": 18, "M": 20}
COUNTS = (2, 5, 16)
PAGES = (16, 64, 128)
"""Parts that are merged; slots of a page."""

GRID = {"B": 13, "H": 12, "G": 4, "N": 66, "M": 70, "S": 4, "P": 71, "D": 32, "E": 32}
GRID |= {"Q": 8, "K": 8, "A": 8, "F": 256, "L": 1}
"""
156 pairs of batch and head, of two tiles each: more blocks than processors, and heads of which the
number is no power of two.
"""
LAYERS = {"B": 19, "H": 8}

BLOCK, CHOSEN = 64, 4
"""Keys of a block, and how many blocks a row chooses."""

QUIET = "quiet"
"""The family of a layer: its scores are so small that its bound says something at such widths."""


def dealt_calls(op: Operation, rng: Random) -> Iterator[Recipe]:
    """Yield the dealt calls of an operation that has an everyday call."""
    axes, forms = dealt(op.traits.mask_axes or ("N M",), rng), dealt(FORMS, rng)
    kinds = dealt([*LAYOUTS], rng)
    for masked, usual, sizes in dealt_sizes(op, rng):
        parts = drawn_parts(op, rng, next(axes), next(forms)) if masked else drawn_parts(op, rng)
        layout = "contiguous" if usual else next(kinds)
        yield seeing(with_parts(op, sizes, usual_family(op), parts, rng.randrange(99), layout))
    if "B" in op.sizes:
        grid = GRID | (LAYERS if op.has_heads else {} if "H" in op.sizes else {"B": 152})
        if op.is_packed:  # bounded over all pairs of all sequences
            grid = GRID | SHORT_SEQUENCES
        yield with_parts(op, grid, usual_family(op), {}, rng.randrange(99))


def seeing(recipe: Recipe) -> Recipe:
    """Return the call with the next mask by which its last row sees a key in some entry."""
    mask = recipe.mask
    if not mask:
        return recipe
    sizes = {letter: recipe.sizes.get(letter, 1) for letter in "BHNM"}
    tried = (mask | {"seed": mask["seed"] + more} for more in TRIED)
    found = (new for new in tried if draw_visible(new, new["axes"], sizes)[..., -1, :].any())
    return replace(recipe, mask=next(found, mask))


def calls_under_options(op: Operation, rng: Random) -> Iterator[Recipe]:
    """Yield a call for each hand of options, of two entries and tiles of queries and keys."""
    for sizes, options in option_calls(op, rng):
        yield with_parts(op, sizes, usual_family(op), {"options": options}, rng.randrange(99))


def dealt(cards: Sequence[T], rng: Random) -> Iterator[T]:
    """Yield each card once in a drawn order, and again."""
    return cycle(rng.sample(cards, len(cards)))


def dealt_sizes(op: Operation, rng: Random) -> Iterator[tuple[bool, bool, Sizes]]:
    """
    Whether a call is masked, whether it lies in memory as usual, and its sizes: each width bare,
    masked, and beside another one.
    """
    lengths = dealt(SHORT if op.has_heads else LENGTHS, rng)
    if op.has_heads:
        for number, (H, D) in enumerate(rng.sample(MODELS, len(MODELS))):
            sizes = {"B": 1, "H": H, "D": D, "F": H * D, "L": 1, "S": next(lengths)}
            lengthy = sizes | lengths_of(op, next(lengths), next(lengths))
            yield number % 2 == 0, number % 2 == 0, lengthy
        return
    for number, width in enumerate(WIDTHS):
        other = WIDTHS[(number + rng.randrange(1, len(WIDTHS))) % len(WIDTHS)]
        for masked, beside in ((False, width), (True, width), (number % 2 == 0, other)):
            grids = SHARING if op.shares_keys else GRIDS
            B, H = rng.choice(grids) if "H" in op.sizes else (1 + masked, 1)
            sizes = {"B": B, "H": H, "D": width, "E": beside, "Q": width, "K": beside, "A": 33}
            sizes |= {"F": 256 + 128 * masked, "C": rng.choice(COUNTS), "W": rng.choice(PAGES)}
            sizes |= {"G": H} if beside != width else {}
            yield masked, beside == width, sizes | lengths_of(op, next(lengths), next(lengths))


def lengths_of(op: Operation, N: int, M: int) -> Sizes:
    """The lengths that an operation takes: as many, no more queries than keys, or any."""
    M = N if op.traits.square else max(N, M) if op.traits.causal else M
    return {"N": N, "M": M, "P": max(N, M)}


def drawn_parts(op: Operation, rng: Random, axes: str = "", form: str = "") -> dict[str, Any]:
    """A mask of this shape and form, or none; padding and a draw as they fall."""
    parts: dict[str, Any] = {}
    if op.mask and axes:
        form = "bool" if op.mask == "visible" else form
        parts["mask"] = {"pattern": rng.choice(HIDING), "form": form, "axes": axes}
        parts["mask"]["seed"] = rng.randrange(99)
    if "key_padding_mask" in op.arguments and rng.random() < 0.5:
        parts["padding"] = {"pattern": rng.choice(HIDING[1:3]), "seed": rng.randrange(99)}
    if "keep" in op.arguments and rng.random() < 0.5:
        parts["dropout"] = {"p": rng.choice((0.1, 0.25)), "seed": rng.randrange(99)}
    return parts


def usual_family(op: Operation) -> str:
    return QUIET if op.traits.parameters else "normal"


def with_parts(
    op: Operation,
    sizes: Sizes,
    family: str,
    parts: dict[str, Any],
    seed: int,
    layout: str = "contiguous",
) -> Recipe:
    """The call of these sizes with these parts, and in stacks where its leading axes are free."""
    recipe = fixed_recipe(op, {"J": CHOSEN} | sizes, family, seed=seed)
    options = recipe.options | ({"block": BLOCK} if op.is_selected else {})
    if "..." in " ".join(op.axes.values()):
        options["lead"] = (2, 8) if "D" in op.sizes else (2,)
    if "align" in options:
        options["align"] = ("end", "start")[seed % 2]
    needed = {"mask": recipe.mask, "dropout": recipe.dropout}
    given = {name: part for name, part in parts.items() if part and name != "options"}
    options |= parts.get("options", {})
    kind = {"kind": layout, "seed": 0}
    return replace(recipe, options=options, layout=recipe.layout | kind, **needed | given)
