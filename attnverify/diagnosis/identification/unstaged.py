"""
Other operations: the specification or one alternative.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.conventions.convention import Convention, conventions
from attnverify.conventions.stage_rows import SPEC_ANSWERS
from attnverify.diagnosis.identification.card import (
    Answer,
    ConventionCard,
    collect_observations,
    law_of,
)
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Recipe
from attnverify.judge.observation import Observation


def identify_unstaged(implementation: Implementation, dtype: str, card: ConventionCard) -> None:
    """
    Identify the specification, or the one alternative that explains all recipes; rows that see no
    key are a question of their own.
    """
    operation, asked = implementation.operation, conventions(implementation.operation.name)
    every = collect_observations(
        implementation, fixed_cases(operation.name) + tuple(extra_recipes(operation)), dtype, card
    )
    seen = [o for o in every if not empty_rows(operation, o)]
    if not seen:
        return
    found = (
        []
        if all(not o.wrong for o in seen)
        else [c for c in asked if explained_by(operation, c, seen)]
    )
    for question in dict.fromkeys(c.question for c in asked):
        law = law_of(operation, question)
        names = [c.answer for c in found if c.question == question]
        every_name = [law, *(c.answer for c in asked if c.question == question)]
        said = (
            law if found or not any(o.wrong for o in seen) else f"none of: {'; '.join(every_name)}"
        )
        card.answers[question] = Answer("; ".join(names) if names else said, law)
    if others := [o for o in every if o not in seen]:
        card.answers["rows without keys"] = Answer(
            of_empty_rows(others), SPEC_ANSWERS["rows without keys"]
        )


def explained_by(operation: Operation, convention: Convention, seen: Sequence[Observation]) -> bool:
    return all(o.distance(convention(operation, o.inputs, o.dtype)) <= 1 for o in seen)


def empty_rows(operation: Operation, o: Observation) -> bool:
    """Whether some row of a layer's attention sees no key."""
    visible = visible_pairs(operation, o.inputs) if operation.chapter == "layers" else None
    return visible is not None and not visible.any(axis=-1).all()


def of_empty_rows(seen: Sequence[Observation]) -> str:
    if not any(o.wrong for o in seen):
        return SPEC_ANSWERS["rows without keys"]
    return (
        "NaN"
        if all(np.isnan(o.actual[0]).any() for o in seen)
        else f"none of: {SPEC_ANSWERS['rows without keys']}; NaN"
    )


def extra_recipes(operation: Operation) -> Iterator[Recipe]:
    """Recipes that the probes lack: the longest memory of none, padding without a mask."""
    for recipe in fixed_cases(operation.name)[:3]:
        if "mem_len" in operation.arguments:
            yield from (
                replace(recipe, options=recipe.options | {"mem_len": length})
                for length in (0, 1, 2, 20)
            )
        if "key_padding_mask" in operation.arguments:
            yield replace(recipe, padding={"pattern": "right_padding", "seed": 6})
