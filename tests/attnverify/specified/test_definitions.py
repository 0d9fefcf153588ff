"""Definitions in JSON, as flashinfer-bench has them, judge a function run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.judging import is_right
from attnverify.specified import SpecifiedOperation
from attnverify.specified.pytorch.definitions import Definition
from attnverify.specified.registering import register_file
from tests.attnverify.specified.definitions_in_own_words import DECODE, EXAMPLES, RMSNORM
from tests.attnverify.specified.told import answered_in_file

every = pytest.mark.parametrize("kind", EXAMPLES)


def written(given: dict[str, Any]) -> Path:
    Path("given.json").write_text(json.dumps(given))
    return Path("given.json").absolute()


def registered(kind: str) -> SpecifiedOperation:
    (name,) = register_file(str(written(EXAMPLES[kind][0])))
    operation = CATALOGUE[name]
    assert isinstance(operation, SpecifiedOperation)
    return operation


def cases(operation: SpecifiedOperation) -> Iterator[Case]:
    for parts in operation.fixed():
        yield case_of(Recipe(operation.name, **parts), operation.form.dtype)


@every
def test_a_right_answer_is_right_in_every_case(kind: str) -> None:
    operation = registered(kind)
    (answer,) = answered_in_file(EXAMPLES[kind][1])
    assert [case.recipe for case in cases(operation) if not is_right(answer, case)] == []


@every
@pytest.mark.parametrize("place", [2, 3])
def test_a_wrong_answer_is_wrong_in_some_case(kind: str, place: int) -> None:
    operation, right = registered(kind), EXAMPLES[kind][1]
    (answer,) = answered_in_file(right.replace(*EXAMPLES[kind][place], 1))
    assert any(not is_right(answer, case) for case in cases(operation))


@every
def test_a_tolerance_of_a_hundredth_does_not_see_the_second_wrong_answer(kind: str) -> None:
    """As a plain comparison on normal numbers does it, with large enough sizes."""
    operation, right = registered(kind), EXAMPLES[kind][1]
    inputs = plain_inputs(operation)
    first, second = (
        run(right.replace(*EXAMPLES[kind][place], 1), operation, inputs) for place in (2, 3)
    )
    law = run(right, operation, inputs)
    assert not all(torch.allclose(x, y, 1e-2, 1e-2) for x, y in zip(first, law, strict=True))
    assert all(torch.allclose(x, y, 1e-2, 1e-2) for x, y in zip(second, law, strict=True))


def plain_inputs(operation: SpecifiedOperation) -> dict[str, Any]:
    sizes = {letter: 8 + k for k, letter in enumerate(sorted(operation.sizes))}
    options = {one.name: one.choices[0] for one in operation.described if one.choices}
    values = {"family": "normal", "seed": 1}
    recipe = Recipe(operation.name, sizes=sizes, values=values, options=options)
    kind, found = getattr(torch, operation.form.dtype), operation.expand(recipe, "float64")
    made = {k: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for k, x in found.items()}
    return {
        k: x.to(kind) if getattr(x, "is_floating_point", bool)() else x for k, x in made.items()
    }


def run(text: str, operation: SpecifiedOperation, inputs: dict[str, Any]) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(text, names)
    found = operation.form.answers["run"].as_function(names["run"])(**inputs)
    return [x.float() for x in (found if isinstance(found, tuple) else (found,))]


def test_what_a_definition_says_of_its_inputs_is_drawn() -> None:
    described = {one.name: one for one in Definition(written(DECODE)).arguments}
    assert [one.written for one in described.values()] == (
        ["B 4 8", "C 1 2 8", "C 1 2 8", "B", "D", ""]
    )
    assert described["indptr"].kind == "offsets" and described["indptr"].below == "D"
    assert described["indices"].below == "C", "with as many as there are pages the reference fails"


def test_what_varies_is_as_large_as_a_constraint_asks_for() -> None:
    asked = ["pages >= batch", "batch > 1", "q.shape[0] == batch"]
    made = Definition(written(DECODE | {"constraints": [*DECODE["constraints"], *asked]}))
    assert made.fitted({"B": 1, "C": 1, "D": 4}) == {"B": 2, "C": 2, "D": 4}
    assert made.fitted({"B": 7, "C": 1, "D": 4}) == {"B": 7, "C": 7, "D": 4}


def test_what_constant_axes_hold_is_no_constraint_of_others() -> None:
    held = DECODE | {"constraints": [*DECODE["constraints"], "heads % shared == 0"]}
    assert Definition(written(held)).form().name == "paged_decode_h4_kv2_d8"


def test_a_constant_that_is_too_large_is_made_small_in_the_reference_as_well() -> None:
    large = json.loads(json.dumps(RMSNORM).replace("64", "8388608"))
    made = Definition(written(large))
    assert made.constants == {"width": 262144}
    assert made.run(torch.ones(1, 262144), torch.ones(262144)).shape == (1, 262144)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("bfloat16", "float8_e4m3fn", "wanted dtypes float32, .* got float8_e4m3fn"),
        ('"reference"', '"refer"', "got no reference"),
        ("def run", "def other", "wanted a function run"),
        (
            '"constraints": []',
            '"constraints": ["rows % 2 == 0"]',
            "constraints as .* 'rows % 2 == 0'",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(old: str, new: str, words: str) -> None:
    text = json.dumps(RMSNORM).replace(old, new)
    with pytest.raises(ValueError, match=f"given.json: {words}|{words}"):
        register_file(str(written(json.loads(text))))


def test_indices_come_in_the_dtype_of_the_definition() -> None:
    operation = registered("gqa paged decode")
    case = next(cases(operation))
    assert {case.inputs[name].dtype.name for name in ("indptr", "indices")} == {"int32"}
