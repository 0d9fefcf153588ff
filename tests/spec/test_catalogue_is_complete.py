"""
The columns: each has the whole catalogue under the specification's names, and refuses what the
specification refuses in the specification's words.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.backends.source import PROJECT_BACKENDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.catalogue.traits import CHAPTERS
from attnverify.checks.invalid_calls import calls_refused_by_spec

BY_AUTOGRAD = {"torch_impl"}
"""Columns whose library differentiates by itself, so that they export no gradients."""

MESSAGE = re.compile(r"(?P<argument>[\w.]+): wanted (?P<wanted>[^\n]+), got (?P<got>[^\n]+)")
FORWARD = [name for name, operation in CATALOGUE.items() if not operation.is_gradient]
GRADIENTS = [name for name, operation in CATALOGUE.items() if operation.is_gradient]

each_column = pytest.mark.parametrize("column", PROJECT_BACKENDS)
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS)


@pytest.fixture(scope="module")
def backends() -> dict[str, Backend]:
    return {column: load(column) for column in PROJECT_BACKENDS}


def expected(column: str) -> list[str]:
    return FORWARD if column in BY_AUTOGRAD else [*FORWARD, *GRADIENTS]


def chapter_of(column: str, chapter: str) -> Any:
    return importlib.import_module(f"attnverify.{column}.{chapter}")


# every operation, its parameters, every chapter


@each_column
@each_chapter
def test_a_chapter_has_its_file_in_every_column_and_names_all_its_operations(column, chapter):
    module = chapter_of(column, chapter)
    wanted = {name for name in expected(column) if CATALOGUE[name].chapter == chapter}
    assert Path(str(module.__file__)).stem == chapter
    assert wanted <= set(module.__all__)
    assert all(callable(getattr(module, name)) for name in module.__all__)


@pytest.mark.parametrize("column", ("spec", *PROJECT_BACKENDS))
@each_chapter
def test_what_a_chapter_names_is_an_operation_or_an_operation_and_how(column, chapter):
    operations = [name for name, operation in CATALOGUE.items() if operation.chapter == chapter]
    for name in chapter_of(column, chapter).__all__:
        assert name in operations or (
            column != "spec" and any(name.startswith(f"{operation}_") for operation in operations)
        )


@pytest.mark.parametrize("package", ("spec", "numpy_ref"))
def test_a_package_that_gathers_its_chapters_names_everything_in_them(package):
    gathered = importlib.import_module(f"attnverify.{package}")
    assert sorted(gathered.__all__) == sorted(CATALOGUE)
    assert all(
        getattr(gathered, name) is getattr(chapter_of(package, CATALOGUE[name].chapter), name)
        for name in CATALOGUE
    )


MORE = {
    name: [["dtype"], ["dtype", "device"]] if operation.takes_dtype else [["device"]]
    for name, operation in CATALOGUE.items()
    if not operation.axes
}
"""What may follow the specification's parameters where no input has a dtype or a place."""


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Names and defaults; that there is a record of options, in front."""
    found = list(inspect.signature(function).parameters.values())
    records = [("**options", "") for each in found if each.kind is each.VAR_KEYWORD]
    single = [each for each in found if each.kind is not each.VAR_KEYWORD]
    return records + [(each.name, each.default) for each in single]


def differing_parameters(name: str, function: Callable[..., Any]) -> list[Any]:
    """The parameters in which a function differs from the specification."""
    wanted, ours = parameters(CATALOGUE[name].specification), parameters(function)
    more = [parameter for parameter, _ in ours[len(wanted) :]]
    allowed = [[], *MORE.get(name, [])]
    return [*set(ours[: len(wanted)]) ^ set(wanted), *(more if more not in allowed else [])] or (
        [] if ours[: len(wanted)] == wanted else ["order"]
    )


@each_column
def test_parameters_are_those_of_the_specification_in_its_order_with_its_defaults(column):
    functions = {
        name: getattr(chapter_of(column, CATALOGUE[name].chapter), name)
        for name in expected(column)
    }
    assert {
        name: found
        for name, function in functions.items()
        if (found := differing_parameters(name, function))
    } == {}


@pytest.mark.parametrize("function", [
    lambda score: 0,
    lambda score, mask: 0,
    lambda mask=None, score=0: 0,
    lambda score, mask=0: 0,
    lambda score, masks=None: 0,
    lambda score, mask=None, dtype=None: 0,
    lambda score, mask=None, **options: 0,
])  # fmt: skip
def test_parameters_that_are_not_those_of_the_specification_are_noticed(function):
    assert differing_parameters("softmax", function)


def test_a_dtype_where_no_input_is_float_is_no_difference():
    assert differing_parameters("get_slopes", lambda n_heads, dtype=None, device=None: 0) == []
    assert differing_parameters("get_slopes", lambda n_heads, device=None: 0) == ["device"]


# invalid calls


def test_the_specification_refuses_invalid_calls_of_every_operation():
    calls = {name: len(calls_refused_by_spec(name)) for name in CATALOGUE}
    assert sum(calls.values()) >= 60 and min(calls.values()) >= 1


def in_specification(operation: str, inputs: dict[str, Any]) -> str:
    """The argument that the specification's refusal names."""
    with np.errstate(all="ignore"), pytest.raises(ValueError) as refusal:
        CATALOGUE[operation].specification(**inputs)
    found = MESSAGE.fullmatch(str(refusal.value))
    assert found, f"the specification's own refusal: {refusal.value}"
    return found["argument"]


def badly_refused(implementation: Implementation, words: str, inputs: dict[str, Any]) -> str | None:
    """How an invalid call is not refused as the specification does; None if it is."""
    library = implementation.backend.library
    try:
        implementation.function(
            **map_leaves(
                lambda x: library.from_numpy(x, "float64") if isinstance(x, np.ndarray) else x,
                inputs,
            )
        )
    except ValueError as error:
        found, wanted = (
            MESSAGE.fullmatch(str(error)),
            in_specification(implementation.operation.name, inputs),
        )
        return (
            None
            if found and found["argument"] == wanted
            else f"{words}: wanted a message about {wanted}, got {error}"
        )
    except Exception as error:
        return f"{words}: wanted ValueError, got {type(error).__name__}: {error}"
    return f"{words}: accepted"


@pytest.mark.parametrize(
    ("column", "operation"),
    [(column, operation) for column in PROJECT_BACKENDS for operation in expected(column)],
)
def test_an_invalid_call_is_refused_with_the_argument_that_the_specification_names(
    column, operation, backends
):
    implementations = [i for i in backends[column].implementations if i.operation.name == operation]
    assert implementations
    calls = calls_refused_by_spec(operation).items()
    found = [
        f"{i.name} {text}"
        for i in implementations
        for words, inputs in calls
        if (text := badly_refused(i, words, inputs))
    ]
    assert found == [], "\n".join(found)


def user_implementation(operation: str, function: Callable[..., Any]) -> Implementation:
    return Implementation(load("numpy_ref"), CATALOGUE[operation], "", function)


def raises(error: Exception) -> Callable[..., Any]:
    def function(**inputs: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(("function", "complaint"), [
    (lambda **inputs: None, "accepted"),
    (raises(TypeError("score: wanted a float array [... N M], got int64 (5, 7)")),
         "wanted ValueError, got TypeError"),
    (raises(AssertionError()), "wanted ValueError, got AssertionError"),
    (raises(NotImplementedError("integers")), "wanted ValueError, got NotImplementedError"),
    (raises(ValueError("bad score")), "wanted a message about score, got bad score"),
    (raises(ValueError("mask: wanted a float array, got int64")), "wanted a message about score, "
                                                                  "got mask: "),
    (raises(ValueError("score: wanted a float array,\ngot int64")), "wanted a message about score, "
                                                                    "got score: "),
])  # fmt: skip
def test_a_refusal_in_other_words_is_noticed(function, complaint):
    inputs = calls_refused_by_spec("softmax")["score of integers"]
    assert f"score of integers: {complaint}" in str(
        badly_refused(user_implementation("softmax", function), "score of integers", inputs)
    )
