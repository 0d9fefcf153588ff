"""
Dataclasses as plain data, for JSON and between processes, and back: what arrives gets its types
again. And arrays as Python writes them, folded to the width of a page.
"""

import textwrap
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to

WIDTH = 96


def write_array(make: str, x: ndarray, dtype: str = "", digits: str = "float64") -> str:
    """Write an array as nested lists, on as many lines as it takes."""
    text = write_numbers(x, digits)
    line = f"{make}({text}{', ' * bool(dtype)}{dtype})"
    if len(line) <= WIDTH - len("expected = "):
        return line
    indent = " " * 4
    folded = textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return f"{make}(\n{folded},\n{indent * bool(dtype)}{dtype}{f',{chr(10)}' * bool(dtype)})"


def write_numbers(x: ndarray, dtype: str) -> str:
    """Write the numbers of an array as nested lists, each by as few digits as its dtype needs."""
    return _nested(x.tolist(), dtype)


def _nested(x: Any, digits: str) -> str:
    """Write nested lists of numbers, each by as few digits as are read as it in its dtype."""
    if isinstance(x, list):
        return f"[{', '.join(_nested(part, digits) for part in x)}]"
    return _shortest(x, digits) if isinstance(x, float) else repr(x)


def _shortest(x: float, dtype: str) -> str:
    for places in (3, 5, 7, 9):
        text = f"{x:.{places}g}"
        if round_to(np.array(float(text)), dtype) == x:
            return repr(float(text))
    return repr(x)


T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """
    Dataclasses as mappings and tuples as lists, all the way down.

    >>> from attnverify.diagnosis.cause import Cause, Explanation
    >>> to_plain(Cause("x", (Explanation("a", "b"),)))
    {'words': 'x', 'explanations': [{'name': 'a', 'words': 'b'}], 'together': False}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def from_plain(kind: type[T], value: dict[str, Any]) -> T:
    """
    Build the dataclass that its annotations describe; a field that is absent has its default, and
    one that the class does not know is left out.

    >>> from attnverify.diagnosis.cause import Cause
    >>> from_plain(Cause, {"words": "x", "explanations": [{"name": "a", "words": "b"}]})
    Cause(words='x', explanations=(Explanation(name='a', words='b'),), together=False)
    """
    known = [(name, hint) for name, hint in _hints(kind) if name in value]  # type: ignore[arg-type]
    return kind(**{name: _typed(hint, value[name]) for name, hint in known})


@lru_cache
def _hints(kind: Any) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in fields(kind) if field.init]


def _typed(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        return _typed(inner[0], value) if len(inner) == 1 else value
    if origin in (tuple, list):
        return origin(_typed(arguments[0], item) for item in value)
    if origin is dict:
        return {key: _typed(arguments[1], item) for key, item in value.items()}
    return value
