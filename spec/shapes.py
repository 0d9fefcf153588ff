"""
How an invalid call is refused: a ``ValueError`` in one line,
``<argument>: wanted <what>, got <what came>``.

A pattern names arrays and their axes, ``"query [... N D], key [... M D]"``. A letter is one size
wherever it stands, ``2P`` an even size, ``...`` the same leading axes everywhere, and ``name?`` may
be None. Every size is at least 1, but S, the length of a memory, may be 0.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

PATTERN = re.compile(r"([\w.]+)(\??) \[([^\]]*)\]")


def check(pattern: str, *arrays: Any, **sizes: Any) -> None:
    """Hold each array to its axes; ``sizes`` are letters that are known already."""
    for (name, optional, axes), array in zip(PATTERN.findall(pattern), arrays, strict=True):
        if array is None and optional:
            continue
        if not (isinstance(array, np.ndarray) and np.issubdtype(array.dtype, np.inexact)):
            raise ValueError(f"{name}: wanted a float array [{axes}], got {kind(array)}")
        if not fits(axes.split(), array.shape, sizes):
            known = " ".join(
                f"{letter}={sizes[letter]}"
                for letter in re.findall(r"[A-Z]|\.\.\.", axes)
                if letter in sizes
            )
            raise ValueError(
                f"{name}: wanted shape [{axes}] with {known or 'sizes of at least 1'}, got "
                f"{array.shape}"
            )


def check_parameters(pattern: str, parameters: Any, **sizes: Any) -> None:
    """
    The same for a layer's mapping from name to array: no name may miss (but ``name?``) and none may
    be unknown.
    """
    wanted = {name: bool(optional) for name, optional, _ in PATTERN.findall(pattern)}
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"parameters: wanted a mapping with {', '.join(wanted)}, got {kind(parameters)}"
        )
    if unknown := sorted(set(parameters) - set(wanted)):
        raise ValueError(f"parameters: wanted {', '.join(wanted)}, got {', '.join(unknown)}")
    if missing := [
        name for name, optional in wanted.items() if not optional and name not in parameters
    ]:
        raise ValueError(
            f"parameters: wanted {', '.join(missing)}, got "
            f"{', '.join(sorted(parameters)) or 'nothing'}"
        )
    check(pattern, *(parameters.get(name) for name in wanted), **sizes)


def fits(axes: list[str], shape: tuple[int, ...], sizes: dict[str, Any]) -> bool:
    """Whether the shape has these axes; binds the letters that are new."""
    if axes[0] == "...":
        lead, shape = shape[: len(shape) - len(axes) + 1], shape[len(shape) - len(axes) + 1 :]
        axes = axes[1:]
        if 0 in lead or sizes.setdefault("...", lead) != lead:
            return False
    return len(axes) == len(shape) and all(
        fits_axis(axis, size, sizes) for axis, size in zip(axes, shape, strict=True)
    )


def fits_axis(axis: str, size: int, sizes: dict[str, Any]) -> bool:
    factor, letter = int(axis[:-1] or 1), axis[-1]
    whole = size % factor == 0 and (size > 0 or letter == "S")
    return whole and sizes.setdefault(letter, size // factor) == size // factor


def check_integer(name: str, number: Any, least: int = 1) -> None:
    """Hold a size or a count to the integers from ``least`` upwards."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
        raise ValueError(f"{name}: wanted an integer of at least {least}, got {number!r}")


def check_list(name: str, things: Any, length: int | None = None) -> None:
    """Hold a list to one entry for each layer."""
    wanted = f"a list with one entry for each of the {length or 'L'} layers"
    if not isinstance(things, (list, tuple)):
        raise ValueError(f"{name}: wanted {wanted}, got {kind(things)}")
    if len(things) == 0 or length not in (None, len(things)):
        raise ValueError(f"{name}: wanted {wanted}, got {len(things)}")


def check_heads(F: int, num_heads: Any) -> None:
    """Hold the head count to the divisors of the model width."""
    check_integer("num_heads", num_heads)
    if F % num_heads:
        raise ValueError(f"num_heads: wanted a divisor of the model width F={F}, got {num_heads}")


def check_mask(name: str, mask: Any, shape: tuple[int, ...], float_too: bool = False) -> None:
    """Hold a mask to booleans (or floats) that broadcast to the shape of the score."""
    kinds = "b" + "fc" * float_too
    if mask is None:
        return
    if not (isinstance(mask, np.ndarray) and mask.dtype.kind in kinds):
        raise ValueError(
            f"{name}: wanted a boolean {'or float ' * float_too}array, got {kind(mask)}"
        )
    if not broadcasts(mask.shape, shape):
        raise ValueError(f"{name}: wanted a shape that broadcasts to {shape}, got {mask.shape}")


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to the target without enlarging it."""
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(
        size in (1, wanted) for size, wanted in zip(shape, tail, strict=True)
    )


def kind(thing: Any) -> str:
    """What came, in a few words: dtype and shape of an array, otherwise the type."""
    return f"{thing.dtype} {thing.shape}" if isinstance(thing, np.ndarray) else type(thing).__name__
