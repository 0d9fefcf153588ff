"""
The table of traits: a row for each operation, each trait true of the specification, and every
check applied or left out for a stated reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnverify.bench.measure.cases import CPU, field_shapes
from attnverify.catalogue import operation as catalogue
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves
from attnverify.catalogue.traits import CHECKS, TRAITS, Traits
from attnverify.checks.metamorphic import relation_checks, take_along
from attnverify.checks.registry import checks
from attnverify.checks.systematic_error import systematic_error_checks
from attnverify.conventions.convention import conventions
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.real.calls import far_calls
from attnverify.inputs.recipe import Inputs

ROWS = [CATALOGUE[name] for name in TRAITS]
TIMED = {case.timed for case in (*CPU, *field_shapes())}

APPLIED: dict[str, Callable[[str], Iterable[Any]]] = {
    "long sequences": lambda name: far_calls(CATALOGUE[name], "default"),
    "relations": lambda name: relation_checks(name, "quick", 0),
    "systematic errors": lambda name: systematic_error_checks(name, 0),
    "conventions": conventions,
    "benchmarks": lambda name: TIMED & {name},
}
"""What each check does with an operation."""


def each(trait: Callable[[Operation], Any]) -> Any:
    """The operations that have a trait."""
    chosen = [operation for operation in ROWS if trait(operation)]
    return pytest.mark.parametrize("operation", chosen, ids=lambda operation: operation.name)


def answer(operation: Operation, inputs: Inputs) -> np.ndarray:
    """The first array that the specification returns."""
    return np.asarray(next(leaves(operation.specification(**inputs))))


def small(operation: Operation, **sizes: int) -> Inputs:
    return expand(fixed_recipe(operation, {"N": 3, "M": 4, "H": 2, "B": 2} | sizes), "float64")


# every check applies, or the row says why not


def objections(operation: Operation, check: str) -> str:
    """What is wrong between a check and what the table says of it; "" if nothing is."""
    applies, reason = bool(list(APPLIED[check](operation.name))), operation.skips(check)
    if applies and reason:
        return f"{operation.name}: {check} apply, though it is said that {reason}"
    if not applies and not reason:
        return f"{operation.name}: {check} neither apply nor does its row say why not"
    return ""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("operation", CATALOGUE)
def test_every_check_applies_or_its_row_says_why_not(operation: str, check: str) -> None:
    assert objections(CATALOGUE[operation], check) == ""


@pytest.mark.parametrize("aspect", ["refusals", "side effects"])
@pytest.mark.parametrize("operation", CATALOGUE)
def test_every_operation_meets_invalid_calls_and_sequences(operation: str, aspect: str) -> None:
    assert checks(operation, aspect, "quick", 0)


def test_no_row_skips_what_is_no_check() -> None:
    assert {check for row in TRAITS.values() for check in row.skipped} <= set(CHECKS)


def test_a_reason_without_need_and_a_missing_one_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TRAITS, "dropout", replace(TRAITS["dropout"], skipped={}))
    monkeypatch.setitem(TRAITS, "rel_shift", Traits(skipped={"conventions": "there are none"}))
    assert "nor does its row say why not" in objections(CATALOGUE["dropout"], "systematic errors")
    assert "though it is said that there are none" in objections(
        CATALOGUE["rel_shift"], "conventions"
    )


@pytest.mark.parametrize("odd", ["softmax", "no_such_operation"])
def test_an_operation_without_a_row_and_a_row_without_one_are_refused(
    odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not TRAITS.get(odd):
        monkeypatch.setitem(TRAITS, odd, Traits())
    else:
        monkeypatch.delitem(TRAITS, odd)
    with pytest.raises(ValueError, match=f"TRAITS: wanted a row for each operation .* got {odd} "):
        catalogue.read_catalogue()


# each trait is true of the specification


@each(lambda operation: operation.exact)
def test_what_is_exact_returns_numbers_that_it_was_given(operation: Operation) -> None:
    inputs = small(operation)
    arrays = [leaf for leaf in leaves(inputs) if isinstance(leaf, np.ndarray)]
    given = {0.0, 1.0, -np.inf}.union(*(x.ravel().tolist() for x in arrays))
    assert set(answer(operation, inputs).ravel().tolist()) <= given


@each(lambda operation: operation.is_attention)
def test_causal_is_who_sees_no_key_behind_its_own_place(operation: Operation) -> None:
    inputs = small(operation)
    other = inputs | {"value": inputs["value"].copy()}
    other["value"][..., -1, :] += 1
    same = np.equal(answer(operation, inputs), answer(operation, other))
    assert same[..., :-1, :].all() == operation.traits.causal


@each(lambda operation: operation.is_attention)
def test_positional_is_who_knows_where_a_key_stands(operation: Operation) -> None:
    inputs = small(operation)
    other = take_along(operation, inputs, "M", np.array([1, 0, 2, 3]))
    error = np.abs(answer(operation, inputs) - answer(operation, other))
    assert (error.max() > 1e-6) == operation.traits.positional


@each(lambda operation: operation.is_attention and "H" in operation.sizes)
def test_slopes_make_one_head_differ_from_the_next(operation: Operation) -> None:
    inputs = small(operation)
    other = take_along(operation, inputs, "H", np.array([1, 0]))
    error = np.abs(answer(operation, inputs)[:, ::-1] - answer(operation, other))
    assert (error.max() > 1e-6) == operation.traits.slopes


@each(lambda operation: operation.traits.mask_axes and operation.mask)
def test_every_documented_shape_of_a_mask_is_accepted(operation: Operation) -> None:
    for axes in operation.traits.mask_axes:
        mask = {"pattern": "random", "axes": axes, "form": "bool", "seed": 1}
        recipe = fixed_recipe(operation, {"N": 3, "M": 4, "H": 2, "B": 2}, mask=mask)
        lead = {"lead": (2, 2)} if "..." in " ".join(operation.axes.values()) else {}
        operation.specification(**expand(replace(recipe, options=recipe.options | lead), "float64"))


def test_a_mask_or_a_draw_has_documented_shapes_and_nothing_else_has() -> None:
    for operation in ROWS:
        takes_one = operation.mask is not None or operation.requires("keep")
        assert bool(operation.traits.mask_axes) == takes_one, operation.name


@each(lambda operation: operation.traits.square and "key" in operation.arguments)
def test_square_is_who_refuses_other_numbers_of_keys(operation: Operation) -> None:
    inputs = small(operation)
    with pytest.raises(ValueError, match="key: wanted"):
        operation.specification(**inputs | {"key": inputs["key"][:, :-1]})


@each(lambda operation: operation.traits.even_width)
def test_an_odd_width_is_refused(operation: Operation) -> None:
    inputs = small(operation, H=1, D=4)
    odd = inputs | ({"x": inputs["x"][..., :-1]} if "x" in inputs else {"F": 7})
    with pytest.raises(ValueError, match="wanted"):
        operation.specification(**odd)


@each(lambda operation: operation.traits.parameters)
def test_the_pattern_of_the_parameters_is_that_of_the_specification(operation: Operation) -> None:
    inputs = small(operation)
    stack = inputs["parameters"] if operation.is_stack else [inputs["parameters"]]
    for name in stack[0]:
        odd = [{**stack[0], name: np.ones((1, 2, 3, 4))}, *stack[1:]]
        with pytest.raises(ValueError, match=f"{name}: wanted"):
            operation.specification(
                **inputs | {"parameters": odd if operation.is_stack else odd[0]}
            )


# what is read off the signatures


def named(holds: Callable[[Operation], bool]) -> set[str]:
    return {operation.name for operation in ROWS if holds(operation)}


def test_what_needs_no_float_takes_a_dtype() -> None:
    assert named(lambda op: op.takes_dtype) == {
        *("get_slopes", "sinusoidal_positions", "init_mems", "get_alibi_biases", "merge_masks"),
    }


def test_what_is_given_no_array_and_what_returns_booleans() -> None:
    assert named(lambda op: not op.is_given_arrays) == {
        *("causal_mask", "get_slopes", "sinusoidal_positions", "init_mems"),
    }
    assert named(lambda op: op.dtypes == ("bool",)) == {"causal_mask", "visible_keys"}


def test_attentions_scores_layers_and_what_has_a_memory() -> None:
    assert named(lambda op: op.is_score) == {name for name in TRAITS if name.endswith("_score")}
    layers = ("self_attention", "multi_head_attention")
    today = ("merge_attention", "grouped_attention", "latent_attention", "packed_attention")
    today += ("paged_attention", "selected_attention")
    attentions = {name for name in TRAITS if name.endswith("_attention")}
    assert named(lambda op: op.is_attention) == {
        name for name in attentions if not name.endswith(layers + today)
    }
    assert named(lambda op: op.is_stack) == {"transformer_xl"}
    assert named(lambda op: op.has_memory and bool(op.axes)) == {
        *("update_mems", "transformer_xl", "transformer_xl_layer"),
    }


def test_a_mask_that_may_not_be_none() -> None:
    assert named(lambda op: op.mask is not None and not op.allows_none(op.mask)) == {
        *("get_alibi_biases", "alibi_multi_head_attention"),
    }
