"""
Making specifications operations of the catalogue, in this process and those it starts;
finding what a file specifies: functions with annotated axes, or the model of a problem file.
"""

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from attnverify import bounds
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.outside import ANSWERS
from attnverify.derived.tracing.node import NotUnderstood
from attnverify.inputs.recipe import Recipe
from attnverify.specified.form import Form, check_following, form_of
from attnverify.specified.operation import CHAPTER, SpecifiedOperation
from attnverify.specified.reading import checked, hints_of, taking

PROBLEM = ("Model", "get_inputs", "get_init_inputs")
"""What a problem file has, as those of KernelBench."""


def load_module(path: Path) -> ModuleType:
    """
    Load a file under a name of its own, so that it shadows nothing. Raises ValueError where it
    cannot be imported.
    """
    name = f"attnverify_specification_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"--spec: wanted a file of Python, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"--spec: {path.name} cannot be imported: {words}") from error
    return module


def find_specifications(text: str) -> list[Any]:
    """
    Find the specifications of ``my_spec.py`` or ``my_spec.py:function``: its public functions with
    annotated axes, or the model of a problem file. Raises ValueError where there is none.
    """
    place, _, named = text.partition(":")
    if Path(place).suffix == ".json":
        from attnverify.specified.pytorch.definitions import Definition

        return [Definition(Path(place).absolute()).form()]
    module = load_module(Path(place).absolute())
    if all(hasattr(module, name) for name in PROBLEM):
        from attnverify.specified.pytorch.problems import Problem

        return [Problem(Path(place).absolute()).form(module.Model.forward)]
    if named:
        if not callable(getattr(module, named, None)):
            raise ValueError(f"--spec: wanted a function of {place}, got {named}")
        return [getattr(module, named)]
    own = [
        each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and name[0] != "_"
    ]
    found: list[Callable[..., Any]] = [each for each in own if has_axes(each)]
    if not found:
        names = ", ".join(each.__name__ for each in own) or "none"
        raise ValueError(
            f'--spec: wanted a function with annotated axes, as x: Float[ndarray, "B N"], in '
            f"{place}, got {names}"
        )
    return found


def has_axes(function: Callable[..., Any]) -> bool:
    """Tell whether some annotation of a function names axes."""
    hints = hints_of(function).values()
    parts = [part for hint in hints for part in (hint, *get_args(hint))]
    return any(hasattr(part, "dim_str") for part in parts)


def register(function: Callable[..., Any] | Form, source: str = "") -> SpecifiedOperation:
    """
    Make a specification, and its gradient, operations of the catalogue for this process. Raises
    ValueError where it cannot be read, and NotUnderstood where it cannot be traced.
    """
    form = function if isinstance(function, Form) else form_of(function)
    name = form.name
    if not isinstance(CATALOGUE.get(name), SpecifiedOperation | None):
        raise ValueError(f"--spec: wanted a name that the catalogue has not, got {name}")
    if name in CATALOGUE:
        forget_cases()
    made = specify(form, source)
    for operation in made:
        CATALOGUE[operation.name] = operation
        bounds.BOUNDS[operation.name] = operation.bound
    try:
        for operation in made:
            recipe = Recipe(operation.name, **next(operation.fixed()))
            inputs = operation.expand(recipe, "float64")
            operation.derived(inputs)
            if not operation.is_gradient:
                check_following(form, inputs)
    except Exception:
        for operation in made:
            del CATALOGUE[operation.name], bounds.BOUNDS[operation.name]
        raise
    for kind, answer in form.answers.items():
        ANSWERS.setdefault(kind, {})[name] = answer
    return made[0]


def forget_cases() -> None:
    """Forget what was computed of an operation: another function has its name now."""
    modules = [m for name, m in sys.modules.items() if name.startswith("attnverify.")]
    for thing in [thing for module in modules for thing in vars(module).values()]:
        is_memory = hasattr(thing, "cache_clear") and thing.__module__.startswith("attnverify.")
        if is_memory and OF_AN_OPERATION.intersection(inspect.signature(thing).parameters):
            thing.cache_clear()


OF_AN_OPERATION = {"operation", "case", "implementation", "recipe"}
"""What a function takes that remembers something of an operation; others remember processes."""


def specify(form: Form, source: str) -> list[SpecifiedOperation]:
    """
    Build the operation and its gradient; none of a function with an argument called d_..., which
    is a gradient itself, or that decides by the order of its values.
    """
    name, arguments = form.name, form.arguments
    specification = checked(form.in_numpy(form.function), arguments)
    forward = SpecifiedOperation(name, CHAPTER, specification, form, source)
    floats = [one for one in arguments if one.kind == "float"]
    if not floats or form.dtype or any(one.name.startswith("d_") for one in arguments):
        return [forward]
    back = replace(forward, name=f"{name}_grad")
    gradient = _gradient_of(back, count_outputs(forward))
    return [forward, replace(back, specification=gradient)]


def count_outputs(operation: SpecifiedOperation) -> int:
    """Count the arrays that it returns, on its usual case."""
    recipe = Recipe(operation.name, **next(operation.fixed()))
    return len(operation.derived(operation.expand(recipe, "float64")).nodes)


def _gradient_of(operation: SpecifiedOperation, outputs: int) -> Callable[..., Any]:
    """The gradients by every float input, as a specification of its own."""

    def gradient(**inputs: Any) -> Any:
        return operation.derived(inputs).values

    names = ["d_output", *(f"d_output_{k}" for k in range(1, outputs))]
    given = inspect.signature(operation.specification).parameters.values()
    own = [*taking(names).parameters.values(), *given]
    gradient.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    gradient.__doc__ = f"The gradients of {operation.form.name}, differentiated on its own graph."
    return gradient


VARIABLE = "ATTNVERIFY_SPECIFICATION"
"""Names the specifications of a run to the processes that it starts."""


def register_file(text: str) -> tuple[str, ...]:
    """
    Register the specifications of a file, or the one that is named, here and in the processes that
    are started from here; their names. Raises ValueError, with the line, where one raises an error.
    """
    place, _, named = text.partition(":")
    source = f"{Path(place).absolute()}{':' * bool(named)}{named}"
    try:
        names = tuple(register(one, source).name for one in find_specifications(source))
    except NotUnderstood:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [one.lineno for one in frames if one.filename == str(Path(place).absolute())]
        if not own:
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"--spec: {Path(place).name}:{own[-1]}: {words}") from error
    told = os.environ.get(VARIABLE, "").split("\n")
    os.environ[VARIABLE] = "\n".join(dict.fromkeys([*filter(None, told), source]))
    return names


def find_specified(name: str) -> SpecifiedOperation:
    """Find an operation from outside by its name."""
    found = CATALOGUE[name]
    assert isinstance(found, SpecifiedOperation)
    return found


def register_inherited() -> None:
    """Register what the process has registered that started this one."""
    for source in filter(None, os.environ.get(VARIABLE, "").split("\n")):
        register_file(source)


def is_specified_otherwise(operation: str, source: str) -> bool:
    """Tell whether the catalogue has the operation by another specification than the ``source``."""
    known = CATALOGUE.get(operation)
    return bool(source and known) and getattr(known, "source", "") != source


def register_recorded(operation: str, source: str) -> None:
    """Register the specification that a record speaks of, where it is not there already."""
    if source and (operation not in CATALOGUE or is_specified_otherwise(operation, source)):
        register_file(source)
