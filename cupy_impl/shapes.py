"""
How an invalid call is refused: ``<argument>: wanted <what>, got <what came>``, from dtypes and
shapes alone, which never wait for a device.

A layout maps arguments to their axes, ``{"query": "B H N D"}``: a letter is one size wherever it
stands, ``2P`` an even one, ``...`` the same leading axes everywhere, and a trailing ``?`` allows
None.
"""

import functools
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from .arrays import ARRAYS, FLOATS, NOT_PLAIN, is_array, is_float

Layout = Mapping[str, str]
FORMATS = " or ".join((", ".join(FLOATS[:-1]), FLOATS[-1]))


def check(layout: Layout, *arrays: Any, **sizes: Any) -> dict[str, Any]:
    """
    Hold float arrays to a layout; ``sizes`` are letters that are known before. Returns all letters.
    """
    for (name, axes), array in zip(layout.items(), arrays, strict=True):
        if array is None and axes.endswith("?"):
            continue
        axes = axes.rstrip("?")
        if not (is_array(array) and is_float(array)):
            raise ValueError(f"{name}: wanted an array [{axes}] of {FORMATS}, got {kind(array)}")
        bound = bind(axes, array.shape, sizes)
        if bound is None:
            known = " ".join(f"{letter}={size}" for letter, size in sizes.items() if letter in axes)
            raise ValueError(
                f"{name}: wanted shape [{axes}] with {known or 'sizes of at least 1'}, got "
                f"{array.shape}"
            )
        sizes = bound
    return sizes


def bind(axes: str, shape: tuple[int, ...], sizes: dict[str, Any]) -> dict[str, Any] | None:
    """The sizes and those that this shape adds to them, or None where it does not fit."""
    leading, sized = parse(axes)
    free = len(shape) - len(sized)
    if free < 0 or (free and not leading):
        return None
    sizes = dict(sizes)
    if leading and (0 in shape[:free] or sizes.setdefault("...", shape[:free]) != shape[:free]):
        return None
    for (factor, letter), size in zip(sized, shape[free:], strict=True):
        whole, rest = divmod(size, factor)
        if rest or (size == 0 and letter != "S") or sizes.setdefault(letter, whole) != whole:
            return None
    return sizes


@functools.cache
def parse(axes: str) -> tuple[bool, tuple[tuple[int, str], ...]]:
    """'... 2P D' as (True, ((2, 'P'), (1, 'D')))."""
    words = axes.split()
    return "..." in words, tuple((int(word[:-1] or 1), word[-1]) for word in words if word != "...")


def check_parameters(layout: Layout, parameters: Any, **sizes: Any) -> dict[str, Any]:
    """Hold a layer's mapping to its layout: every name that is not optional, and no other."""
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"parameters: wanted a mapping with {', '.join(layout)}, got {kind(parameters)}"
        )
    if unknown := [str(name) for name in parameters if name not in layout]:
        raise ValueError(f"parameters: wanted {', '.join(layout)}, got {', '.join(unknown)}")
    if absent := [
        name for name, axes in layout.items() if name not in parameters and not axes.endswith("?")
    ]:
        raise ValueError(
            f"parameters: wanted {', '.join(absent)}, got {', '.join(parameters) or 'nothing'}"
        )
    return check(layout, *(parameters.get(name) for name in layout), **sizes)


def check_integer(name: str, number: Any, least: int = 1) -> None:
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise ValueError(f"{name}: wanted an integer of at least {least}, got {number!r}")


def check_heads(F: int, num_heads: Any) -> None:
    check_integer("num_heads", num_heads)
    if F % num_heads:
        raise ValueError(f"num_heads: wanted a divisor of the model width F={F}, got {num_heads}")


def check_list(name: str, things: Any, length: int | None = None) -> None:
    """Hold a list to one entry a layer."""
    is_list = isinstance(things, list | tuple)
    if not is_list or not things or length not in (None, len(things)):
        wanted = f"a list with one entry for each of the {length or 'L'} layers"
        raise ValueError(f"{name}: wanted {wanted}, got {len(things) if is_list else kind(things)}")


def check_mask(name: str, mask: Any, shape: tuple[int, ...], float_too: bool = False) -> None:
    """
    Hold a mask, where there is one, to booleans (or floats) that broadcast to the score without
    enlarging it.
    """
    if mask is None:
        return
    if not (is_array(mask) and (mask.dtype == bool or (float_too and is_float(mask)))):
        raise ValueError(
            f"{name}: wanted a boolean {'or float ' if float_too else ''}array, got {kind(mask)}"
        )
    tail = shape[len(shape) - mask.ndim :]
    if mask.ndim > len(shape) or any(
        size not in (1, most) for size, most in zip(mask.shape, tail, strict=True)
    ):
        raise ValueError(f"{name}: wanted a shape that broadcasts to {shape}, got {mask.shape}")


def check_dropout(keep: Any, p: Any) -> None:
    if not (isinstance(p, int | float) and 0 <= p < 1):
        raise ValueError(f"p: wanted a number with 0 <= p < 1, got {p!r}")
    if keep is None and p > 0:
        raise ValueError(f"keep: wanted a boolean array because p is {p}, got None")


def kind(thing: Any) -> str:
    """What came, in a few words: what is not plain about an array, its dtype and shape."""
    if not isinstance(thing, ARRAYS):
        return type(thing).__name__
    swapped = "" if thing.dtype.isnative else "byte-swapped "
    named = f"{type(thing).__name__} " if isinstance(thing, NOT_PLAIN) else ""
    return f"{swapped}{named}{thing.dtype.name} {thing.shape}"
