"""
Triton's interpreter as the tests need it: silent, and fast enough for thousands of small cases.

It spends its time on types: four fifths of an operation are the names, shapes and NumPy dtypes of its result, made anew each time. While
:func:`interpreting` lasts they are looked up, and integer sums are not checked for overflow (which stops nothing unless Triton is debugged);
this takes less than half of the time. Afterwards Triton is as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import triton.language.core as core
from triton.runtime import interpreter

__all__ = ["interpreting"]

BLOCK_TYPE, NUMPY_DTYPE = core.block_type.__init__, interpreter._get_np_dtype
BLOCK_TYPES: dict[Any, dict[str, Any]] = {}
NUMPY_DTYPES: dict[Any, Any] = {}


@contextmanager
def interpreting() -> Iterator[None]:
    """Triton's interpreter with looked-up types and without NumPy's warnings: exp(-inf), and what a half type cannot hold."""
    options = interpreter.interpreter_builder.options
    places = (
        (core.tensor, "__init__", tensor),
        (core.block_type, "__init__", block_type),
        (interpreter, "_get_np_dtype", numpy_dtype),
        (options, "sanitize_overflow", False),
    )
    before = [getattr(thing, name) for thing, name, _ in places]
    try:
        for thing, name, new in places:
            put(thing, name, new)
        with interpreter.np.errstate(all="ignore"):
            yield
    finally:
        for (thing, name, _), old in zip(places, before, strict=True):
            put(thing, name, old)


def put(thing: Any, name: str, value: Any) -> None:
    (type if isinstance(thing, type) else object).__setattr__(thing, name, value)  # the options are frozen


def tensor(self: Any, handle: Any, type: Any) -> None:
    """``core.tensor.__init__``, with what follows from the type kept there."""
    self.handle, self.type = handle, type
    if not hasattr(type, "facts"):
        shape = type.shape if type.is_block() else ()
        type.facts = core.tuple([core.constexpr(size) for size in shape]), core.constexpr(prod(shape)), type.scalar
    self.shape, self.numel, self.dtype = type.facts


def block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """``core.block_type.__init__``, run once for a type and its shape."""
    key = element_ty.name, *(getattr(size, "value", size) for size in shape)
    if key not in BLOCK_TYPES:
        BLOCK_TYPE(self, element_ty, shape)
        BLOCK_TYPES[key] = dict(vars(self))
    vars(self).update(BLOCK_TYPES[key])


def numpy_dtype(of: Any) -> Any:
    """``interpreter._get_np_dtype``, run once for a type."""
    key = type(of), of.name
    if key not in NUMPY_DTYPES:
        NUMPY_DTYPES[key] = NUMPY_DTYPE(of)
    return NUMPY_DTYPES[key]
