"""What is told of a function that answers a specification, asked of its cases and no whole run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import implementation_of_function, load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import diagnose
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.judging import is_right
from attnverify.specified import register

LONG = 60


def answered(law: Callable[..., Any], kernel: Any, precision: Any = None) -> list[Implementation]:
    """Register a specification; a function of PyTorch that answers it, and its gradient."""
    if getattr(CATALOGUE.get(law.__name__), "own", None) is not law:
        register(law)
    backend = Backend("mine", "mine", precision=precision)
    implementation_of_function(backend, kernel, law.__name__, "torch")
    return backend.implementations


def answered_in_file(text: str, file: str = "answer.py") -> list[Implementation]:
    """Load an answer from a file of its own, and its gradient."""
    Path(file).write_text(text)
    backend = load(str(Path(file).absolute()))
    assert not backend.broken, backend.broken
    return backend.implementations


def cases(operation: str, dtype: str = "float32", drawn: int = 0) -> Iterator[Case]:
    """What everybody meets, and some that are drawn."""
    for parts in CATALOGUE[operation].fixed():
        yield case_of(Recipe(operation, **parts), dtype)
    for recipe in draw_recipes(operation, "any", drawn, 0):
        yield case_of(recipe, dtype)


def small_cases(operation: str) -> list[Case]:
    """Those of them that have no long axis, whose bounds take longer than they tell more."""
    return [case for case in cases(operation) if max(case.recipe.sizes.values()) < LONG]


def failing(own: Implementation, among: Iterator[Case] | list[Case]) -> list[Case]:
    return [case for case in among if not is_right(own, case)]


def told(own: Implementation, among: Iterator[Case] | list[Case] | None = None) -> str:
    """The cause of what fails, of the small cases unless others are named."""
    every = [*(small_cases(own.operation.name) if among is None else among)]
    wrong = failing(own, every)
    assert wrong
    return str(diagnose(own, wrong, passing=[case for case in every if case not in wrong]))
