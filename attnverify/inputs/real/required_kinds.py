"""
Required kinds: what every run must have shown, in small cases that are the same in every run, and
what stands in for one that a function refuses.

Each documented shape of a mask is shown as truth and as numbers, with rows that see a key and rows
that see none, the other forms once; where rows are causal, more queries than keys; padding that
differs between the entries of a batch, one of them without keys; a draw alone and under a mask; a
mask over queries and keys that tiles divide; rows far below 0 of which whole tiles are hidden, at
either end; each form of each option alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.outside import Outside
from attnverify.inputs.fixed_cases import FAR, fixed_recipe
from attnverify.inputs.masks import draw_visible
from attnverify.inputs.real.required_options import (
    beside_causal,
    kinds_of_options,
    option_cases,
    options_of,
)
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import resized

EMPTY = "row without keys"
PADDING = "padding"
DRAW = "dropout"
WHOLE = "mask over whole tiles"
FAR_ROW = "row far below 0 behind hidden tiles"
OF_MASKS = WHOLE, FAR_ROW
"""What goes without saying where no mask was judged."""
REAL = "call of a real size"
TRUTH, NUMBERS = "boolean mask", "float mask"
"""What a verdict calls them where none of the kind was judged."""

HIDING = ("bool", "infinite", "noisy")
"""The forms by which a mask hides, in place of being added."""

SIZES = {"B": 2, "H": 3, "N": 5, "M": 7}
LONGER = {"N": 7, "M": 4}
TILED = {"B": 1, "H": 2, "N": 3, "M": 136}
"""Half of the keys are hidden: a tile of up to 64, at whichever end a kernel begins."""
BLOCKS = ("first_block", "last_block")
DIVIDED = (
    (64, 64, "random", "bool"),
    (48, 80, "right_padding", "noisy"),
    (64, 128, "sparse", "bool"),
    (64, 72, "random", "noisy"),
    (40, 64, "right_padding", "bool"),
    (264, 8, "empty_rows", "bool"),
)
"""
Queries, keys and their mask: where tiles divide both, kernels ask nothing of their edges; where
they divide one, they do; a row without keys may lie in a tile of queries behind the first.
"""
TILE = 16
TRIED = range(1, 40)
"""Seeds of a mask, of which the first is taken that tells rows, entries and heads apart."""


@lru_cache(maxsize=128)
def required_cases(operation: str) -> tuple[Recipe, ...]:
    """List the small cases that show each required kind, where the operation has it."""
    op = CATALOGUE[operation]
    if op.outside is not None:
        fixed = (Recipe(operation, **parts) for parts in op.outside.fixed())
        return tuple(recipe for recipe in fixed if [*kinds_of(recipe)])
    return tuple(
        dict.fromkeys((*_under_masks(op), *_of_parts(op), *_of_tiles(op), *option_cases(op)))
    )


def _under_masks(op: Operation) -> Iterator[Recipe]:
    if not op.mask:
        return
    shapes = op.traits.mask_axes
    for form in ("bool",) if op.mask == "visible" else ("bool", "noisy"):
        yield from (_masked(op, axes, form) for axes in shapes)
    if op.mask != "visible":
        others = enumerate(("infinite", "-1e4", "finite"))
        yield from (_masked(op, shapes[place % len(shapes)], form) for place, form in others)


def _masked(op: Operation, axes: str, form: str) -> Recipe:
    mask = {"pattern": "empty_rows", "axes": axes, "form": form, "seed": 1}
    recipe = replace(fixed_recipe(op, SIZES, "normal"), mask=mask, padding=None)
    return told_apart(recipe)


def _of_parts(op: Operation) -> Iterator[Recipe]:
    plain = fixed_recipe(op, SIZES, "normal")
    if op.traits.causal and not (op.traits.square or op.has_memory):
        yield fixed_recipe(op, LONGER, "normal")
    if "causal" in op.domains and not op.is_packed:
        longer = fixed_recipe(op, LONGER, "normal")
        yield replace(longer, options=longer.options | {"causal": True})
    if "key_padding_mask" in op.arguments and not op.exact:
        for pattern, sizes in (("empty_rows", {"B": 3}), ("random", {"B": 2})):
            recipe = fixed_recipe(op, SIZES | sizes, "normal")
            yield told_apart(replace(recipe, padding={"pattern": pattern, "seed": 1}))
    if "keep" in op.arguments and not op.exact:
        drawn = {"p": 0.25, "seed": 2}
        yield replace(plain, dropout=drawn)
        if op.mask:
            yield replace(_masked(op, op.traits.mask_axes[0], "bool"), dropout=drawn)


def _of_tiles(op: Operation) -> Iterator[Recipe]:
    """
    A mask where tiles divide the sizes; whole hidden tiles, before and behind the others: what
    underflows where they set a running maximum to 0 that is never lowered, and the same of usual
    numbers, which tells it from what hidden tiles break alone. Rows far below 0 without a mask:
    what stands behind the last key is 0, far above them.
    """
    for N, M, pattern, form in () if op.traits.parameters or not op.mask else DIVIDED:
        mask = {"pattern": pattern, "axes": op.traits.mask_axes[0], "seed": 1}
        mask |= {"form": "bool" if op.mask == "visible" else form}
        yield replace(fixed_recipe(op, {"B": 1, "H": 2, "N": N, "M": M}), mask=mask, padding=None)
    if op.mask in ("mask", "visible") and (op.is_attention or "score" in op.arguments):
        for pattern, family in product(BLOCKS, (FAR[0], "normal")):
            mask = {"pattern": pattern, "axes": "N M", "form": "bool", "seed": 1}
            yield replace(fixed_recipe(op, TILED, family), mask=mask)
    if op.is_attention or op.shares_keys:
        yield fixed_recipe(op, SIZES, FAR[0])


def told_apart(recipe: Recipe) -> Recipe:
    """Return the recipe with the first mask or padding that differs wherever it may."""
    for part, axes in (("mask", None), ("padding", "B M")):
        drawn: dict[str, Any] | None = getattr(recipe, part)
        if not drawn:
            continue
        for seed in TRIED:
            changed: dict[str, Any] = {part: drawn | {"seed": seed}}
            if _tells_apart(changed[part], axes or drawn["axes"], recipe):
                recipe = replace(recipe, **changed)
                break
    return recipe


def _tells_apart(mask: dict[str, Any], axes: str, recipe: Recipe) -> bool:
    """
    Tell whether some rows of a mask see no key and some do, and no two entries or heads are alike.
    """
    sizes = {letter: recipe.sizes.get(letter, 1) for letter in "BHNM"}
    visible = draw_visible(mask, axes, sizes)
    sees = visible.any(axis=-1)
    rows = sees.any() and (mask["pattern"] != "empty_rows" or sees.size == 1 or not sees.all())
    stacks = visible.reshape(-1, *visible.shape[-2:]) if visible.ndim > 2 else visible[:, None]
    several = visible.ndim > 2 or axes == "B M"
    apart = not several or len({x.tobytes() for x in stacks}) == len(stacks)
    return bool(rows) and apart


def kinds_of(recipe: Recipe) -> Iterator[str]:
    """Name the kinds that a required case is of."""
    op, sizes = CATALOGUE[recipe.operation], recipe.sizes
    if op.outside is not None:
        yield from _of_numbers(op.outside, recipe)
        return
    parts = [part for part in (recipe.mask, recipe.padding) if part]
    causal = op.traits.causal or options_of(recipe) == {"causal": True}
    longer = causal and sizes.get("N", 0) > sizes.get("M", 0)
    hiding = [part for part in parts if part.get("form", "bool") in HIDING]
    if longer or any(part["pattern"] == "empty_rows" for part in hiding):
        yield EMPTY
    if recipe.mask:
        yield TRUTH if recipe.mask["form"] == "bool" else NUMBERS
    if recipe.padding:
        yield PADDING
    if recipe.dropout and not op.requires("keep"):
        yield DRAW
    yield from kinds_of_options(recipe)
    divided = {"N", "M"} <= set(sizes) and not (sizes["N"] % TILE or sizes["M"] % TILE)
    if recipe.mask and divided:
        yield WHOLE
    if recipe.values["family"] in FAR and recipe.mask and sizes.get("M", 0) >= TILED["M"]:
        yield from (FAR_ROW for pattern in BLOCKS if recipe.mask["pattern"] == pattern)


def _of_numbers(outside: Outside, recipe: Recipe) -> Iterator[str]:
    """Name the numbers that are another than usual."""
    usual = next(iter(outside.fixed()))["options"]
    for name, value in recipe.options.items():
        if value != usual[name]:
            yield f"{name}={value}"


def stand_ins(recipe: Recipe, fitted: Recipe, judged: Iterable[Recipe]) -> Iterator[Recipe]:
    """
    Yield what may be asked in place of a required case that was refused, and shows the same kinds:
    its mask, padding, draw and options in the sizes that fit what was judged, with causal rows too
    where options are asked for, then in those of calls that were.
    """
    parts: dict[str, Any] = {"mask": recipe.mask, "padding": recipe.padding}
    needs_draw = CATALOGUE[recipe.operation].requires("keep")
    own = fitted, *beside_causal(fitted)
    for model in (*own, *judged):
        draw = fitted.dropout if model in own else recipe.dropout
        kept = model.dropout if needs_draw else draw
        parts["options"] = model.options | options_of(recipe)
        asked = replace(model, **parts, dropout=kept, values=recipe.values, poison=None)
        if {WHOLE, FAR_ROW} & {*kinds_of(recipe)}:
            alike = model.sizes["N"] == model.sizes["M"]
            N, M = recipe.sizes["N"], recipe.sizes["M"]
            asked = resized(asked, {"N": M if alike else N, "M": M})
        if {*kinds_of(recipe)} <= {*kinds_of(asked)}:
            yield told_apart(asked)


def is_roomy(model: Recipe) -> bool:
    """Tell whether a call has several entries or heads, and several rows and keys."""
    sizes = model.sizes
    stacked = sizes.get("B", 1) * sizes.get("H", 1)
    return stacked > 1 and min(sizes.get("N", 2), sizes.get("M", 2)) > 1 and not model.is_large


def with_judged_mask(recipe: Recipe, judged: Sequence[Recipe]) -> Recipe:
    """
    Return the recipe under a mask of the shape and form that was judged and is most like its own,
    without a mask or a padding of which none was.
    """
    if recipe.padding and not any(one.padding for one in judged):
        recipe = replace(recipe, padding=None)
    if not recipe.mask:
        return recipe
    own = recipe.mask
    known = [(one.mask["axes"], one.mask["form"]) for one in judged if one.mask]
    nearest = max(known, key=lambda x: (x[1] == own["form"], x[0] == own["axes"]), default=None)
    if nearest is None:
        return replace(recipe, mask=None)
    return replace(recipe, mask=own | {"axes": nearest[0], "form": nearest[1]})
