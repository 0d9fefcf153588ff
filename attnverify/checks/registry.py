"""
Checks beyond single cases: long sequences, relations, systematic errors, wrong calls, calls in a
row.

Each is known by operation, aspect and name, and is made anew from profile and seed: that is how a
failure is written down.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from attnverify.backends.loader import Implementation
from attnverify.checks.call_sequences import judge_outputs_of_their_own, judge_sequence
from attnverify.checks.invalid_calls import refused_by_law
from attnverify.checks.long_sequences import long_cases
from attnverify.checks.metamorphic import judge_relations
from attnverify.checks.systematic_error import systematic_cases
from attnverify.inputs.expand import Recipe
from attnverify.inputs.fixed_cases import pairs, probes
from attnverify.inputs.sampling import draw_few
from attnverify.judge.case import Disagreement, call, converted

Check = Callable[[Implementation, str], None]
"""Raises Disagreement or Unsupported."""


@lru_cache(maxsize=64)
def checks(operation: str, aspect: str, profile: str, seed: int) -> dict[str, Check]:
    """The checks of an operation in one column of the verdict, by name."""
    if aspect == "values":
        return dict(
            [
                *long_cases(operation, profile),
                *judge_relations(operation, profile, seed),
                *systematic_cases(operation, seed),
            ]
        )
    if aspect == "refusals":
        return {
            words: partial(judge_refusal, inputs)
            for words, inputs in refused_by_law(operation).items()
        }
    return in_a_row(operation, profile, seed) if aspect == "side effects" else {}


def judge_refusal(inputs: dict[str, Any], implementation: Implementation, dtype: str) -> None:
    """A wrong call must be refused with ValueError."""
    wide = dtype if dtype != "bool" else "float64"
    try:
        call(
            implementation,
            {name: converted(implementation, value, wide) for name, value in inputs.items()},
        )
    except Disagreement as error:
        if not isinstance(error.__cause__, ValueError):
            raise
    else:
        raise Disagreement("accepted")


def called_twice(operation: str, profile: str, seed: int) -> list[Recipe]:
    """
    The recipes whose side effects are looked for: probes that are not long, and the first draws.
    """
    return [recipe for recipe in probes(operation) if pairs(recipe) <= SHORT] + list(
        draw_few(operation, profile, seed)
    )


SHORT = 2**10
"""
Most pairs of a probe that is called twice: what a long one does to its surroundings, a short one
does too.
"""


def in_a_row(operation: str, profile: str, seed: int) -> dict[str, Check]:
    """Sequences of calls: each of the first draws with another of them."""
    recipes = draw_few(operation, profile, seed)
    half = len(recipes) // 2
    pairs = zip(recipes[:half], recipes[half:], strict=False)
    rows = {
        f"calls in a row, {number}": partial(judge_sequence, first, other)
        for number, (first, other) in enumerate(pairs)
    }
    return {
        "outputs of their own": partial(judge_outputs_of_their_own, probes(operation)[0]),
        **rows,
    }
