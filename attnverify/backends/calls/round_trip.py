"""
The first rung: what goes to a backend's device comes back as it was. Where it does not, nothing
else can be said of the backend.

Floats of the dtype, the signed zero, NaN, infinity and the smallest subnormal number among them,
and booleans; as a row, as a single number, strided, and empty.
"""

import warnings
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import dtype_name
from attnverify.backends.implementation import Backend
from attnverify.catalogue.dtypes import largest, numpy_dtype, round_to


@lru_cache(maxsize=64)
def check_round_trip(backend: Backend, dtype: str) -> str | None:
    """
    What the backend's ``from_numpy`` and ``to_numpy`` do to arrays of the dtype that they should
    not; None if they are exact.
    """
    library = backend.library
    assert library is not None
    for words, x in test_arrays(dtype):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                sent = library.from_numpy(x, dtype if dtype != "bool" else "float32")
                back = library.to_numpy(sent)
        except Exception as error:
            return (
                f"the adapter raises {type(error).__name__} for {words} of {dtype}: "
                f"{' '.join(str(error).split())[:200]}"
            )
        wanted = "bool" if x.dtype == bool else dtype
        if dtype_name(sent) != wanted:
            return f"the adapter makes {dtype_name(sent)} of {words} of {wanted}"
        if difference := first_difference(back, x):
            return f"the adapter does not bring {words} of {dtype} back: {difference}"
    return None


def test_arrays(dtype: str) -> Iterator[tuple[str, ndarray]]:
    """What is sent, each with its name."""
    kinds = (
        {"booleans": np.arange(12) % 3 == 0}
        if dtype == "bool"
        else {"numbers": test_numbers(dtype), "booleans": np.arange(12) % 3 == 0}
    )
    for kind, x in kinds.items():
        yield kind, x
        yield from (
            (f"one of the {kind}", x[place : place + 1].reshape(()).copy()) for place in range(4)
        )
        yield f"a transposed matrix of {kind}", x.reshape(3, 4).T
        yield f"every other of the {kind}", x[::2]
        yield f"no {kind}", x[:0].reshape(2, 0, 3)


def test_numbers(dtype: str) -> ndarray:
    """Twelve numbers that the dtype has."""
    zero, one, two = np.arange(3).astype(numpy_dtype(dtype))
    subnormal, beside = float(np.nextafter(zero, one)), float(np.nextafter(one, two))
    some = [
        -0.0,
        np.nan,
        np.inf,
        subnormal,
        0.0,
        -np.inf,
        -3 * subnormal,
        beside,
        largest(dtype),
        -largest(dtype),
        1 / 3,
        -1.0,
    ]
    return round_to(np.array(some), dtype)


def first_difference(back: ndarray, x: ndarray) -> str | None:
    """Return the first difference; a NaN is a NaN, and zeros have a sign."""
    if not isinstance(back, ndarray) or back.shape != x.shape or back.dtype != x.dtype:
        came = f"{back.dtype} {back.shape}" if isinstance(back, ndarray) else type(back).__name__
        return f"wanted {x.dtype} {x.shape}, got {came}"
    same = (back == x) & (np.signbit(back) == np.signbit(x)) if x.dtype.kind == "f" else back == x
    if x.dtype.kind == "f":
        same |= np.isnan(back) & np.isnan(x)
    wrong = np.argwhere(~same)
    return f"{x[tuple(wrong[0])]!r} becomes {back[tuple(wrong[0])]!r}" if len(wrong) else None
