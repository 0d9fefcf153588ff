"""Trivial answers: a case that one of them passes is weak, and is not counted as evidence."""

import numpy as np
import pytest

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.weak_cases import rejects_all, trivial_answers
from attnverify.precision import resolve

SDPA, ALIBI = "scaled_dot_product_attention", "alibi_attention"
PRECISION = resolve("wide", SDPA, SDPA, "float32")


def discriminates(recipe: Recipe) -> bool:
    return case_of(recipe, "float32").is_discriminating(PRECISION)


def of(
    operation: str, sizes: dict[str, int], pattern: str | None = None, family: str = "spread"
) -> Recipe:
    mask = {"pattern": pattern, "axes": "N M", "form": "bool", "seed": 1} if pattern else None
    return Recipe(operation, sizes, {"family": family, "seed": 1}, mask=mask)


USUAL = {"B": 1, "H": 2, "N": 4, "M": 6, "D": 4, "E": 3}


def test_an_ordinary_case_is_discriminating() -> None:
    assert (
        discriminates(of(SDPA, USUAL))
        and discriminates(of(ALIBI, USUAL))
        and discriminates(of("softmax", {"N": 4, "M": 6}))
    )


def test_a_case_that_zeros_pass_is_weak() -> None:
    assert not discriminates(of(SDPA, USUAL, "nothing"))


def test_a_case_in_which_the_query_does_not_matter_is_weak() -> None:
    recipe = of(SDPA, USUAL, family="small")
    operation, inputs = CATALOGUE[SDPA], expand(recipe, "float32")
    expected = operation.specification(**inputs)
    answers = list(trivial_answers(operation, inputs, expected))
    assert not rejects_all(answers, expected, np.full(expected.shape, 1e-5))
    assert rejects_all(answers, expected, np.full(expected.shape, 1e-30))


def test_a_trivial_answer_that_is_the_same_function_takes_no_part() -> None:
    one_key = USUAL | {"M": 1, "N": 1}
    assert discriminates(of(SDPA, one_key))


@pytest.mark.parametrize("operation", CATALOGUE)
def test_every_trivial_answer_has_the_form_of_the_answer(operation: str) -> None:
    op: Operation = CATALOGUE[operation]
    for recipe in draw_recipes(operation, "any", 8, 0):
        case = case_of(recipe, "float64")
        answers = list(trivial_answers(op, case.inputs, case.expected))
        assert len(answers) >= (operation != "init_mems")
        rejects_all(
            answers,
            case.expected,
            case.bounds(resolve("wide", operation, operation, "float64")),
        )


@pytest.mark.parametrize(
    "operation", [name for name, op in CATALOGUE.items() if name != "init_mems"]
)
def test_most_fixed_cases_are_discriminating(operation: str) -> None:
    precision = resolve("wide", operation, operation, "float32")
    found = [
        case_of(recipe, "float32").is_discriminating(precision) for recipe in fixed_cases(operation)
    ]
    print(f"{operation}: {sum(found)} of {len(found)} fixed cases are discriminating")
    assert 2 * sum(found) >= len(found)


@pytest.mark.parametrize(
    "operation",
    [SDPA, ALIBI, "learned_relative_attention", "transformer_xl_attention", "additive_attention"],
)
def test_the_trivial_answers_of_an_attention_are_several(operation: str) -> None:
    recipe = fixed_cases(operation)[0]
    case = case_of(recipe, "float64")
    assert len(list(trivial_answers(CATALOGUE[operation], case.inputs, case.expected))) >= 3
