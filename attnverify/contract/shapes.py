"""
Arrays and their axes, by letters: ``"query [... N D], key [... M D], mem? [B S F]"``.

A letter is one size wherever it stands, ``2P`` an even size, ``...`` the same leading axes
everywhere, and ``name?`` may be None. Every size is at least 1, but S, the length of a memory, may
be 0.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnverify.contract.arrays import FLOAT, Arrays

PATTERN = re.compile(r"([\w.]+)(\??) \[([^\]]*)\]")


Axes = NamedTuple(  # noqa: UP014 - a live cell of the book has no annotations of classes
    "Axes",
    [
        ("name", str),
        ("optional", bool),
        ("text", str),
        ("leading", bool),
        ("sizes", tuple[tuple[int, str], ...]),
    ],
)
"""One argument: its name, whether it may be None, its axes as text, and as (factor, letter)."""


Pattern = tuple[Axes, ...]


def pattern(text: str) -> Pattern:
    """Read a pattern once, when a module is imported."""
    return tuple(read_axes(*found) for found in PATTERN.findall(text))


def read_axes(name: str, optional: str, text: str) -> Axes:
    """Read ``2P H D`` as the sizes (2, "P"), (1, "H"), (1, "D")."""
    letters = [axis for axis in text.split() if axis != "..."]
    sizes = tuple((int(axis[:-1] or 1), axis[-1]) for axis in letters)
    return Axes(name, bool(optional), text, "..." in text, sizes)


def check(arrays: Arrays, wanted: Pattern, *given: Any, **sizes: Any) -> dict[str, Any]:
    """Hold float arrays to their axes; ``sizes`` are letters known before. Returns all letters."""
    for axes, array in zip(wanted, given, strict=True):
        if array is None and axes.optional:
            continue
        if arrays.kind(array) != FLOAT:
            raise ValueError(
                f"{axes.name}: wanted a float {arrays.noun} [{axes.text}], got "
                f"{arrays.describe(array)}"
            )
        before, shape = len(sizes), tuple(array.shape)
        if not bind(axes, shape, sizes):
            told = known(axes, dict(list(sizes.items())[:before]), shape)
            raise ValueError(f"{axes.name}: wanted shape [{axes.text}] with {told}, got {shape}")
    return sizes


def bind(axes: Axes, shape: tuple[Any, ...], sizes: dict[str, Any]) -> bool:
    """Whether a shape fits the sizes so far; adds those of its letters that are new."""
    first = len(shape) - len(axes.sizes)
    if first < 0 or (first > 0 and not axes.leading):
        return False
    if axes.leading:
        lead, shape = shape[:first], shape[first:]
        if 0 in lead or sizes.setdefault("...", lead) != lead:
            return False
    for size, (factor, letter) in zip(shape, axes.sizes, strict=True):
        if factor != 1:
            if size % factor:
                return False
            size //= factor
        if (size == 0 and letter != "S") or sizes.setdefault(letter, size) != size:
            return False
    return True


def known(axes: Axes, sizes: dict[str, Any], shape: tuple[int, ...]) -> str:
    """What was wanted of the letters; where one of them is 0, also that none may be."""
    letters = dict.fromkeys(["..."] * axes.leading + [letter for _, letter in axes.sizes])
    given = " ".join(f"{letter}={sizes[letter]}" for letter in letters if letter in sizes)
    last_first = zip(reversed(shape), reversed(axes.sizes), strict=False)
    empty = any(size == 0 and letter != "S" for size, (_, letter) in last_first)
    least = "sizes of at least 1"
    return f"{given} and {least}" if given and empty else given or least


def check_parameters(arrays: Arrays, wanted: Pattern, parameters: Any, **sizes: Any) -> None:
    """
    The same for a layer's mapping from name to array: no name may miss (but ``name?``) and none may
    be unknown.
    """
    names = [argument.name for argument in wanted]
    if not isinstance(parameters, Mapping):
        came = arrays.describe(parameters)
        raise ValueError(f"parameters: wanted a mapping with {', '.join(names)}, got {came}")
    if unknown := sorted(map(str, set(parameters) - set(names))):
        raise ValueError(f"parameters: wanted {', '.join(names)}, got {', '.join(unknown)}")
    if missing := [
        argument.name
        for argument in wanted
        if not argument.optional and argument.name not in parameters
    ]:
        raise ValueError(
            f"parameters: wanted {', '.join(missing)}, got "
            f"{', '.join(sorted(parameters)) or 'nothing'}"
        )
    check(arrays, wanted, *(parameters.get(name) for name in names), **sizes)
