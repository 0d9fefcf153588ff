"""Controls: right implementations that compute in unusual ways. Whoever judges must not accuse."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from attnverify.faults.registry import Fault, Function, named, register

CONTROLS: dict[str, Fault] = {}


def read_controls() -> dict[str, Fault]:
    """All controls, once the modules beside this one are imported."""
    for module in ("forward", "backward", "today"):
        importlib.import_module(f"tests.attnverify.faults.controls.{module}")
    return CONTROLS


def control(kind: str, words: str, **more: Any) -> Callable[[Function], Function]:
    """
    Register the decorated function among the controls: right, in an unusual way that ``words``
    names.
    """
    said = {"source": "this project", "clause": "", "reveals": "", "wrong_in": ()}
    return register(CONTROLS, **said | {"kind": kind, "words": words} | more)


def add_controls(kind: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Register controls likewise: rows of name, words, and what is unusual."""
    for name, words, unusual, *more in rows:
        control(kind, words, **(more[0] if more else {}))(named(name, unusual))
