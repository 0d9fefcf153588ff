"""
Required kinds of options: each form that an option may take, in a small call in which no other
option is given that it does not need; of sequences what hides keys in decoding too, caps with
scores far beyond them, and what hides keys beside scores below any number that may stand for
"hidden". Where options meet, they are dealt; a function that takes few of them refuses what is
dealt.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import draw_integers, limit_of
from attnverify.inputs.fixed_cases import FAR, fixed_recipe
from attnverify.inputs.recipe import Recipe

__all__ = ["BESIDE", "beside_causal", "option_cases", "options_of"]

SIZES = {"B": 3, "H": 4, "N": 5, "M": 7}
SQUARE = SIZES | {"N": 7}
"""The first causal row sees one key, whose weight is 1 however far its score may be off."""
BESIDE: dict[str, dict[str, Any]] = {
    "blocks": {"causal": True},
    "pinned": {"window": (1, 2)},
}
"""What an option needs to say anything."""

TRIED = range(1, 200)
"""Seeds of integers, of which the first is taken that shows both ends and what lies between."""


def option_cases(op: Operation) -> Iterator[Recipe]:
    """Yield a case for each form of each option; of a stack, whose cases are dear, none."""
    if op.is_stack:
        return
    yield from _each_form(op, fixed_recipe(op, SIZES), tuple(op.domains))
    if op.is_packed:
        yield from _each_form(op, decoding(op), IN_DECODING)
    for family in FAR if op.shares_keys else ():
        hidden = _each_form(op, fixed_recipe(op, SQUARE, family), HIDING)
        yield from (recipe for recipe in hidden if _hides_on_both_sides(recipe))
    if "soft_cap" in op.domains and LARGE in op.families:
        yield from _each_form(op, fixed_recipe(op, SIZES, LARGE), ("soft_cap",))


def _each_form(op: Operation, plain: Recipe, names: tuple[str, ...]) -> Iterator[Recipe]:
    for name in [name for name in names if name in op.domains]:
        for form in _forms(op.domains[name], plain):
            own = BESIDE.get(name, {}) | {name: form}
            taken = {key: value for key, value in own.items() if key in op.domains}
            if plain.options | taken != plain.options:
                yield replace(plain, options=plain.options | taken)


def _hides_on_both_sides(recipe: Recipe) -> bool:
    """Tell the one form of a window and of chunks that others are not needed beside."""
    return all(recipe.options.get(name, form) == form for name, form in BOTH_SIDES.items())


def decoding(op: Operation) -> Recipe:
    """
    Return a call of one row for each sequence, of which the longest alone fills its pages of 4.
    """
    plain = fixed_recipe(op, DECODED)
    drawn = {
        name: {"seed": next(seed for seed in TRIED if fits(draw(plain, name, seed)))}
        for name, fits in ROWS.items()
        if name in op.domains and op.domains[name].required
    }
    return replace(plain, options=plain.options | drawn)


def draw(recipe: Recipe, name: str, seed: int) -> ndarray:
    return np.asarray(draw_integers(CATALOGUE[recipe.operation].domains[name], recipe, seed))


def _is_ragged(lengths: ndarray) -> bool:
    even = lengths % 4 == 0
    return bool(even.sum() == 1 and even[lengths.argmax()] and lengths.min() > 4)


DECODED = {"B": 3, "H": 4, "N": 1, "M": 19}
HIDING = ("causal", "window", "chunk", "lengths", "segments", "blocks")
"""Options that hide keys, each without the others."""
BOTH_SIDES: dict[str, Any] = {"window": (1, 2), "chunk": 3}
IN_DECODING = ("window", "chunk")
LARGE = "large"
"""Numbers of which a tanh that is made of exponentials overflows: infinity by infinity."""
ROWS: dict[str, Callable[[ndarray], bool]] = {
    "query_starts": lambda starts: bool((np.diff(starts) == 1).all()),
    "key_starts": lambda starts: _is_ragged(np.diff(starts)),
    "lengths": _is_ragged,
}
"""What the integers of such a call must show."""


def _forms(domain: Domain, recipe: Recipe) -> Iterator[Any]:
    if domain.integers is None:
        yield from domain.choices[1:]
        return
    seeds = (seed for seed in TRIED if _shows_ends(domain, recipe, seed))
    if (seed := next(seeds, None)) is not None:
        yield {"seed": seed}


def _shows_ends(domain: Domain, recipe: Recipe, seed: int) -> bool:
    """
    Tell whether integers are at both ends and between; of rising ones, whether they leave room
    before and behind them and stand still once.
    """
    assert domain.integers is not None
    low, high = (limit_of(x, recipe.sizes) for x in (domain.integers.least, domain.integers.most))
    drawn = draw_integers(domain, recipe, seed)
    arrays: list[ndarray] = [*drawn] if isinstance(drawn, tuple) else [drawn]
    if domain.integers.rising:
        return all(low < x[0] < x[-1] < high and 0 in np.diff(x) for x in arrays)
    inner = ((low < x) & (x < high) for x in arrays)
    return all(
        some.any() and {low, high} <= {*x.flat} for some, x in zip(inner, arrays, strict=True)
    )


def options_of(recipe: Recipe) -> dict[str, Any]:
    """Return the options that a call is given and need not be."""
    domains = CATALOGUE[recipe.operation].domains
    return {
        name: value
        for name, value in recipe.options.items()
        if name in domains and not domains[name].required and value not in domains[name].choices[:1]
    }


def kinds_of_options(recipe: Recipe) -> Iterator[str]:
    """Name the forms that the options of a call have."""
    for name, value in options_of(recipe).items():
        yield name if isinstance(value, dict) or value == "given" else f"{name}={value}"


def beside_causal(recipe: Recipe) -> Iterator[Recipe]:
    """Yield the call with causal rows too, where it has other options and these are one."""
    given = options_of(recipe)
    if given and "causal" in CATALOGUE[recipe.operation].domains and "causal" not in given:
        yield replace(recipe, options=recipe.options | {"causal": True})
