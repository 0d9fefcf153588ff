"""
What a call must look like, and the ``ValueError`` it gets otherwise:
``<argument>: wanted <what>, got <what came>``.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy import ndarray

__all__ = [
    "hold",
    "hold_heads",
    "hold_integer",
    "hold_layers",
    "hold_mask",
    "hold_parameters",
    "is_float",
]


def is_float(thing: Any) -> bool:
    """
    A real floating array; ml_dtypes' formats are known by their name, so that nothing has to be
    imported.
    """
    if not isinstance(thing, ndarray):
        return False
    return thing.dtype.kind == "f" or (thing.dtype.kind == "V" and "float" in thing.dtype.name)


def hold(known: Mapping[str, Any] | None = None, /, **wanted: tuple[Any, str]) -> dict[str, Any]:
    """
    Hold each ``name=(array, "B 2P D")`` to float and to its axes; the sizes that the letters turn
    out to have.

    A leading ``...`` stands for axes that are the same everywhere. Only S may be 0.
    """
    sizes = dict(known or {})
    for name, (array, axes) in wanted.items():
        if not is_float(array):
            raise ValueError(f"{name}: wanted a float array [{axes}], got {described(array)}")
        found = measured(axes, array.shape)
        if found is None or any(sizes.get(letter, size) != size for letter, size in found):
            bound = ", ".join(
                f"{letter}={size}" for letter, size in sizes.items() if letter in axes
            )
            raise ValueError(
                f"{name}: wanted shape [{axes}] with {bound or 'no size 0'}, got {array.shape}"
            )
        if len(dict(found)) < len(set(found)):
            raise ValueError(
                f"{name}: wanted shape [{axes}], the same size for the same letter, got "
                f"{array.shape}"
            )
        sizes.update(found)
    return sizes


def measured(axes: str, shape: tuple[int, ...]) -> list[tuple[str, Any]] | None:
    """The size of each letter, or None where the shape has other axes."""
    lead, named = parsed(axes)
    front = len(shape) - len(named)
    if front < 0 or (front > 0 and not lead) or 0 in shape[:front]:
        return None
    found: list[tuple[str, Any]] = [("...", shape[:front])] if lead else []
    for (factor, letter), size in zip(named, shape[front:], strict=True):
        if size % factor or (size == 0 and letter != "S"):
            return None
        found.append((letter, size // factor))
    return found


@cache
def parsed(axes: str) -> tuple[bool, tuple[tuple[int, str], ...]]:
    words = axes.split()
    return words[:1] == ["..."], tuple(
        (int(word[:-1] or 1), word[-1]) for word in words if word != "..."
    )


def hold_parameters(parameters: Any, known: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    """
    Hold a layer's mapping to the names and axes of ``wanted``; a name that ends in ``.bias`` may be
    absent or None.
    """
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"parameters: wanted a mapping from name to array, got {described(parameters)}"
        )
    unknown = [str(name) for name in parameters if name not in wanted]
    absent = [name for name in wanted if name not in parameters and not name.endswith(".bias")]
    if unknown or absent:
        came = ", ".join(unknown) or f"no {', '.join(absent)}"
        raise ValueError(f"parameters: wanted {', '.join(wanted)} (a .bias may miss), got {came}")
    there = {
        name: axes
        for name, axes in wanted.items()
        if not (name.endswith(".bias") and parameters.get(name) is None)
    }
    hold(known, **{name: (parameters[name], axes) for name, axes in there.items()})


def hold_integer(name: str, number: Any, least: int = 1) -> None:
    if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name}: wanted an integer of at least {least}, got {number!r}")


def hold_heads(F: int, num_heads: Any) -> int:
    """The width of one head."""
    hold_integer("num_heads", num_heads)
    width, rest = divmod(F, int(num_heads))
    if rest:
        raise ValueError(f"num_heads: wanted a divisor of the model width F={F}, got {num_heads}")
    return width


def hold_layers(name: str, things: Any, layers: int | None = None) -> None:
    if (
        not isinstance(things, (list, tuple))
        or not things
        or (layers is not None and len(things) != layers)
    ):
        came = len(things) if isinstance(things, (list, tuple)) else described(things)
        raise ValueError(
            f"{name}: wanted a list with one entry for each of the {layers or 'L'} layers, got "
            f"{came}"
        )


def hold_mask(name: str, mask: Any, shape: tuple[int, ...], floats: bool = False) -> None:
    """Hold a mask to booleans (or floats) that broadcast to the score without enlarging it."""
    if mask is None:
        return
    if not (isinstance(mask, ndarray) and mask.dtype == bool) and not (floats and is_float(mask)):
        raise ValueError(
            f"{name}: wanted a boolean {'or float ' if floats else ''}array, got {described(mask)}"
        )
    # from the last axis backwards, as broadcasting pairs them
    if mask.ndim > len(shape) or any(
        size not in (1, full) for size, full in zip(mask.shape[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(f"{name}: wanted a shape that broadcasts to {shape}, got {mask.shape}")


def described(thing: Any) -> str:
    return f"{thing.dtype} {thing.shape}" if isinstance(thing, ndarray) else type(thing).__name__
