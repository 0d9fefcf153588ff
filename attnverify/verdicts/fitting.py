"""
Draws fitted to what a file says that it takes: in place of a recipe that its FEATURES exclude, the
nearest one that they do not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

from attnverify.backends.calls.terms import has_causal_option, may_be_causal
from attnverify.backends.declarations import CAUSAL_ALONE
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.fixed_cases import pair_count
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import resized

__all__ = [
    *("CAUSAL", "fitted_real", "fitted_recipes", "limits_draws", "made_causal"),
    "untaken_features",
]

CAUSAL = {"pattern": "causal", "axes": "N M", "form": "bool", "seed": 0}
"""The mask of a kernel that knows no other."""


LIMITS = ("E != D", "N != M", "dropout", "float mask", "mask")
"""The features by which refused calls are told from judged ones, what calls have first of all."""


def untaken_features(
    judged: Iterable[frozenset[str]], refused: Iterable[frozenset[str]]
) -> dict[str, bool]:
    """
    Find the features that explain why calls were refused, as FEATURES would say it: in the order of
    LIMITS, those that no judged call has and that a refused call has which none before explains.
    """
    taken, left = frozenset[str]().union(*judged), set(refused)
    found = dict[str, bool]()
    for name in LIMITS:
        if name not in taken and any(name in features for features in left):
            found[name] = False
            left = {features for features in left if name not in features}
    return found


UNDRAWN = ("gradient", "weights", "lse")
"""The features of results, which no draw has or has not."""


def limits_draws(features: Mapping[str, Any]) -> bool:
    """Tell whether a file's FEATURES say of what is drawn that it does not take it."""
    limits = [limit for name, limit in features.items() if name not in UNDRAWN]
    return (
        "width" in features
        or bool(features.get(CAUSAL_ALONE))
        or any(limit in (False, CAUSAL_ALONE) for limit in limits)
    )


def fitted_recipes(recipes: Sequence[Recipe], features: Mapping[str, Any]) -> tuple[Recipe, ...]:
    """Fit each recipe; widths take turns."""
    widths = cycle(features.get("width") or (None,))
    return tuple(_fitted(recipe, features, next(widths)) for recipe in recipes)


def fitted_real(recipes: Sequence[Recipe], features: Mapping[str, Any]) -> tuple[Recipe, ...]:
    """Fit real calls; what would have many more pairs, as few queries of a cache, is left out."""
    pairs = zip(recipes, fitted_recipes(recipes, features), strict=True)
    return tuple(new for old, new in pairs if pair_count(new) <= max(pair_count(old), PAIRS))


PAIRS = 2**18
"""Queries times keys of an everyday call."""


def _fitted(recipe: Recipe, features: Mapping[str, Any], width: int | None) -> Recipe:
    left_out = _left_out(recipe, features)
    parts: dict[str, Any] = {"dropout": None} if "dropout" in left_out else {}
    if not left_out.isdisjoint(recipe.options):
        taken = {name: value for name, value in recipe.options.items() if name not in left_out}
        parts["options"] = taken
    said, op = features.get(CAUSAL_ALONE), CATALOGUE[recipe.operation]
    if said and may_be_causal(op):
        parts |= made_causal(recipe.options, op, said)
        left_out |= {"N != M"} if said == "start" and has_causal_option(op) else set()
    elif recipe.mask:
        parts["mask"] = _fitted_mask(recipe.mask, features.get("mask"), left_out)
    return resized(replace(recipe, **parts), _fitted_sizes(recipe.sizes, left_out, width))


def made_causal(options: dict[str, Any], op: Operation, said: Any = True) -> dict[str, Any]:
    """Make a call causal, as CAUSAL says: by the option, or by that mask in place of its own."""
    if has_causal_option(op):
        return {"options": options | {"causal": True}}
    return {"mask": CAUSAL | ({"align": "start"} if said == "start" else {})}


def _left_out(recipe: Recipe, features: Mapping[str, Any]) -> set[str]:
    """Name what a call is made without: nothing that its operation demands."""
    op = CATALOGUE[recipe.operation]
    names = {name for name, value in features.items() if value is False}
    return {name for name in names if not op.demands((op.mask or "") if name == "mask" else name)}


def _fitted_mask(mask: dict[str, Any], kinds: Any, left_out: set[str]) -> dict[str, Any] | None:
    if "mask" in left_out:
        return None
    if kinds == CAUSAL_ALONE:
        return CAUSAL
    return mask | {"form": "bool"} if "float mask" in left_out else mask


def _fitted_sizes(
    sizes: Mapping[str, int], left_out: set[str], width: int | None
) -> dict[str, int]:
    """Return the sizes that change; a width counts for operations on heads alone."""
    found = dict[str, int]()
    if width and "D" in sizes and "F" not in sizes:
        found["D"] = width
        found |= {"E": width} if "E" in sizes else {}
    if "E != D" in left_out and "E" in sizes:
        found["E"] = found.get("D", sizes.get("D", sizes["E"]))
    if "N != M" in left_out and "M" in sizes and "N" in sizes:
        found["N"] = sizes["M"]
    return found
