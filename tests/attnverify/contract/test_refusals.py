"""
Wrong calls: each is refused with the argument that was at fault named, in the same words by all
columns, which proves of each that it asks the contract.

``blamed.json`` has the wrong values that are no mistake (null), and those for which another
argument is named because the two no longer fit; every other is named itself. It was recorded from
the specification when its checks were its own (3,182 of 3,191 entries; in the other nine two
arguments fit no more, and the other one was named).
"""

import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.contract import attention, shapes
from attnverify.contract.arrays import FLOAT, Arrays
from tests.attnverify.contract.wrong_calls import RIGHT, WRONG, operation_of, wrong_call

BLAMED: dict[str, dict[str, str | None]] = json.loads(
    Path(__file__).with_name("blamed.json").read_text()
)
IN_NUMPY = ("spec", "numpy_ref", "cupy_impl")
OTHERS = [
    (column, name)
    for column in ("numpy_ref", "cupy_impl", "torch_impl")
    for name in RIGHT
    if column != "torch_impl" or not CATALOGUE[operation_of(name)].is_gradient
]


def refusal(column: str, name: str, call: dict[str, Any]) -> str | None:
    """The words of a ValueError; None where the call is accepted."""
    given = call if column in IN_NUMPY else map_leaves(as_tensor, call)
    try:
        with np.errstate(all="ignore"):
            getattr(import_module(f"attnverify.{column}"), operation_of(name))(**given)
    except ValueError as error:
        return str(error)
    return None


def as_tensor(x: Any) -> Any:
    torch = import_module("torch")
    return torch.from_numpy(np.array(x)) if isinstance(x, ndarray) else x


def blame(words: str | None) -> str | None:
    """The argument that a refusal names."""
    if words is None:
        return None
    found = re.fullmatch(r"([\w.]+): wanted .+, got .+", words)
    assert found, words
    return found[1]


def misblamed(name: str) -> list[tuple[str, int, str | None]]:
    """The wrong calls of an operation that the specification does not refuse as recorded."""
    found = []
    for argument, number in [(a, n) for operation, a, n in WRONG if operation == name]:
        named = blame(refusal("spec", name, wrong_call(name, argument, number)))
        recorded = BLAMED.get(f"{name} {argument}", {})
        wanted = recorded.get(str(number), argument)
        if wanted != (named and (named if str(number) in recorded else named.split(".")[0])):
            found.append((argument, number, named))
    return found


def test_every_operation_has_a_right_call_and_wrong_ones() -> None:
    assert set(map(operation_of, RIGHT)) == CATALOGUE.keys() and len(WRONG) > 3100


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_call_is_accepted_and_a_wrong_one_refused_by_name(name: str) -> None:
    assert refusal("spec", name, RIGHT[name]) is None
    assert misblamed(name) == []


@pytest.mark.parametrize(("column", "name"), OTHERS)
def test_a_wrong_call_is_refused_in_the_same_words_by_every_column(column: str, name: str) -> None:
    for operation, argument, number in WRONG:
        if operation == name:
            call = wrong_call(name, argument, number)
            words, wanted = refusal(column, name, call), refusal("spec", name, call)
            if column == "torch_impl":
                words, wanted = what_was_wanted(words), what_was_wanted(wanted)
            assert words == wanted, (argument, number)


def what_was_wanted(words: str | None) -> str | None:
    """A refusal without what came, which has a dtype of the library's own, in NumPy's noun."""
    wanted = words and words.partition(", got ")[0].replace(" tensor", " array")
    return wanted and wanted.replace(", dtype=torch.float64", "")


@pytest.mark.parametrize(("column", "name"), OTHERS)
def test_complex_numbers_are_refused(column: str, name: str) -> None:
    for argument, x in RIGHT[name].items():
        if isinstance(x, ndarray) and x.dtype.kind == "f":
            call = RIGHT[name] | {argument: x * 1j}
            assert blame(refusal(column, name, call)) == argument


class Shaped(Arrays):
    """Shapes alone, as floats: the contract needs no library."""

    def kind(self, thing: Any) -> str:
        return FLOAT


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 3), "table: wanted shape [2P D] with D=5, got (4, 3)"),
        ((3, 5), "table: wanted shape [2P D] with D=5, got (3, 5)"),
        ((0, 5), "table: wanted shape [2P D] with D=5 and sizes of at least 1, got (0, 5)"),
        ((4, 5, 1), "table: wanted shape [2P D] with D=5, got (4, 5, 1)"),
    ],
)
def test_a_shape_is_refused_with_what_was_wanted_and_what_came(
    shape: tuple[int, ...], words: str
) -> None:
    table = shapes.pattern("table [2P D]")
    assert shapes.check(Shaped(), table, SimpleNamespace(shape=(4, 5)), D=5) == {"D": 5, "P": 2}
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        shapes.check(Shaped(), table, SimpleNamespace(shape=shape), D=5)


# sabotage: a contract that lets something through is noticed


def accept(*_given: Any, **_sizes: Any) -> None:
    """Refuse nothing."""


@pytest.mark.parametrize(
    ("module", "check", "name"),
    [
        (shapes, "bind", "scaled_dot_product_score"),
        (attention, "check_share", "dropout"),
        (attention, "check_mask", "softmax"),
        (attention, "check_finite", "grouped_attention"),
        (attention, "check_tables", "learned_relative_attention"),
    ],
)
def test_a_check_that_refuses_nothing_is_noticed(
    module: Any, check: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, check, (lambda *given: True) if check == "bind" else accept)
    with pytest.raises((AssertionError, AttributeError, KeyError, TypeError)):
        test_a_right_call_is_accepted_and_a_wrong_one_refused_by_name(name)
