"""
Which recipes a search judges: recorded failures first, then those that everybody meets, then draws.

Where a library compiles a call for each shape, draws share a few shapes: what is compiled once
meets many numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from attnverify.backends.declarations import CAUSAL_ALONE, STRICT
from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import KERNELS
from attnverify.backends.source import parse_source
from attnverify.checks.registry import recipes_called_twice
from attnverify.failures.record import find_record, recorded_recipes
from attnverify.inputs.fixed_cases import fixed_cases, fixed_recipe, pair_count
from attnverify.inputs.real.calls import everyday_calls, far_calls
from attnverify.inputs.real.required_kinds import required_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import (
    count_draws,
    covering,
    draw_recipes,
    hypothesis_examples,
    with_shapes_of,
)
from attnverify.judge.case import case_of
from attnverify.verdicts.fitting import fitted_real, fitted_recipes, limits_draws
from attnverify.verdicts.tally import Options


class Shown(NamedTuple):
    """
    The recipes of a search.

    at_first  what every implementation of the operation meets; drawn: as many as the profile asks
    causal    those for a flag that stands for the causal mask
    further   in place of draws that say nothing, fitted to what the features say is not taken;
              hunted: what Hypothesis makes while none fails
    real      calls of the sizes that models make, for what does not fail at smaller ones
    required  those of the first that show the required kinds
    earlier   what was recorded before and is shown for no other reason
    """

    at_first: tuple[Recipe, ...]
    drawn: tuple[Recipe, ...]
    causal: tuple[Recipe, ...]
    further: Callable[[Mapping[str, Any]], tuple[Recipe, ...]]
    hunted: Callable[[], tuple[Recipe, ...]]
    real: tuple[Recipe, ...] = ()
    required: tuple[Recipe, ...] = ()
    earlier: tuple[Recipe, ...] = ()


def count_sequences(implementation: Implementation, options: Options) -> int | None:
    """
    How many of the checks of several calls are run, outputs of their own before calls in a row: few
    where each has shapes of its own to compile, and of a way whose functions are judged beside it;
    None for all.
    """
    if compiles_shapes(implementation):
        return 1 if options.profile == "quick" else 3
    return 3 if implementation.quick and options.profile != "thorough" else None


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
    implementation: Implementation,
    aspect: str,
    options: Options,
    kind: str,
    cases: int,
    dtype: str = "float32",
) -> Shown:
    """List what a search judges."""
    operation, seed = implementation.operation.name, options.seed
    drawn, further = draw_recipes(operation, kind, cases, seed), 4 * cases
    fixed = fixed_recipes(implementation, options) if kind == "any" else ()
    required = required_cases(operation) if kind == "any" else ()
    recorded = recorded_recipes(operation, aspect, options.failures)
    if is_second_opinion(implementation, options):
        few = {*covering((*fixed, *required, *drawn))}
        fixed, required, drawn = (
            tuple(recipe for recipe in recipes if recipe in few)
            for recipes in (fixed, required, drawn)
        )
        further = 0

    def share(recipes: tuple[Recipe, ...], features: Mapping[str, Any]) -> tuple[Recipe, ...]:
        if not compiles_shapes(implementation):
            return recipes
        models = shared_models(operation, drawn, kind, options)
        return with_shapes_of(recipes, fitted_recipes(models, features))

    return Shown(
        (
            *recorded,
            *recipes_of_known_failures(operation, aspect, options),
            *fixed,
            *required,
        ),
        share(drawn, {}),
        tuple(causal_recipes(implementation)) if kind == "any" else (),
        lambda features: share(
            _further(features, drawn, draw_recipes(operation, kind, further, seed)), features
        ),
        lambda: share(hypothesis_examples(operation, kind, max(2, options.cases // 10), seed), {}),
        real_recipes(implementation, dtype, options) if kind == "any" else (),
        required,
        tuple(recipe for recipe in recorded if recipe not in {*fixed, *required, *drawn}),
    )


def real_recipes(
    implementation: Implementation, dtype: str, options: Options
) -> tuple[Recipe, ...]:
    """
    List the real calls; of our own columns each everyday one in one dtype and of few heads, and
    none for what wraps or emulates another way, but in the thorough profile.
    """
    own, operation = implementation.backend.declared is STRICT, implementation.operation
    profile = "quick" if own and options.profile == "default" else options.profile
    few = profile != "thorough" and parse_source(implementation.backend.source).is_column
    emulated = implementation.is_emulated
    calls = everyday_calls(operation.name, profile, options.seed, emulated, few)
    features = implementation.backend.declared.limits
    calls = fitted_real(calls, features) if limits_draws(features) else calls
    if own and options.profile != "thorough" and dtype in DEALT:
        calls = () if implementation.quick else calls[DEALT.index(dtype) :: len(DEALT)]
    return tuple(dict.fromkeys((*calls, *far_calls(operation, options.profile))))


DEALT = ("float32", "bfloat16", "float16", "float64")
"""The dtypes over which the everyday calls of our own columns are dealt."""


def is_second_opinion(implementation: Implementation, options: Options) -> bool:
    """
    Tell whether a way is shown few recipes that cover what all show: kernels that this run judges
    compiled, of which this is an emulation, and ways of our columns that call what is judged beside
    them; never in the thorough profile.
    """
    own = implementation.backend
    beside = own.is_compiled_too if implementation.how in KERNELS else implementation.quick
    return beside and options.profile != "thorough"


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
    declared = implementation.backend.declared.features
    longest = sorted(shown.at_first, key=pair_count, reverse=True)[:1]
    telling = (
        recipe
        for recipe in (*longest, *shown.drawn, *shown.further(declared))
        if max(recipe.sizes.get(width, 0) for width in "DEQKA") <= NARROW
        and case_of(recipe, dtype).is_discriminating(precision)
        and case_of(recipe, dtype).is_judged(precision)
    )
    few = tuple(islice(telling, most if longest else hiding))
    return Shown((), few, (), lambda features: (), tuple)


def _further(
    features: Mapping[str, Any], drawn: tuple[Recipe, ...], all_drawn: tuple[Recipe, ...]
) -> tuple[Recipe, ...]:
    """List the draws behind the first; fitted to what the features say is taken, where they do."""
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
    if parse_source(implementation.backend.source).is_column and options.profile != "thorough":
        return [*covering(found)]
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
    """Yield causal recipes, which few draws are, for a flag that stands for it and for a file that
    says it is nothing else."""
    if not getattr(implementation.function, "causal", ""):
        return
    align = implementation.function.aligned  # type: ignore[attr-defined]
    for N, M in CAUSAL_SIZES:
        sizes = {"B": 2, "H": 2, "G": 2, "N": N, "M": M, "D": 8, "E": 8}
        plain = fixed_recipe(implementation.operation, sizes, seed=N)
        yield from fitted_recipes((plain,), {CAUSAL_ALONE: align})


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
