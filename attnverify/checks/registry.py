"""
Checks beyond single cases: long sequences, relations, systematic errors, invalid calls, calls in a
row.

Each is known by operation, aspect and name, and is made anew from profile and seed: that is how a
failure is written down.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.call_sequences import (
    judge_in_inference,
    judge_output_ownership,
    judge_sequence,
    judge_written_anew,
)
from attnverify.checks.given_factors import given_factor_checks
from attnverify.checks.invalid_calls import (
    UNLIMITED,
    Limits,
    calls_refused_by_spec,
    limits_of,
    valid_call,
    without_dropout,
)
from attnverify.checks.large_sizes import large_size_checks
from attnverify.checks.long_sequences import long_sequence_checks
from attnverify.checks.metamorphic import relation_checks
from attnverify.checks.projected_factors import projected_factor_checks
from attnverify.checks.systematic_error import systematic_error_checks
from attnverify.checks.training_path import SEVERAL_TILES, has_training_path, training_checks
from attnverify.checks.width.model_width import model_width_checks
from attnverify.inputs.fixed_cases import fixed_cases, fixed_mask, fixed_recipe, pair_count
from attnverify.inputs.real.calls import everyday_calls
from attnverify.inputs.real.dealt_calls import usual_family
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_first_tenth, draw_recipes
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import arrays_of_call, call

Check = Callable[[Implementation, str], float | None]
"""
Raises Disagreement or Unsupported; gives the worst share of a bound where numbers were held to one.
"""


@lru_cache(maxsize=64)
def checks(
    operation: str, aspect: str, profile: str, seed: int, inputs: str = ""
) -> dict[str, Check]:
    """
    List the checks of an operation in one column of the verdict, by name; where the inputs are
    those of a file, the checks on them.
    """
    if inputs:
        return (
            dict(given_factor_checks(operation, inputs))
            if aspect in ("values", "gradients")
            else {}
        )
    if aspect == "values":
        return dict(
            [
                *long_sequence_checks(operation, profile),
                *large_size_checks(operation, profile),
                *relation_checks(operation, profile, seed),
                *systematic_error_checks(operation, seed),
                *projected_factor_checks(operation, profile, seed),
                *model_width_checks(operation, profile, seed),
                *inference_checks(operation, seed),
            ]
        )
    if aspect == "gradients":
        return dict(
            [
                *large_size_checks(operation, profile),
                *projected_factor_checks(operation, profile, seed),
                *training_checks(operation, seed),
            ]
        )
    if aspect == "refusals":
        return {
            words: partial(judge_refusal_within_limits, words)
            for words in calls_refused_by_spec(operation)
        }
    return call_sequence_checks(operation, profile, seed) if aspect == "side effects" else {}


def concerns(name: str, implementation: Implementation) -> bool:
    """Whether a check has anything to ask of an implementation."""
    library = implementation.library
    if name == WRITTEN_ANEW:
        return library.is_writable
    if name == IN_INFERENCE:
        return library.in_inference is not None and not implementation.backend.by_name
    return not name.startswith("training: ") or has_training_path(implementation)


WRITTEN_ANEW, IN_INFERENCE = "inputs written anew", "calls in inference mode"


def find_check(operation: str, aspect: str, named: dict[str, Any]) -> Check | None:
    """Find the check that a record names: by its name, and by what the checks are made from."""
    made_from = {key: value for key, value in named.items() if key != "name"}
    return checks(operation, aspect, **made_from).get(named["name"])


def judge_refusal_within_limits(words: str, implementation: Implementation, dtype: str) -> None:
    """Require ValueError of an invalid call that is made from a valid one which is accepted."""
    limits = accepted_limits(implementation, dtype)
    refused = calls_refused_by_spec(implementation.operation.name, limits)
    if words not in refused:
        raise Unsupported(f"no call with {words}")
    judge_refusal(refused[words], implementation, dtype)


@lru_cache(maxsize=64)
def accepted_limits(implementation: Implementation, dtype: str) -> Limits:
    """Find what a valid call keeps to that the implementation accepts; nothing, if none is."""
    op = implementation.operation
    for limits in limits_of(op):
        inputs = without_dropout(op, valid_call(op.name, limits))
        try:
            call(implementation, arrays_of(inputs, implementation, dtype))
        except (Disagreement, Unsupported):
            continue
        return limits
    return UNLIMITED


def arrays_of(inputs: dict[str, Any], implementation: Implementation, dtype: str) -> dict[str, Any]:
    """Return the inputs as arrays of the backend."""
    wide = dtype if dtype != "bool" else "float64"
    return arrays_of_call(implementation, inputs, wide)


def judge_refusal(inputs: dict[str, Any], implementation: Implementation, dtype: str) -> None:
    """Require ValueError of an invalid call."""
    try:
        call(implementation, arrays_of(inputs, implementation, dtype))
    except Disagreement as error:
        if not isinstance(error.__cause__, ValueError):
            raise Disagreement(str(error), error.kind) from error
    else:
        raise Disagreement("accepted")


def recipes_called_twice(operation: str, profile: str, seed: int) -> list[Recipe]:
    """
    Choose the recipes whose side effects are looked for: of the probes that are not long those that
    differ in more than sizes and numbers, and the first draws.
    """
    short = (recipe for recipe in fixed_cases(operation) if pair_count(recipe) <= SHORT)
    unlike = dict[Any, Recipe]()
    for recipe in short:
        unlike.setdefault(parts_of_call(recipe), recipe)
    return [*unlike.values(), *draw_first_tenth(operation, profile, seed)]


def parts_of_call(recipe: Recipe) -> tuple[Any, ...]:
    """
    What a call has, in which layout, and of what it has one, where copies become views; not how
    much, nor which numbers.
    """
    mask, dropout = recipe.mask or {}, recipe.dropout or {}
    return (
        recipe.layout["kind"],
        "".join(letter for letter in "NM" if recipe.sizes.get(letter) == 1),
        mask.get("pattern"),
        mask.get("form"),
        dropout.get("axes", "") if recipe.dropout else None,
        bool(recipe.padding),
        bool(recipe.poison),
        str(recipe.options),
    )


SHORT = 2**10
"""
Most pairs of a probe that is called twice: what a long one does to its surroundings, a short one
does too.
"""


def call_sequence_checks(operation: str, profile: str, seed: int) -> dict[str, Check]:
    """Sequences of calls: each of some first draws with another of them."""
    recipes = draw_first_tenth(operation, profile, seed)
    number = max(2, len(recipes) // 4)
    pairs = zip(recipes[:number], recipes[number:], strict=False)
    rows = {
        f"calls in a row, {number}": partial(judge_sequence, first, other)
        for number, (first, other) in enumerate(pairs)
    }
    return {
        "outputs of their own": partial(judge_output_ownership, fixed_cases(operation)[0]),
        WRITTEN_ANEW: partial(judge_written_anew, partial(recipes_of_one_place, operation)),
        **rows,
    }


SMALL_STEP = {"B": 1, "H": 2, "N": 3, "M": 130, "D": 16, "E": 8, "P": 131, "F": 32, "S": 5}
STEP = SMALL_STEP | {"M": 1030, "D": 64, "E": 64, "P": 1031, "F": 256}
"""Few queries of a cache, as decoding has them; where every call is emulated."""


def recipes_of_one_place(operation: str, emulated: bool = False) -> tuple[Recipe, Recipe]:
    """Two calls of several tiles and the same shapes: a step of decoding, where it has keys."""
    op, sizes = CATALOGUE[operation], SMALL_STEP if emulated else STEP
    mask = fixed_mask(op, "random") if op.mask else None
    first = fixed_recipe(op, sizes, usual_family(op), mask)
    values = first.values | {"seed": first.values["seed"] + 1}
    return first, replace(first, values=values, mask=mask and mask | {"seed": mask["seed"] + 1})


def inference_checks(operation: str, seed: int) -> list[tuple[str, Check]]:
    """A check of some first draws, of what is called for values."""
    if CATALOGUE[operation].is_gradient:
        return []

    def recipes(emulated: bool) -> tuple[Recipe, ...]:
        steps, drawn = (
            recipes_of_one_place(operation, emulated),
            draw_recipes(operation, "any", 6, seed),
        )
        bare = fixed_recipe(CATALOGUE[operation], SEVERAL_TILES, usual_family(CATALOGUE[operation]))
        few = () if emulated else (bare,)
        return *steps, *few, *everyday_calls(operation, "quick", seed, emulated)[1:2], *drawn

    return [(IN_INFERENCE, partial(judge_in_inference, recipes))]
