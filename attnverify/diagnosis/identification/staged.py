"""
Operations that consist of stages: what is known is carried from round to round.
The rounds of questions come first: in which order, and of which recipes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

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
from attnverify.inputs.fixed_cases import fixed_recipe as probe
from attnverify.inputs.recipe import Recipe
from attnverify.judge.observation import Observation, arrays
from attnverify.reference.staged_attention import Change, evaluate


@dataclass(frozen=True)
class Round:
    """
    Recipes and the questions that they answer; ``label`` is added to these where they are asked
    again of other sizes.
    """

    questions: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    label: str = ""


def rounds(operation: Operation) -> Iterator[Round]:
    """Return the rounds of an operation; a question that it does not have is not asked."""
    make: Callable[..., Recipe] = lambda family="normal", mask=None, **sizes: probe(
        operation, sizes, family, mask
    )
    if "score" in operation.arguments:
        yield from masks(operation, make)
        return
    square = {"N": 6, "M": 6, "H": 4, "B": 2}
    core = (
        "scale",
        "ALiBi slopes",
        "ALiBi sign",
        "ALiBi place",
        "position shift",
        "u and v",
        "position scores",
        "table direction",
    )
    yield Round(
        (*core, "causal alignment", "keys without a mask"),
        (make(**square), make("identity", **square | {"E": 6})),
    )
    if operation.traits.slopes:
        yield Round(
            ("ALiBi slopes",),
            (make(N=6, M=6, H=6, B=1), make("identity", N=12, M=12, H=12, E=12)),
            ", H no power of two",
        )
    if "align" in operation.arguments:
        start = [
            replace(recipe, options=recipe.options | {"align": "start"})
            for recipe in (make(N=3, M=6), make(N=6, M=3))
        ]
        yield Round(("table alignment",), (make(N=3, M=6), make(N=6, M=3), *start))
    yield Round(("causal alignment", "keys without a mask", "position shift"), (make(N=3, M=7),))
    if "value" in operation.arguments:
        yield Round(
            ("causal alignment", "keys without a mask", "rows without keys"),
            (make(N=7, M=3), make(N=3, M=7)),
        )
        yield from masks(operation, make)
        if "keep" in operation.arguments:
            dropped = [replace(make(N=5, M=9), dropout={"p": p, "seed": 4}) for p in (0.25, 0.6)]
            yield Round(("dropout", "dropout scale"), tuple(dropped))


def masks(operation: Operation, make: Callable[..., Recipe]) -> Iterator[Round]:
    """Rounds with masks: some keys hidden, then all keys of some rows, then numbers to add."""
    some = {"pattern": "random", "axes": "N M", "form": "bool", "seed": 3}
    yield Round(
        ("mask polarity", "ALiBi distance"),
        (make(mask=some, N=2, M=12), make(mask=some | {"seed": 8}, N=2, M=12)),
    )
    none = some | {"pattern": "empty_rows", "seed": 5}
    full = some | {"pattern": "causal"}  # its last row sees no key where True means hidden
    yield Round(
        ("rows without keys",),
        (
            make(mask=none, N=7, M=9),
            make(mask=some | {"pattern": "nothing"}, N=3, M=4),
            make(mask=full, N=5, M=5),
        ),
    )
    if "mask" in operation.arguments:
        yield Round(
            ("float mask",),
            (
                make(mask=some | {"form": "finite"}, N=5, M=7),
                make(mask=some | {"form": "noisy"}, N=5, M=7),
            ),
        )


DEVIATIONS = 2
"""As many answers of one round may be others than the specification's."""

OpenAnswers = dict[str, list[Convention | None]]
"""
The answers to each question that are still open, the most likely first; None is the
specification's.
"""


def identify_staged(implementation: Implementation, dtype: str, card: ConventionCard) -> None:
    """
    Ask round after round; what a round leaves open is the ground on which the next one stands.
    """
    operation = implementation.operation
    still: OpenAnswers = {}
    for convention in conventions(operation.name):
        if convention.change is not None:
            still.setdefault(convention.question, [None]).append(convention)
    for turn in rounds(operation):
        seen = collect_observations(implementation, turn.recipes, dtype, card)
        if seen:
            answered(operation, turn, seen, still, card)
    if operation.traits.slopes:
        dtype_of_biases(implementation, changes_of(non_spec_answers(still)), card)


def non_spec_answers(still: OpenAnswers) -> list[Convention]:
    """Return the most likely answers that are not the specification's."""
    return [answers[0] for answers in still.values() if answers[0] is not None]


def changes_of(those: Sequence[Convention | None]) -> list[Change]:
    return [
        convention.change
        for convention in those
        if convention is not None and convention.change is not None
    ]


def answered(
    operation: Operation,
    turn: Round,
    seen: Sequence[Observation],
    still: OpenAnswers,
    card: ConventionCard,
) -> None:
    """Narrow the open answers down by one round, and write on the card what it showed."""
    ground = changes_of([c for c in non_spec_answers(still) if c.question not in turn.questions])
    asked = {
        q: [c for c in still[q] if c is None or differs(seen, ground, c)]
        for q in turn.questions
        if q in still
    }
    asked = {
        question: answers for question, answers in asked.items() if answers not in ([], [None])
    }
    fitting = consistent_combinations(seen, ground, asked)
    for question, answers in asked.items():
        law = law_of(operation, question)
        found = list(dict.fromkeys(one[question] for one in fitting))
        if found:  # what these recipes do not tell from the specification stays open with it
            still[question] = [
                *found,
                *(c for c in still[question] if None in found and c not in answers),
            ]
        names = [law if c is None else c.answer for c in found or answers]
        words = "" if len(found) == 1 else "not told apart: " if found else "none of: "
        card.answers[question + turn.label] = Answer(words + "; ".join(names), law)


def differs(seen: Sequence[Observation], ground: Sequence[Change], convention: Convention) -> bool:
    """Whether these recipes tell an alternative from the specification, given what is known."""
    assert convention.change is not None
    for o in seen:
        mine = replace(o, actual=tuple(arrays(evaluate_changes(o, [*ground, convention.change]))))
        if mine.distance(evaluate_changes(o, ground)) > 1:
            return True
    return False


def evaluate_changes(o: Observation, changes: Sequence[Change]) -> Any:
    """Evaluate the answer of the specification after some changes."""
    s = o.stages
    for change in changes:
        s = change(s)
    return evaluate(s)


def consistent_combinations(
    seen: Sequence[Observation], ground: Sequence[Change], asked: OpenAnswers
) -> list[dict[str, Convention | None]]:
    """
    Return the combinations of answers with the fewest deviations from the specification that
    explain every observation.
    """
    for deviations in range(min(DEVIATIONS, len(asked)) + 1):
        found = [one for one in combined(asked, deviations) if explains(seen, ground, one)]
        if found:
            return found
    return []


def combined(asked: OpenAnswers, deviations: int) -> Iterator[dict[str, Convention | None]]:
    """
    All combinations of answers in which so many questions are not answered as the specification
    does. Questions whose answer by the specification was ruled out do not count.
    """
    for questions in combinations(asked, deviations):
        rest = {question: None for question in asked if question not in questions}
        if all(None in asked[question] for question in rest):
            for chosen in product(
                *([c for c in asked[question] if c is not None] for question in questions)
            ):
                yield rest | dict(zip(questions, chosen, strict=True))


def explains(
    seen: Sequence[Observation], ground: Sequence[Change], one: dict[str, Convention | None]
) -> bool:
    changes = [*ground, *changes_of(list(one.values()))]
    return all(o.distance(evaluate_changes(o, changes)) <= 1 for o in seen)


def dtype_of_biases(
    implementation: Implementation, known: Sequence[Change], card: ConventionCard
) -> None:
    """
    Whether slopes and distances are kept in a narrow dtype: where between the two answers the
    outputs lie, in bfloat16.

    Neither is far from the other, so that not the worst element decides but the projection on their
    difference.
    """
    operation = implementation.operation
    (convention,) = (c for c in conventions(operation.name) if c.question == "ALiBi dtype")
    recipes = tuple(
        probe(operation, {"N": 4, "M": 700, "H": 12, "E": 8}, f) for f in ("normal", "uniform")
    )
    seen = collect_observations(implementation, recipes, "bfloat16", card)
    if not seen or convention.change is None:
        return
    apart = np.concatenate(
        [
            np.ravel(evaluate_changes(o, [*known, convention.change]) - evaluate_changes(o, known))
            for o in seen
        ]
    )
    away = np.concatenate([np.ravel(o.actual[0] - evaluate_changes(o, known)) for o in seen])
    share = float(apart @ away / (apart @ apart))
    error = (
        float(np.linalg.norm(away - share * apart) / np.linalg.norm(apart) / np.sqrt(apart.size))
        * 3
    )
    law = SPEC_ANSWERS["ALiBi dtype"]
    near = [
        words
        for words, place in ((law, 0.0), (convention.answer, 1.0))
        if abs(share - place) < 0.3 + error
    ]
    said = (
        near[0]
        if len(near) == 1
        else f"none of: {law}; {convention.answer}"
        if not near
        else f"not told apart: {'; '.join(near)}"
    )
    card.answers["ALiBi dtype"] = Answer(said, law)
