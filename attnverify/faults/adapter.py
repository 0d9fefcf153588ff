"""
How a fault is called: by the specification's names, its arguments held to the specification, floats
widened to float64, the result rounded once.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.recipe import Inputs

Function = Callable[..., Any]


def with_spec_contract(
    function: Function, operation: Operation, raw: bool, checked: bool, memory: Inputs | None
) -> Function:
    """
    The function as the specification's own: its parameters by name or by position, and ``dtype``
    where no input need be a float.

    What numpy_ref refuses is refused (its answer is thrown away), so that a fault is wrong in one
    thing alone.
    """
    signature = inspect.Signature([*operation.parameters.values()])
    takes_dtype = operation.takes_dtype
    extra = {} if memory is None else {"memory": memory}

    @wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        dtype = named.pop("dtype", "float64") if takes_dtype else None
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = dict(bound.arguments)
        wide = map_leaves(widened, given)
        with np.errstate(all="ignore"):
            if checked:
                operation.reference(**wide)
            result = function(**(given if raw else wide), **extra)
        return stored(result, operation, dtype if takes_dtype else storage(given))

    parameters = list(signature.parameters.values())
    if takes_dtype:
        parameters.append(
            inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default="float64")
        )
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def is_float(leaf: Any) -> bool:
    """A float array, ml_dtypes' formats included."""
    return isinstance(leaf, ndarray) and (
        leaf.dtype.kind == "f" or (leaf.dtype.kind == "V" and "float" in leaf.dtype.name)
    )


def widened(leaf: Any) -> Any:
    """A float64 copy of a float array; anything else as it is."""
    return leaf.astype(np.float64) if is_float(leaf) else leaf


def storage(given: Inputs) -> np.dtype[Any]:
    """The dtype of the float arrays among the arguments."""
    return next((leaf.dtype for leaf in leaves(given) if is_float(leaf)), np.dtype(np.float64))


def stored(result: Any, operation: Operation, dtype: Any) -> Any:
    """Every output in the dtype that the operation gives it: an lse has at least float32."""
    whole = rounded(result, dtype)
    if not isinstance(result, tuple):
        return whole
    name = np.dtype(dtype).name if not isinstance(dtype, str) else dtype
    own = [operation.dtype_of_output(place, name) for place in range(len(result))]
    pairs = zip(result, whole, own, strict=True)
    return tuple(narrow if fmt == name else rounded(wide, fmt) for wide, narrow, fmt in pairs)


def rounded(result: Any, dtype: Any) -> Any:
    """
    Every float array of the result in this dtype; what has it already stays the same array, and one
    array stays one.
    """
    dtype = numpy_dtype(dtype) if isinstance(dtype, str) else dtype
    found = {id(leaf): leaf.astype(dtype, copy=False) for leaf in leaves(result) if is_float(leaf)}
    return map_leaves(lambda leaf: found.get(id(leaf), leaf), result)
