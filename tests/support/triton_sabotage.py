"""Triton kernels with a fault planted in their source, and after how many cases it shows."""

import importlib.util
import inspect
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from attnverify.backends.implementation import Implementation
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement
from attnverify.judge.judging import judge


def planted(module: ModuleType, old: str, new: str, folder: Path) -> ModuleType:
    """
    The kernels' module with every such line replaced, in a file of its own: the interpreter reads
    the source.
    """
    source = inspect.getsource(module)
    assert old in source
    path = folder / "planted.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(f"{module.__package__}.planted", path)
    assert spec is not None and spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changed)
    return changed


def put(changed: ModuleType, place: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators launch the kernels of another module."""
    for name in (
        "forward",
        "backward_query",
        "backward_key",
        "backward_table",
        "additive_forward",
        "cached_forward",
        "additive_backward",
        "exponentials",
    ):
        if hasattr(place, name):
            monkeypatch.setattr(place, name, getattr(changed, name))


def cases(operation: str) -> Iterator[Recipe]:
    """
    The draws of the default profile, after every fourth one with NaN in hidden slots, and then the
    probes.
    """
    hidden = draw_recipes(operation, "nan", 25, 0)
    for count, recipe in enumerate(draw_recipes(operation, "any", 100, 0)):
        yield from (recipe, *hidden[count // 4 : count // 4 + (count % 4 == 0)])
    yield from fixed_cases(operation)


def caught(implementation: Implementation, most: int | None = None) -> int:
    """After how many cases of the suite a wrong answer shows; 0 if it does not."""
    for count, recipe in enumerate(islice(cases(implementation.operation.name), most), 1):
        try:
            judge(implementation, case_of(recipe, "float32"))
        except Disagreement:
            return count
    return 0
