"""
Options: what an annotation says an option may be is drawn, dealt in pairs, refused and made
smaller, of every operation that has one.
"""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pairs import PRESENT, all_pairs, covering_array, deals, pairs_of
from attnverify.checks.invalid_calls import calls_refused_by_spec
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_cases, fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, simpler_recipes

OPTIONS = [(name, option) for name, each in CATALOGUE.items() for option in each.domains]
each_option = pytest.mark.parametrize(("name", "option"), OPTIONS)
WITH_PAIRS = [name for name, operation in CATALOGUE.items() if len(operation.domains) > 1]


def text(value: Any) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)


def values_in(recipes: tuple[Recipe, ...], name: str, option: str) -> set[str]:
    """What an option is in recipes; of an array whether it is there."""
    domain = CATALOGUE[name].domains[option]
    default = domain.choices[0] if domain.choices else None
    found = [recipe.options.get(option, default) for recipe in recipes]
    return {text(x if domain.integers is None or x is None else PRESENT) for x in found}


def possible(name: str, option: str) -> set[str]:
    domain = CATALOGUE[name].domains[option]
    left_out = () if domain.required else (None,)
    return {text(x) for x in (domain.choices if domain.integers is None else (*left_out, PRESENT))}


@each_option
def test_every_choice_of_an_option_is_drawn_and_given(name: str, option: str) -> None:
    drawn = draw_recipes(name, "any", 150, 0)
    assert values_in(drawn, name, option) == possible(name, option)
    assert all(option in expand(recipe, "float64") for recipe in drawn if option in recipe.options)


@each_option
def test_what_an_option_cannot_be_is_refused(name: str, option: str) -> None:
    wanted = [f"{option} {value}" for value in CATALOGUE[name].domains[option].refused]
    refused = [words for words in calls_refused_by_spec(name) if words.startswith(f"{option} ")]
    assert refused and set(wanted) <= set(refused)


@each_option
def test_an_option_is_left_out_or_made_simpler_to_make_a_failure_smaller(
    name: str, option: str
) -> None:
    operation = CATALOGUE[name]
    if operation.requires(option):
        return
    drawn = draw_recipes(name, "any", 150, 0)
    with_it = next(r for r in drawn if option in r.options and is_hard(operation, option, r))
    simpler = [r.options.get(option) for r in simpler_recipes(with_it)]
    assert any(value != with_it.options[option] for value in simpler)


def is_hard(operation: Operation, option: str, recipe: Recipe) -> bool:
    """Whether the option is something simpler in another recipe."""
    choices = operation.domains[option].choices
    return not choices or text(recipe.options[option]) != text(choices[0])


@pytest.mark.parametrize("name", WITH_PAIRS)
def test_every_pair_of_values_of_two_options_is_dealt(name: str) -> None:
    rows = deals(CATALOGUE[name])
    for one, other in combinations(CATALOGUE[name].domains, 2):
        met = {(text(row[one]), text(row[other])) for row in rows}
        assert met == {(a, b) for a in possible(name, one) for b in possible(name, other)}


@pytest.mark.parametrize("name", WITH_PAIRS)
def test_what_is_dealt_is_a_fixed_case(name: str) -> None:
    if CATALOGUE[name].traits.parameters:
        return
    given = {repr(sorted(recipe.options.items(), key=str)) for recipe in fixed_cases(name)}
    assert len(given) >= len(deals(CATALOGUE[name]))


def test_an_array_in_which_a_pair_is_missing_is_noticed() -> None:
    counts = (3, 2, 4)
    rows = covering_array(counts)
    met = [pairs_of(row) for row in rows]
    assert set.union(*met) == all_pairs(counts) and len(rows) <= 14
    assert any(set.union(*met[:at], *met[at + 1 :]) != all_pairs(counts) for at in range(len(met)))


def test_seventeen_options_of_today_meet_in_few_rows() -> None:
    counts = (2, 6, 4, 2, 2, 2, 2, 2, 3, 2, 3, 3, 3, 2, 3, 4, 3)
    assert len(covering_array(counts)) <= 40


def test_a_recipe_whose_option_is_an_array_gives_it_within_its_limits() -> None:
    recipe = fixed_recipe(CATALOGUE["visible_keys"], {"N": 3, "M": 4})
    for seed in range(40):
        given = expand(replace(recipe, options={"lengths": {"seed": seed}}), "bool")["lengths"]
        assert given.shape == (2,) and (given >= 0).all() and (given <= 4).all()
