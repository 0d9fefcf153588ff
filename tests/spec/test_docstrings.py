"""
The specification is its own documentation: every operation has numbered clauses, a source and an
example, and the examples run.
"""

import doctest
import inspect

import pytest

from attnverify import spec
from attnverify.catalogue.operation import CATALOGUE

FINDER = doctest.DocTestFinder(recurse=False)
each_operation = pytest.mark.parametrize("operation", CATALOGUE)


def failures(function: object, name: str, names: dict[str, object]) -> tuple[int, list[str]]:
    """How many examples a docstring has, and what was said about those that fail."""
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    results = [
        runner.run(test, out=said.append) for test in FINDER.find(function, name, globs=dict(names))
    ]
    return sum(result.attempted for result in results), said


@each_operation
def test_the_examples_of_an_operation_give_what_they_print(operation):
    attempted, said = failures(
        CATALOGUE[operation].specification,
        operation,
        vars(inspect.getmodule(CATALOGUE[operation].specification)),
    )
    assert attempted >= 1 and said == [], "".join(said)


@each_operation
def test_the_docstring_of_an_operation_has_numbered_clauses_and_a_source(operation):
    text = inspect.getdoc(CATALOGUE[operation].specification)
    assert "\n1. " in text
    assert "\nSource: " in text or CATALOGUE[operation].is_gradient


@each_operation
def test_the_docstring_of_an_operation_has_its_formula(operation):
    assert (
        ".. math::" in inspect.getdoc(CATALOGUE[operation].specification)
        or operation == "init_mems"
    )  # zeros


def test_clauses_are_numbered_in_order():
    for operation in CATALOGUE.values():
        numbers = [
            int(line.split(".")[0])
            for line in inspect.getdoc(operation.specification).splitlines()
            if line.split(". ")[0].isdigit()
        ]
        assert numbers == list(range(1, len(numbers) + 1)), operation.name


def test_an_example_that_prints_another_number_is_noticed():
    def wrong() -> None:
        """
        >>> spec.get_slopes(1).item()
        0.25
        """

    attempted, said = failures(wrong, "wrong", {"spec": spec})
    assert attempted == 1 and "Expected:\n    0.25\nGot:\n    0.00390625" in "".join(said)
