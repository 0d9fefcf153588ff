"""
How an invalid call is refused, in the words of the spec:
``ValueError: <argument>: wanted <what>, got <what came>``.

Only types, dtypes and shapes are looked at, never a number on the device: a check costs no
synchronisation.
"""

import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Axes(NamedTuple):
    """
    One argument of a pattern: its name, whether it may be None, its axes as text, and as (factor,
    letter).
    """

    name: str
    optional: bool
    text: str
    free: bool
    sizes: tuple[tuple[int, str], ...]


Pattern = tuple[Axes, ...]


def pattern(text: str) -> Pattern:
    """Read ``"query [... N D], mem? [B S F], table [2P H]"`` once, when a chapter is imported."""
    return tuple(axes(*found) for found in re.findall(r"([\w.]+)(\??) \[([^\]]*)\]", text))


def axes(name: str, optional: str, text: str) -> Axes:
    letters = [axis for axis in text.split() if axis != "..."]
    return Axes(
        name,
        bool(optional),
        text,
        "..." in text,
        tuple((int(axis[:-1] or 1), axis[-1]) for axis in letters),
    )


def check(wanted: Pattern, *tensors: Any, **sizes: Any) -> None:
    """Hold each tensor to its axes; one letter is one size, and ``sizes`` are known already."""
    for argument, tensor in zip(wanted, tensors, strict=True):
        if tensor is None and argument.optional:
            continue
        if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
            raise ValueError(
                f"{argument.name}: wanted a float tensor [{argument.text}], got {kind(tensor)}"
            )
        bound = bind(argument, tuple(tensor.shape), sizes)
        if bound is None:
            raise ValueError(
                f"{argument.name}: wanted shape [{argument.text}] with "
                f"{known(argument, sizes, tuple(tensor.shape))}, got {tuple(tensor.shape)}"
            )
        sizes = bound


def bind(argument: Axes, shape: tuple[int, ...], sizes: dict[str, Any]) -> dict[str, Any] | None:
    """The sizes and those that this shape adds to them, or None where it does not fit."""
    sizes, first = dict(sizes), len(shape) - len(argument.sizes)
    if first < 0 or (first > 0 and not argument.free):
        return None
    if argument.free and (
        0 in shape[:first] or sizes.setdefault("...", shape[:first]) != shape[:first]
    ):
        return None
    for size, (factor, letter) in zip(shape[first:], argument.sizes, strict=True):
        if (
            size % factor
            or (size == 0 and letter != "S")
            or sizes.setdefault(letter, size // factor) != size // factor
        ):
            return None
    return sizes


def known(argument: Axes, sizes: dict[str, Any], shape: tuple[int, ...]) -> str:
    """What was wanted of the letters; where one of them is 0, also that none may be."""
    letters = dict.fromkeys(["..."] * argument.free + [letter for _, letter in argument.sizes])
    given = " ".join(f"{letter}={sizes[letter]}" for letter in letters if letter in sizes)
    last_first = zip(reversed(shape), reversed(argument.sizes), strict=False)
    empty = any(size == 0 and letter != "S" for size, (_, letter) in last_first)
    least = "sizes of at least 1"
    return f"{given} and {least}" if given and empty else given or least


def check_parameters(wanted: Pattern, parameters: Any, **sizes: Any) -> None:
    """
    The same for a layer's mapping from name to tensor: no name may miss (but ``name?``) and none
    may be unknown.
    """
    names = [argument.name for argument in wanted]
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"parameters: wanted a mapping with {', '.join(names)}, got {kind(parameters)}"
        )
    if unknown := sorted(set(parameters) - set(names)):
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
    check(wanted, *(parameters.get(name) for name in names), **sizes)


def check_integer(name: str, number: Any, least: int = 1) -> None:
    """Hold a size or a count to the integers from ``least`` upwards; a tracer's is a tensor."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    kinds = (Integral, torch.SymInt, Tensor) if tracing else (Integral, torch.SymInt)
    whole = isinstance(number, kinds) and not isinstance(number, bool)
    if not whole or number < least:
        raise ValueError(f"{name}: wanted an integer of at least {least}, got {number!r}")


def check_integers(**numbers: Any) -> None:
    """Hold sizes to the integers from 1 upwards, by their names."""
    for name, number in numbers.items():
        check_integer(name, number)


def check_list(name: str, things: Any, length: int | None = None) -> None:
    """Hold a list to one entry for each layer."""
    wanted = f"a list with one entry for each of the {length or 'L'} layers"
    if not isinstance(things, (list, tuple)):
        raise ValueError(f"{name}: wanted {wanted}, got {kind(things)}")
    if len(things) == 0 or length not in (None, len(things)):
        raise ValueError(f"{name}: wanted {wanted}, got {len(things)}")


def check_heads(F: int, heads: Any, name: str = "num_heads") -> None:
    """Hold the head count to the divisors of the model width."""
    check_integer(name, heads)
    if F % heads:
        raise ValueError(f"{name}: wanted a divisor of the model width F={F}, got {heads}")


def check_eps(eps: Any) -> None:
    """Hold what is added to a variance to the numbers that keep it one."""
    if not (isinstance(eps, Real) and float(eps) >= 0):
        raise ValueError(f"eps: wanted a number of at least 0, got {eps!r}")


def check_align(align: Any) -> None:
    """Hold an alignment to the two that there are."""
    if align not in ("end", "start"):
        raise ValueError(f"align: wanted 'end' or 'start', got {align!r}")


def check_mask(name: str, mask: Any, shape: tuple[int, ...], float_too: bool = False) -> None:
    """
    Hold a mask to booleans (or floats) that broadcast to the shape of the score without enlarging
    it.
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor) or not (
        mask.dtype == torch.bool or (float_too and mask.dtype.is_floating_point)
    ):
        raise ValueError(
            f"{name}: wanted a boolean {'or float ' * float_too}tensor, got {kind(mask)}"
        )
    tail = shape[len(shape) - mask.ndim :]
    if mask.ndim > len(shape) or any(
        size not in (1, whole) for size, whole in zip(mask.shape, tail, strict=True)
    ):
        raise ValueError(
            f"{name}: wanted a shape that broadcasts to {tuple(shape)}, got {tuple(mask.shape)}"
        )


def check_dropout(keep: Any, p: Any) -> None:
    """Hold the share that is dropped to [0, 1), and ask for the draw where it matters."""
    if not (isinstance(p, Real) and 0 <= float(p) < 1):
        raise ValueError(f"p: wanted a number with 0 <= p < 1, got {p!r}")
    if keep is None and float(p) > 0:
        raise ValueError(f"keep: wanted a boolean tensor because p is {p}, got None")


def kind(thing: Any) -> str:
    """What came, in a few words: dtype and shape of a tensor, otherwise the type."""
    return (
        f"{thing.dtype} {tuple(thing.shape)}" if isinstance(thing, Tensor) else type(thing).__name__
    )
