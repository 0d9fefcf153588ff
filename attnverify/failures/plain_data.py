"""
Dataclasses as plain data, for JSON and between processes, and back: what arrives gets its types
again.
"""

from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

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
