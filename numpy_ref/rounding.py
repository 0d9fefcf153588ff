"""One rounding at the end: float64 and float32 compute as they are, narrower formats in float32."""

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy import ndarray

from .arrays import is_float

__all__ = ["float_dtype", "rounds_once"]

P = ParamSpec("P")
R = TypeVar("R")


def rounds_once(operation: Callable[P, R]) -> Callable[P, R]:
    """
    Widen narrow arguments (inside lists and mappings too), compute without NumPy's warnings, round
    the results.

    Results are rounded where all float arguments share one narrow format; mixed formats promote.
    """

    @wraps(operation)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            formats = {array.dtype for array in float_arrays([args, kwargs])}
            if all(dtype.itemsize >= 4 for dtype in formats):
                return operation(*args, **kwargs)
            result = cast(Any, operation)(*each(widened, args), **each(widened, kwargs))
            storage = formats.pop()
            return cast(R, result if formats else each(lambda x: x.astype(storage), result))

    return run


def float_arrays(thing: Any) -> Iterator[ndarray]:
    if isinstance(thing, ndarray):
        if is_float(thing):
            yield thing
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from float_arrays(part)
    elif isinstance(thing, Mapping):
        yield from float_arrays(list(thing.values()))


def each(function: Callable[[ndarray], ndarray], thing: Any) -> Any:
    """The function on every float array inside."""
    if isinstance(thing, ndarray):
        return function(thing) if is_float(thing) else thing
    if isinstance(thing, (list, tuple)):
        return type(thing)(each(function, part) for part in thing)
    return (
        {name: each(function, part) for name, part in thing.items()}
        if isinstance(thing, Mapping)
        else thing
    )


def widened(x: ndarray) -> ndarray:
    return x if x.dtype.itemsize >= 4 else x.astype(np.float32)


def float_dtype(dtype: Any) -> np.dtype[Any]:
    """
    A float dtype from itself or from its name; ``bfloat16`` is ml_dtypes', which is imported only
    for it.
    """
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype: wanted a float dtype or its name, got {dtype!r}") from None
    if not is_float(np.empty(0, found)):
        raise ValueError(f"dtype: wanted a float dtype or its name, got {dtype!r}")
    return found


def keeps_wide(*places: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Widen narrow arguments, compute, and round the results to the narrowest format among them; those
    at these places, a log-sum-exp or its gradient, stay at least float32.
    """

    def around(operation: Callable[P, R]) -> Callable[P, R]:
        @wraps(operation)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with np.errstate(all="ignore"):
                formats = {array.dtype for array in float_arrays([args, kwargs])}
                narrow = min(formats, key=lambda dtype: dtype.itemsize, default=np.dtype(float))
                results = cast(Any, operation)(*each(widened, args), **each(widened, kwargs))
                rounded = (
                    x if place in places else x.astype(narrow, copy=False)
                    for place, x in enumerate(results)
                )
                return cast(R, tuple(rounded))

        return run

    return around
