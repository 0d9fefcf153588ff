"""
The answers of one implementation to the questions of its operation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import Operation
from attnverify.conventions.operation_rows import OPERATION_SPEC_ANSWERS
from attnverify.conventions.stage_rows import SPEC_ANSWERS
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import resized
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, observe_one


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


def collect_observations(
    implementation: Implementation, recipes: Sequence[Recipe], dtype: str, card: ConventionCard
) -> list[Observation]:
    """
    Collect the answers to the recipes, or to what a limited kernel takes in their place; why there
    is none is noted.
    """
    seen = []
    for recipe in recipes:
        try:
            seen.append(observe_limited(implementation, recipe, dtype))
        except (Disagreement, Unsupported) as reason:
            words = str(reason).splitlines()[0]
            if words not in card.refused:
                card.refused.append(words)
    return seen


def observe_limited(implementation: Implementation, recipe: Recipe, dtype: str) -> Observation:
    """
    Observe the answer to a recipe, or to the first of its limited kind that has one. Raises why the
    recipe itself has none.
    """
    refusals: list[Disagreement | Unsupported] = []
    for each in with_limits(recipe):
        try:
            return observe_one(implementation, case_of(each, dtype))
        except (Disagreement, Unsupported) as reason:
            refusals.append(reason)
    raise refusals[0]


def with_limits(recipe: Recipe) -> Iterator[Recipe]:
    """
    Yield the recipe, then the same as a limited kernel takes it: of one width, with as many
    queries as keys and an even number of heads, and with the other alignment.
    """
    sizes = recipe.sizes
    width = {"E": sizes["D"]} if {"D", "E"} <= sizes.keys() else {}
    square = dict.fromkeys("NM", max(sizes["N"], sizes["M"])) if {"N", "M"} <= sizes.keys() else {}
    even = {"H": sizes["H"] + sizes["H"] % 2} if "H" in sizes else {}
    limited = [recipe, resized(recipe, width), resized(recipe, width | square | even)]
    other = {"end": "start", "start": "end"}.get(recipe.options.get("align", ""))
    if other:
        limited += [replace(each, options=each.options | {"align": other}) for each in limited]
    yield from dict.fromkeys(limited)


def law_of(operation: Operation, question: str) -> str:
    return OPERATION_SPEC_ANSWERS.get(operation.name, {}).get(question) or SPEC_ANSWERS[question]
