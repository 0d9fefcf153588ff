"""What arrives at an output has its shape: every gradient refuses another, in every column."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe

COLUMNS = {name: import_module(f"attnverify.{name}") for name in ("spec", "numpy_ref", "cupy_impl")}
GRADIENTS = [name for name, operation in CATALOGUE.items() if "d_output" in operation.arguments]
CASES = [
    (column, name)
    for column, module in COLUMNS.items()
    for name in GRADIENTS
    if hasattr(module, name)
]


def call(column: str, name: str, **other: Any) -> Any:
    inputs = expand(fixed_recipe(CATALOGUE[name], {}), "float64")
    return getattr(COLUMNS[column], name)(**inputs | other)


def arriving(name: str) -> np.ndarray:
    inputs = expand(fixed_recipe(CATALOGUE[name], {}), "float64")
    x: np.ndarray = inputs["d_output"]
    return x


@pytest.mark.parametrize(("column", "name"), CASES)
@pytest.mark.parametrize("axis", [-1, -2])
def test_a_longer_axis_is_refused(column: str, name: str, axis: int) -> None:
    x = arriving(name)
    longer = np.concatenate([x, np.take(x, [0], axis)], axis)
    with pytest.raises(ValueError, match="d_output"):
        call(column, name, d_output=longer)
    call(column, name, d_output=x)


def test_every_gradient_of_the_specification_is_asked() -> None:
    asked = {name for column, name in CASES if column == "spec"}
    named = {name for name, operation in CATALOGUE.items() if operation.is_gradient}
    assert named - asked == {"update_mems_grad"}, "whose arguments are lists of memories"


@pytest.mark.parametrize("column", [c for c in COLUMNS if hasattr(COLUMNS[c], "update_mems_grad")])
@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 2, 2), (2, 2, 1)])
def test_what_arrives_at_a_memory_has_its_shape(column: str, shape: tuple[int, ...]) -> None:
    old, new = np.ones((1, 2, 1)), np.ones((1, 1, 1))
    grad = COLUMNS[column].update_mems_grad
    with pytest.raises(ValueError, match="d_new_mems"):
        grad([np.ones(shape)], [new], [old], mem_len=2)
    assert grad([np.ones((1, 2, 1))], [new], [old], mem_len=2)
