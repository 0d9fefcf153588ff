"""Finding what a file specifies: functions with annotated axes, or the model of a problem file."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from attnverify.specified.reading import hints_of

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
