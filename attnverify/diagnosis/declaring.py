"""
The line of PRECISION that declares what a diagnosis has found: it keeps what a file says already,
and lines of several findings are one.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.precision import find_fields, names_fields

Plain = dict[str, Any]


def declare(implementation: Implementation, found: Mapping[str, Plain]) -> str:
    """Write the value of PRECISION that says what was ``found`` too, fields by their dtype."""
    said = implementation.backend.precision
    for dtype, fields in found.items():
        names = implementation.operation.name, implementation.name
        shown = implementation.shown.get(dtype, {})
        said = with_fields(said, names, dtype, shown | fields)
    return written(said)


def with_fields(said: Any, names: tuple[str, str], dtype: str, more: Plain) -> Plain:
    """Add fields in a dtype to what is said of an implementation, and keep all else."""
    asked = [*reversed(names), dtype, "*"]
    key = next((x for x in asked if isinstance(said, Mapping) and x in said), None)
    if isinstance(said, Mapping) and key is not None and key != dtype:
        inner = said[key]
        if key != "*" or (isinstance(inner, Mapping) and dtype in inner):
            return {**said, key: with_fields(inner, names, dtype, more)}
    fields = find_fields(said, *names, dtype) | more
    if isinstance(said, Mapping) and not names_fields(said):
        return {**said, dtype: fields}
    return ({} if said is None else {"*": said}) | {dtype: fields}


def together(lines: Iterable[str]) -> str:
    """Write in one value what several say; they agree where they speak of the same."""
    said: Plain = {}
    for line in lines:
        said = merged(said, json.loads(line.replace(": True", ": true")))
    return written(said)


def merged(one: Any, other: Any) -> Any:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    return one | {key: merged(one.get(key), value) for key, value in other.items()}


def written(said: Any) -> str:
    """Write a value of PRECISION as Python has it."""
    return json.dumps(said, default=dict).replace(": true", ": True")
