"""
Identify: which conventions a black box follows, read off its answers to a few recipes.

Questions are asked in rounds. The recipes of a round show its questions and nothing that is not
known from the rounds before: first square calls without masks, then other lengths, then masks, then
rows that see no key. An answer is what explains all recipes of its round, within the yardstick of a
diagnosis; "none of ..." is an answer too, and so is "not told apart".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from attnverify.backends.loader import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.diagnosis.conventions import SPEC_ANSWERS, Convention, conventions
from attnverify.diagnosis.operation_conventions import OPERATION_SPEC_ANSWERS
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.fixed_cases import fixed_recipe as probe
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, arrays, observe_one
from attnverify.reference.staged_attention import Change, evaluate, spec_stages

DEVIATIONS = 2
"""As many answers of one round may be others than the specification's."""


@dataclass(frozen=True)
class Round:
    """
    Recipes and the questions that they answer; ``label`` is added to these where they are asked
    again of other sizes.
    """

    questions: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    label: str = ""


@dataclass(frozen=True)
class Answer:
    """What an implementation answers to a question, and what the specification does."""

    said: str
    specification: str

    @property
    def as_specified(self) -> bool:
        return self.said == self.specification


@dataclass
class ConventionCard:
    """The answers of one implementation, and what it would not do."""

    implementation: str
    backend: str
    dtype: str
    answers: dict[str, Answer] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"{self.implementation} of {self.backend} ({self.dtype})"
        for question, found in self.answers.items():
            yield f"  {question:<33}{found.said}" + (
                "" if found.as_specified else f"    (the specification: {found.specification})"
            )
        yield from (f"  not supported: {reason}" for reason in self.refused)

    def as_dict(self) -> dict[str, Any]:
        answers = {
            question: {
                "answer": a.said,
                "specification": a.specification,
                "as specified": a.as_specified,
            }
            for question, a in self.answers.items()
        }
        return {
            "implementation": self.implementation,
            "backend": self.backend,
            "dtype": self.dtype,
            "answers": answers,
            "not supported": self.refused,
        }


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


def collect_observations(
    implementation: Implementation, recipes: Sequence[Recipe], dtype: str, card: ConventionCard
) -> list[Observation]:
    """Collect the answers to the recipes; why there is none is noted."""
    seen = []
    for recipe in recipes:
        try:
            seen.append(observe_one(implementation, case_of(recipe, dtype)))
        except (Disagreement, Unsupported) as reason:
            words = str(reason).splitlines()[0]
            if words not in card.refused:
                card.refused.append(words)
    return seen


def law_of(operation: Operation, question: str) -> str:
    return OPERATION_SPEC_ANSWERS.get(operation.name, {}).get(question) or SPEC_ANSWERS[question]


# operations that consist of stages: what is known is carried from round to round

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
    s = spec_stages(CATALOGUE[o.recipe.operation], o.inputs, o.dtype)
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


# other operations: the specification or one alternative


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
