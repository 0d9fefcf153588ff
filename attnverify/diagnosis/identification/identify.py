"""
Identify: which conventions a black box follows, read off its answers to a few recipes.

Questions are asked in rounds. The recipes of a round show its questions and nothing that is not
known from the rounds before: first square calls without masks, then other lengths, then masks, then
rows that see no key. An answer is what explains all recipes of its round, within the yardstick of a
diagnosis; "none of ..." is an answer too, and so is "not told apart".

Of operations without stages it finds the specification or one alternative.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import Operation
from attnverify.conventions.convention import conventions
from attnverify.conventions.stage_rows import SPEC_ANSWERS
from attnverify.diagnosis.identification.card import (
    Answer,
    ConventionCard,
    collect_observations,
    law_of,
)
from attnverify.diagnosis.identification.staged import identify_staged
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
        else [
            c for c in asked if all(o.distance(c(operation, o.inputs, o.dtype)) <= 1 for o in seen)
        ]
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


def identify(backend: Backend, dtype: str = "float32") -> list[ConventionCard]:
    """
    One card for each implementation that has a question to answer; gradients have none of their
    own.
    """
    asked = [
        i
        for i in backend.implementations
        if not i.operation.is_gradient and conventions(i.operation.name)
    ]
    return [
        card_of(implementation, dtype if dtype in implementation.operation.dtypes else "bool")
        for implementation in asked
    ]


def card_of(implementation: Implementation, dtype: str) -> ConventionCard:
    card = ConventionCard(implementation.name, implementation.backend.name, dtype)
    if implementation.operation.is_staged:
        identify_staged(implementation, dtype, card)
    else:
        identify_unstaged(implementation, dtype, card)
    return card
