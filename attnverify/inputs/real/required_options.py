"""
Required kinds of options: each form that an option may take, in a small call in which no other
option is given that it does not need. Where options meet, they are dealt; a function that takes few
of them refuses what is dealt.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import draw_integers, limit_of
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Recipe

__all__ = ["BESIDE", "beside_causal", "option_cases", "options_of"]

SIZES = {"B": 3, "H": 4, "N": 5, "M": 7}
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
    plain = fixed_recipe(op, SIZES)
    for name, domain in op.domains.items():
        for form in _forms(domain, plain):
            own = BESIDE.get(name, {}) | {name: form}
            taken = {key: value for key, value in own.items() if key in op.domains}
            if plain.options | taken != plain.options:
                yield replace(plain, options=plain.options | taken)


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
