"""
Where arrays live and which numbers they hold: CuPy's on a device, NumPy's without one, computed
wide and rounded once.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import cupy

from attnverify.contract.arrays import BOOL, FLOAT, INTEGER, Arrays

numpy = cupy.get_array_module()  # what CuPy takes for arrays that are on no device
if TYPE_CHECKING:
    Array: TypeAlias = Any  # CuPy has no types
else:
    Array = cupy.ndarray | numpy.ndarray
FLOATS = ("float64", "float32", "float16", "bfloat16")

P = ParamSpec("P")
R = TypeVar("R")


def ieee(function: Callable[P, R]) -> Callable[P, R]:
    """
    The function without floating-point warnings: overflow and NaN are numbers here, as on the
    device.
    """
    return numpy.errstate(all="ignore")(function)


@functools.cache
def on_device() -> bool:
    """Whether CuPy has a device; a broken driver counts as none."""
    try:
        return bool(cupy.cuda.is_available())
    except RuntimeError:  # CUDARuntimeError and its kin
        return False


def default_module() -> ModuleType:
    """The array module for results that come from no array."""
    return cupy if on_device() else numpy


NOT_PLAIN = (numpy.ma.MaskedArray, numpy.matrix)


class PlainArrays(Arrays):
    """
    CuPy's and NumPy's arrays of plain numbers.

    No mask of its own hides some of them, its operators are those of every array, and its bytes
    stand in the order of this machine: a kernel reads addresses and sees nothing of these.
    """

    def kind(self, thing: Any) -> str:
        """Tell the four float formats, booleans and integers; longdouble is none of them."""
        plain = isinstance(thing, (cupy.ndarray, numpy.ndarray))
        return kind_of(thing.dtype) if plain and not isinstance(thing, NOT_PLAIN) else ""

    def describe(self, thing: Any) -> str:
        """What came: what is not plain about an array, its dtype and shape."""
        if not isinstance(thing, (cupy.ndarray, numpy.ndarray)):
            return type(thing).__name__
        swapped = "" if thing.dtype.isnative else "byte-swapped "
        named = f"{type(thing).__name__} " if isinstance(thing, NOT_PLAIN) else ""
        return f"{swapped}{named}{thing.dtype.name} {thing.shape}"


@functools.cache  # the name of a dtype is put together each time it is asked for
def kind_of(dtype: Any) -> str:
    if not dtype.isnative:
        return ""
    letters = {"b": BOOL, "i": INTEGER, "u": INTEGER}
    return FLOAT if dtype.name in FLOATS else letters.get(dtype.kind, "")


ARRAYS = PlainArrays()


def is_float(x: Array) -> bool:
    """Whether x holds one of the four float formats; NumPy's longdouble is none of them."""
    return x.dtype.name in FLOATS


def float_dtype(dtype: Any) -> Any:
    """The dtype of one of the four float formats, by its name, its type or itself."""
    name = (
        dtype
        if isinstance(dtype, str)
        else getattr(dtype, "name", getattr(dtype, "__name__", None))
    )
    if name not in FLOATS:
        raise ValueError(f"dtype: wanted {', '.join(FLOATS)}, got {dtype!r}")
    if name == "bfloat16":
        from ml_dtypes import bfloat16  # not at the top: only this format needs the package

        return numpy.dtype(bfloat16)
    return numpy.dtype(name)


def wide(*arrays: Array | None) -> tuple[Any, ...]:
    """Floats of 16 bits as float32; float32, float64, booleans and None as they are."""
    return tuple(x if x is None or x.dtype.itemsize != 2 else x.astype("float32") for x in arrays)


def narrow(x: Array, dtype: Any) -> Array:
    """The one rounding, at the end."""
    return x.astype(dtype, copy=False)


@ieee
def from_numpy(x: Array, dtype: Any) -> Array:
    dtype = x.dtype if x.dtype.kind in "biu" else float_dtype(dtype)
    return default_module().array(x.astype(dtype))


@ieee
def to_numpy(x: Array) -> Any:
    x = cupy.asnumpy(x)
    return x.astype("float64" if is_float(x) else x.dtype)
