"""
Triton's interpreter as the tests need it: silent, and fast enough for thousands of small cases.

An interpreted operation costs 50 microseconds, whatever its size. So the programs of the first grid
axis (the heads of all batch entries, which have the same loops) run side by side: every array has
one more axis in front, of one entry per program or of one for all, and the few operations that
count axes are told so. Types, promotion, broadcasting and the rest stay Triton's own, but they are
worked out once for each function and its types (:mod:`torch_impl.triton.emulation.recording`).

All this lasts as long as :func:`interpreting`; afterwards Triton is as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import getmembers
from math import prod
from threading import RLock
from typing import Any

import torch
import triton.language.core as core
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, np

from .recording import operation, tied_to_data

__all__ = ["interpreting"]

BUILDER = interpreter.interpreter_builder
BLOCK_TYPE, NUMPY_DTYPE = core.block_type.__init__, interpreter._get_np_dtype
BLOCK_TYPES: dict[Any, dict[str, Any]] = {}
NUMPY_DTYPES: dict[Any, Any] = {}
OPERATIONS: dict[Any, dict[str, Callable[..., Any]]] = {}
ONE_AT_A_TIME = RLock()  # Triton's interpreter is one object for the whole process


@contextmanager
def interpreting(programs: range) -> Iterator[None]:
    """
    Triton's interpreter for these programs of the first grid axis, side by side, without NumPy's
    warnings.
    """
    places = [
        (core.tensor, "__init__", tensor),
        (core.block_type, "__init__", block_type),
        (interpreter, "_get_np_dtype", numpy_dtype),
        (interpreter, "_patch_builtin", patch_builtin),
        (interpreter, "_patch_lang_tensor", patch_tensor),
        (
            TensorHandle,
            "__post_init__",
            lambda self: None,
        ),  # compares the sizes of numbers, which come from Triton's own tables
        (
            BUILDER.options,
            "sanitize_overflow",
            False,
        ),  # every integer sum once more in int64, for an assertion that is off
        *((BUILDER, name, partial(function, programs)) for name, function in SIDE_BY_SIDE.items()),
    ]
    with ONE_AT_A_TIME:
        before = [(thing, name, vars(thing).get(name)) for thing, name, _ in places]
        try:
            for place in places:
                put(*place)
            with np.errstate(all="ignore"):
                yield
        finally:
            for place in before:
                put(*place)


def put(thing: Any, name: str, value: Any) -> None:
    """
    Set an attribute, of a frozen object too; None takes it away, so that what the class has is seen
    again.
    """
    change = (
        (type if isinstance(thing, type) else object).__setattr__
        if value is not None
        else object.__delattr__
    )
    change(thing, name, *([] if value is None else [value]))


def tensor(self: Any, handle: Any, type: Any) -> None:
    """``core.tensor.__init__``, with what follows from the type kept there."""
    self.handle, self.type = handle, type
    if not hasattr(type, "facts"):
        shape = type.shape if type.is_block() else ()
        type.facts = (
            core.tuple([core.constexpr(size) for size in shape]),
            core.constexpr(prod(shape)),
            type.scalar,
        )
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


def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """
    ``interpreter._patch_builtin``, with operations that are recorded; which there are is looked up
    once.
    """
    if package not in OPERATIONS:
        found = {name: member for name, member in getmembers(package) if core.is_builtin(member)}
        OPERATIONS[package] = {name: operation(member) for name, member in found.items()}
    for name, instead in OPERATIONS[package].items():
        scope.set_attr(package, name, instead)


def patch_tensor(tensor: Any, scope: Any) -> None:
    """
    ``interpreter._patch_lang_tensor``: numbers known at run time steer the Python around them, one
    for all programs.
    """
    scope.set_attr(tensor, "__index__", lambda self: int(at_run_time(self)))
    scope.set_attr(tensor, "__bool__", lambda self: self.type.is_block() or bool(at_run_time(self)))


def at_run_time(x: Any) -> Any:
    """
    The number of a scalar that all programs share; a recording that has read it would be wrong the
    next time.
    """
    tied_to_data(x.handle)
    return x.handle.data.item()


def program_id(programs: range, axis: int) -> TensorHandle:
    return TensorHandle(
        np.array(programs if axis == 0 else [BUILDER.grid_idx[axis]], np.int32), core.int32
    )


def make_range(programs: range, type: Any, start: int, stop: int) -> TensorHandle:
    return TensorHandle(np.arange(start, stop, dtype=np.int32)[None], core.int32)


def spread(x: Any, shape: tuple[int, ...]) -> Any:
    """``np.broadcast_to`` for as many axes, without its price where that can be done."""
    if x.shape == shape:
        return x
    if not x.flags.c_contiguous:
        return np.broadcast_to(x, shape)
    return np.ndarray(
        shape,
        x.dtype,
        x,
        0,
        [step if size > 1 else 0 for size, step in zip(x.shape, x.strides, strict=True)],
    )


def splat(programs: range, type: Any, x: TensorHandle) -> TensorHandle:
    wide = x.data.reshape(-1, *(1 for _ in type.shape))
    return TensorHandle(spread(wide, (len(wide), *type.shape)), x.dtype.scalar)


def expand_dims(programs: range, x: TensorHandle, axis: int) -> TensorHandle:
    return TensorHandle(x.data[(slice(None),) * (axis + 1) + (None,)], x.dtype.scalar)


def broadcast(programs: range, x: TensorHandle, shape: Any) -> TensorHandle:
    return TensorHandle(spread(x.data, (len(x.data), *shape)), x.dtype.scalar)


def binary(programs: range, a: TensorHandle, b: TensorHandle, function: Any) -> TensorHandle:
    return TensorHandle(function(a.data, b.data), a.dtype.scalar)


def trans(programs: range, x: TensorHandle, order: Any) -> TensorHandle:
    return TensorHandle(np.transpose(x.data, (0, *(axis + 1 for axis in order))), x.dtype.scalar)


def gather(programs: range, x: TensorHandle, index: TensorHandle, axis: int) -> TensorHandle:
    where = np.broadcast_to(index.data, (len(x.data), *index.data.shape[1:]))
    return TensorHandle(np.take_along_axis(x.data, where, axis + 1), x.dtype.scalar)


def summed(programs: range, x: TensorHandle, axis: int) -> TensorHandle:
    return TensorHandle(x.data.sum(axis + 1), x.dtype)


def maximum(programs: range, x: TensorHandle, axis: int) -> TensorHandle:
    return TensorHandle(np.fmax.reduce(x.data, axis + 1), x.dtype)


def widened(programs: range, x: TensorHandle, type: Any) -> TensorHandle:
    """Triton's own loses the subnormal numbers of bfloat16."""
    data = (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype == core.bfloat16 else x.data
    return TensorHandle(data.astype(numpy_dtype(type)), type.scalar)


def narrowed(programs: range, x: TensorHandle, type: Any) -> TensorHandle:
    """Triton's own cuts bfloat16 off instead of rounding it."""
    if type.scalar != core.bfloat16:
        return TensorHandle(x.data.astype(numpy_dtype(type)), type.scalar)
    near = torch.from_numpy(x.data.astype(np.float32)).bfloat16()
    return TensorHandle(near.view(torch.int16).numpy().view(np.uint16), core.bfloat16)


def masked_load(
    programs: range, at: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *rest: Any
) -> TensorHandle:
    dtype = interpreter._get_np_dtype(at.get_element_ty())
    other = np.zeros([1] * at.data.ndim, dtype) if other is None else other.data
    found = interpreter._interpreter.load(*of_one_shape(at.data, mask.data, other), dtype)
    return TensorHandle(found, at.get_element_ty())


def masked_store(
    programs: range, at: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: Any
) -> Any:
    return interpreter._interpreter.store(*of_one_shape(at.data, value.data, mask.data))


def of_one_shape(*arrays: Any) -> list[Any]:
    """They differ in the programs alone, of which some have one for all."""
    shape = max(array.shape for array in arrays)
    return [spread(array, shape) for array in arrays]


def atomic_rmw(
    programs: range,
    operation: Any,
    at: TensorHandle,
    value: TensorHandle,
    mask: TensorHandle,
    sem: Any,
    scope: Any,
) -> Any:
    shape = (len(programs), *at.data.shape[1:])  # what every program adds, every program adds
    given = (np.ascontiguousarray(np.broadcast_to(x.data, shape)) for x in (at, value, mask))
    how = BUILDER.ir_rmw_op_to_interpreter_rmw_op[operation], BUILDER.ir_sem_to_interpreter_sem[sem]
    return TensorHandle(
        interpreter._interpreter.atomic_rmw(how[0], *given, how[1]), value.dtype.scalar
    )


SIDE_BY_SIDE: dict[str, Callable[..., Any]] = {
    "create_get_program_id": program_id,
    "create_make_range": make_range,
    "create_splat": splat,
    "create_expand_dims": expand_dims,
    "create_broadcast": broadcast,
    "binary_op": binary,
    "create_trans": trans,
    "create_gather": gather,
    "create_fp_ext": widened,
    "create_fp_trunc": narrowed,
    "create_sum": summed,
    "create_largest": maximum,
    "create_masked_load": masked_load,
    "create_masked_store": masked_store,
    "create_atomic_rmw": atomic_rmw,
}
"""
The operations of Triton's builder that count axes, or that touch memory and want arrays of one
shape, or that are wrong in bfloat16.
"""
