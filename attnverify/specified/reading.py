"""
Reading a specification: what its annotations say of each argument.

    x: Float[ndarray, "B N 2F 64"]                   numbers; a letter is a size, 2F twice one
    x: Float[Tensor, "B N"]                          the same, of a function of PyTorch
    seen: Bool[ndarray, "B N"]                       a mask, drawn at random
    target: Annotated[Int[ndarray, "N"], "V", -100]  indices below the size V, and -100 among them
    w: Annotated[Int[ndarray, "F"], range(-8, 8)]    integers of a range; Int8 without one: all
    gate: Annotated[Float[ndarray, "N"], (0, 1)]     numbers between two ends
    window: Annotated[int, (1, 4)] = 4               one of several; Choices(1, 4) as well
    eps: float = 1e-6                                the default, and a guess beside it (1e-3)
"""

import inspect
import linecache
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy import ndarray

from attnverify.spec.domains import Choices

AXIS = re.compile(r"(\d*)([A-Z])|(\d+)()")


@dataclass(frozen=True)
class Argument:
    """
    One argument. Of an array: the letters of its axes with their factors, and its kind: "float",
    "bool", "int" or "offsets" (one more than its axis has, up to the size ``below``); of a number:
    its choices, the usual one first, which may be ``guessed``. Integers are handed on in their
    ``dtype``.
    """

    name: str
    kind: str
    axes: tuple[tuple[int, str], ...] = ()
    choices: tuple[Any, ...] = ()
    below: str = ""
    extra: tuple[int, ...] = ()
    least: int = 0
    most: int = 0
    guessed: bool = False
    dtype: str = "int64"

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        more = int(self.kind == "offsets")
        return tuple(factor * sizes.get(letter, 1) + more for factor, letter in self.axes)

    @property
    def written(self) -> str:
        """Its axes as they stand in an annotation."""
        return " ".join(f"{f if f > 1 or not letter else ''}{letter}" for f, letter in self.axes)

    @property
    def letters(self) -> set[str]:
        return {letter for _, letter in self.axes if letter} | {self.below} - {""}


def read_arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    """
    Read every argument of a specification. Raises ValueError that names one without axes or
    choices.
    """
    hints = hints_of(function)
    parameters = inspect.signature(function).parameters.values()
    return tuple(_read(p, hints.get(p.name, p.annotation), function) for p in parameters)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations, those in quotes evaluated; as they stand where that fails."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, SyntaxError, TypeError):
        return dict(function.__annotations__)


def read_axes(function: Callable[..., Any]) -> tuple[tuple[int, str], ...]:
    """Read the axes of the one array that a specification gives; none of several, or unsaid."""
    parts = getattr(hints_of(function).get("return"), "dim_str", "").split()
    axes = [AXIS.fullmatch(part) for part in parts]
    return tuple((int(found[1] or found[3] or 1), found[2] or "") for found in axes if found)


def _read(parameter: inspect.Parameter, annotation: Any, function: Any) -> Argument:
    base, *domain = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
    name, where = parameter.name, place_of(function)
    if hasattr(base, "dim_str"):
        return _read_array(name, base, domain, where)
    choices = next((values_of(d) for d in domain if isinstance(d, (tuple, Choices))), ())
    default, guessed = parameter.default, not choices
    if default is not parameter.empty:
        choices = tuple(dict.fromkeys((default, *(choices or guessed_beside(default)))))
    if not choices:
        raise ValueError(
            f'{where}: {name}: wanted axes, as {name}: Float[ndarray, "B N"], or a default, got '
            "neither"
        )
    return Argument(name, "number", choices=choices, guessed=guessed)


TINY = 1e-3
"""Numbers up to this are added so that nothing is divided by 0: half of one shows nothing."""


def guessed_beside(default: Any) -> tuple[Any, ...]:
    """
    Guess what else a number may be of which only the default is known: a flag the other way, a
    count one more, a number half of it, none beside what may stand for an axis or a missing index.
    """
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return (default + 1,) if default > 0 else ()
    if not isinstance(default, float):
        return ()
    return (1000 * default if 0 < default <= TINY else default / 2 or 0.5,)


def values_of(domain: Any) -> tuple[Any, ...]:
    return tuple(domain.values if isinstance(domain, Choices) else domain)


def _read_array(name: str, base: Any, domain: list[Any], where: str) -> Argument:
    parts = base.dim_str.split()
    axes = [AXIS.fullmatch(part) for part in parts]
    if not all(axes):
        wanted = 'letters and numbers, as "B N 2F 64"'
        raise ValueError(f"{where}: {name}: wanted axes of {wanted}, got {base.dim_str!r}")
    read = tuple((int(found[1] or found[3] or 1), found[2] or "") for found in axes if found)
    dtypes = base.dtypes
    if "bool" in dtypes:
        return Argument(name, "bool", read)
    if any("float" in dtype for dtype in dtypes):
        return Argument(name, "float", read, choices=next((tuple(d) for d in domain), ()))
    return _read_integers(name, read, dtypes, domain, where)


def _read_integers(
    name: str, axes: tuple[tuple[int, str], ...], dtypes: Any, domain: list[Any], where: str
) -> Argument:
    below = next((d for d in domain if isinstance(d, str)), "")
    extra = tuple(d for d in domain if isinstance(d, int))
    span = next((d for d in domain if isinstance(d, range)), None)
    if span is None and not below and list(dtypes) in (["int8"], ["uint8"]):
        limits = np.iinfo(dtypes[0])
        span = range(int(limits.min), int(limits.max) + 1)
    if span is None and not below:
        raise ValueError(
            f'{where}: {name}: wanted what its integers may be, as Annotated[..., "V"] (below '
            "the size V) or Annotated[..., range(0, 9)], got no domain"
        )
    ends = (span.start, span.stop - 1) if span is not None else (0, 0)
    dtype = dtypes[0] if len(dtypes) == 1 else "int64"
    return Argument(name, "int", axes, (), below, extra, *ends, dtype=dtype)


def place_of(function: Any) -> str:
    code = function.__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def source_line(function: Any, origin: str) -> str:
    """Return a line of a function's file, which is named as ``my_spec.py:12``; "" of no file."""
    number = origin.rpartition(":")[2]
    return linecache.getline(function.__code__.co_filename, int(number or 0)).strip()


def quote_line(function: Any, origin: str) -> str:
    """Write a line and where it stands."""
    text = source_line(function, origin)
    return f"`{text}`, {origin}" if text else origin


def with_whole_numbers(inputs: dict[str, Any]) -> dict[str, Any]:
    """
    Return arguments whose integers are as wide as need be: a specification means numbers, and
    twice an int8 is none of int8.
    """
    integers = {k: x for k, x in inputs.items() if isinstance(x, ndarray) and x.dtype.kind in "iu"}
    return inputs | {k: x.astype(np.int64) for k, x in integers.items()}


def taking(names: Iterable[str]) -> inspect.Signature:
    """Return the signature of a function that takes these arguments, by name or by place."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def checked(function: Callable[..., Any], arguments: tuple[Argument, ...]) -> Callable[..., Any]:
    """
    Return the specification as one that refuses, with ValueError, arrays whose axes do not fit each
    other, and that gives float64.
    """

    @wraps(function)
    def specification(**inputs: Any) -> Any:
        check_axes(arguments, inputs)
        with np.errstate(all="ignore"):
            found = function(**with_whole_numbers(inputs))
        return as_results(found)

    return specification


def as_results(found: Any) -> Any:
    """Return what a specification gives as float64: an array, or several."""
    if isinstance(found, (tuple, list)):
        return tuple(map(as_result, found))
    return as_result(found)


def as_result(x: Any) -> ndarray:
    return np.array(x, np.float64)


def check_axes(arguments: tuple[Argument, ...], inputs: dict[str, Any]) -> None:
    """Raise ValueError that names the argument whose axes do not fit those before it."""
    sizes = {"": 1}
    for argument in arguments:
        x = inputs.get(argument.name)
        if argument.kind == "number" or x is None:
            continue
        x = np.asarray(x)
        wanted = argument.written
        if x.ndim != len(argument.axes):
            raise ValueError(f"{argument.name}: wanted axes {wanted}, got {x.shape}")
        if (x.dtype.kind == "f") != (argument.kind == "float"):
            raise ValueError(f"{argument.name}: wanted {argument.kind}, got {x.dtype}")
        more = int(argument.kind == "offsets")
        for n, (factor, letter) in zip((n - more for n in x.shape), argument.axes, strict=True):
            if n % factor or sizes.setdefault(letter, n // factor) != n // factor:
                raise ValueError(
                    f"{argument.name}: wanted {letter and f'{letter}={sizes.get(letter)} in '}"
                    f"{wanted}, got {x.shape}"
                )
