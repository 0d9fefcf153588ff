"""
Each numbered clause of the specification has an example, which holds for the specification and its
vectorised form, and not for functions of which the clause is false.
"""

from importlib import import_module
from pathlib import Path

import pytest

from attnverify import numpy_ref, spec
from attnverify.catalogue.docstrings import clauses
from attnverify.catalogue.operation import CATALOGUE
from tests.spec.clauses.registry import EXAMPLES, Function, Shown

HERE = Path(__file__).parent
for chapter in sorted((HERE / "clauses").rglob("*.py")):
    name = ".".join(chapter.relative_to(HERE).with_suffix("").parts)
    import_module(f"tests.spec.{name}")

TOLD = {(name, number) for name in CATALOGUE for number in clauses(CATALOGUE[name].specification)}
each_example = pytest.mark.parametrize(
    "shown", EXAMPLES, ids=lambda shown: f"{shown.operation} {shown.number}"
)
TWINS = [
    pytest.param(shown, twin, id=f"{shown.operation} {shown.number} {shown.example.__name__} {at}")
    for shown in EXAMPLES
    for at, twin in enumerate(shown.twins)
]


def test_each_clause_has_an_example() -> None:
    assert {(shown.operation, shown.number) for shown in EXAMPLES} == TOLD


@pytest.mark.parametrize("column", [spec, numpy_ref], ids=["spec", "numpy_ref"])
@each_example
def test_a_clause_is_true(shown: Shown, column: object) -> None:
    shown.example(getattr(column, shown.by))


@pytest.mark.parametrize(("shown", "twin"), TWINS)
def test_a_function_that_breaks_a_clause_is_noticed(shown: Shown, twin: Function) -> None:
    with pytest.raises(AssertionError):
        shown.example(twin)


def test_each_example_has_a_twin() -> None:
    assert all(shown.twins for shown in EXAMPLES)
