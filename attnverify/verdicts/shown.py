"""
Which recipes a search judges: recorded failures first, then those that everybody meets, then draws.

Where a library compiles a call for each shape, draws share a few shapes: what is compiled once
meets many numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from attnverify.backends.loader import Implementation
from attnverify.checks.registry import recipes_called_twice
from attnverify.failures.record import find_record, recorded_recipes
from attnverify.inputs.fixed_cases import fixed_cases, pair_count
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import (
    count_draws,
    draw_recipes,
    hypothesis_examples,
    with_shapes_of,
)
from attnverify.judge.case import case_of
from attnverify.verdicts.fitting import fitted_recipes, limits_draws
from attnverify.verdicts.tally import Options


class Shown(NamedTuple):
    """
    The recipes of a search.

    at_first  what every implementation of the operation meets; drawn: as many as the profile asks
    causal    those for a flag that stands for the causal mask
    further   in place of draws that say nothing; hunted: what Hypothesis makes while none fails
    """

    at_first: tuple[Recipe, ...]
    drawn: tuple[Recipe, ...]
    causal: tuple[Recipe, ...]
    further: tuple[Recipe, ...]
    hunted: Callable[[], tuple[Recipe, ...]]


def count_sequences(implementation: Implementation, options: Options) -> int | None:
    """
    How many of the checks of several calls are run, outputs of their own before calls in a row: few
    where each has shapes of its own to compile, and of a way whose functions are judged beside it;
    None for all.
    """
    if compiles_shapes(implementation):
        return 1 if options.profile == "quick" else 3
    return 2 if implementation.quick and options.profile != "thorough" else None


def compiles_shapes(implementation: Implementation) -> bool:
    """Whether every new shape costs a compilation."""
    return implementation.backend.library is not None and (
        implementation.backend.library.compiles_shapes
    )


def count_shapes(cases: int) -> int:
    """How many shapes so many draws share, for a library that compiles each."""
    return min(max(cases // 5, 2), 40)


def fixed_recipes(implementation: Implementation, options: Options) -> tuple[Recipe, ...]:
    """The probes; in the quick profile in few geometries where each costs a compilation."""
    few = options.profile == "quick" and compiles_shapes(implementation)
    return fixed_cases(implementation.operation.name, few)


def shown_recipes(
    implementation: Implementation, aspect: str, options: Options, kind: str, cases: int
) -> Shown:
    """List what a search judges."""
    operation, seed = implementation.operation.name, options.seed
    drawn = draw_recipes(operation, kind, cases, seed)

    def share(recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
        if not compiles_shapes(implementation):
            return recipes
        return with_shapes_of(recipes, shared_models(operation, drawn, kind, options))

    return Shown(
        (
            *recorded_recipes(operation, aspect, options.failures),
            *recipes_of_known_failures(operation, aspect, options),
            *(fixed_recipes(implementation, options) if kind == "any" else ()),
        ),
        share(drawn),
        tuple(causal_recipes(implementation)) if kind == "any" else (),
        share(_further(implementation, drawn, draw_recipes(operation, kind, 4 * cases, seed))),
        lambda: share(hypothesis_examples(operation, kind, max(2, options.cases // 10), seed)),
    )


FEW = {"quick": (1, 1), "default": (2, 1)}
"""
Cases in place of all, where each takes a machine a while and has variants compiled: so many, and so
many of those that hide something.
"""


NARROW = 64
"""Of few cases, the widest heads: each class of widths has variants of its own."""


def is_sampled(implementation: Implementation, options: Options) -> bool:
    """Tell whether this profile judges few cases of an implementation."""
    return implementation.backend.sampled and options.profile in FEW


def take_few(shown: Shown, implementation: Implementation, dtype: str, options: Options) -> Shown:
    """
    Choose the first recipes that no trivial answer passes and that are judged: the longest probe,
    then draws, and those in place of draws that say nothing.
    """
    precision, (most, hiding) = implementation.precision(dtype), FEW[options.profile]
    longest = sorted(shown.at_first, key=pair_count, reverse=True)[:1]
    telling = (
        recipe
        for recipe in (*longest, *shown.drawn, *shown.further)
        if max(recipe.sizes.get(width, 0) for width in "DEQKA") <= NARROW
        and case_of(recipe, dtype).is_discriminating(precision)
        and case_of(recipe, dtype).is_judged(precision)
    )
    return Shown((), tuple(islice(telling, most if longest else hiding)), (), (), tuple)


def _further(
    implementation: Implementation, drawn: tuple[Recipe, ...], all_drawn: tuple[Recipe, ...]
) -> tuple[Recipe, ...]:
    """List the draws behind the first; fitted to what the file says it takes, where it does."""
    features = implementation.backend.declared.features
    if not limits_draws(features):
        return all_drawn[len(drawn) :]
    fitted = dict.fromkeys(fitted_recipes(all_drawn, features))
    return tuple(recipe for recipe in fitted if recipe not in drawn)


def shared_models(
    operation: str, drawn: tuple[Recipe, ...], kind: str, options: Options
) -> tuple[Recipe, ...]:
    """
    Choose the recipes whose shapes the draws share. What hides something takes those that the
    values and gradients were compiled for, as far as they hide anything.
    """
    count = count_shapes(len(drawn))
    if kind != "nan":
        return drawn[:count]
    cases = count_draws(operation, options.cases)
    compiled = draw_recipes(operation, "any", cases, options.seed)[: count_shapes(cases)]
    hiding = [r for r in compiled if r.padding or (r.mask and "M" in r.mask["axes"])]
    return (*hiding, *drawn)[:count]


def recipes_to_call_twice(implementation: Implementation, options: Options) -> list[Recipe]:
    """Choose the recipes whose side effects are looked for."""
    operation = implementation.operation.name
    found = recipes_called_twice(operation, **options.draws)
    if not compiles_shapes(implementation):
        return found
    seen = {*fixed_recipes(implementation, options)}
    seen |= {
        *draw_recipes(operation, "any", options.cases, options.seed)[: count_shapes(options.cases)]
    }
    return [recipe for recipe in found if recipe in seen]


CAUSAL_SIZES = ((4, 4), (1, 6), (3, 8), (17, 40), (33, 65))
"""Queries and keys for a function with a flag for the causal mask: as many, and fewer, in tiles."""


def causal_recipes(implementation: Implementation) -> Iterator[Recipe]:
    """Yield recipes with the causal mask, which few draws have, for a flag that stands for it."""
    if not getattr(implementation.function, "causal", ""):
        return
    mask = {"pattern": "causal", "axes": "N M", "form": "bool", "seed": 0}
    for N, M in CAUSAL_SIZES:
        sizes = {"B": 2, "H": 2, "N": N, "M": M, "D": 8, "E": 8}
        values = {"family": "normal", "seed": N}
        yield Recipe(implementation.operation.name, sizes, values, mask)


def recipes_of_known_failures(operation: str, aspect: str, options: Options) -> Iterator[Recipe]:
    """
    Yield the recipes of the records that known failures name: they fail in every run, whatever is
    drawn.
    """
    for line in options.regions:
        if line.replay:
            with suppress(ValueError):
                failure = find_record(line.replay, options.failures)
                if (failure.operation, failure.aspect) == (operation, aspect) and not failure.check:
                    yield Recipe(**failure.recipe)
