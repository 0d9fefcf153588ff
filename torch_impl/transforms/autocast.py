"""
Autocast, as ``F.scaled_dot_product_attention`` has it: in such a region an attention takes its
inputs in the lower precision.

Float tensors on the region's device are rounded to its dtype, float64 excepted, tables and weights
too; the output has that dtype, and what is computed in float32 stays there. Only a mask keeps its
own dtype: a number that hides nothing would become an infinity that does. Gradients come back in
the dtype of what was given.
"""

from collections.abc import Callable, Collection
from functools import wraps
from inspect import signature
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["lowered"]

Function = TypeVar("Function", bound=Callable[..., Any])


def lowered(function: Function, kept: Collection[str] = ("mask",)) -> Function:
    """
    The function with its float tensors in the dtype of the autocast region in which it is called,
    but for those that are ``kept`` as they are, and computed outside of it.
    """
    names = list(signature(function).parameters)

    @wraps(function)
    def in_region(*args: Any, **kwargs: Any) -> Any:
        kind = next(
            (x.device.type for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), "cpu"
        )
        if kind == "meta" or not torch.is_autocast_enabled(
            kind
        ):  # a meta tensor has no region, and asking for one raises
            return function(*args, **kwargs)
        dtype = torch.get_autocast_dtype(kind)
        args = tuple(
            x if name in kept else rounded(x, kind, dtype)
            for name, x in zip_longest(names[: len(args)], args)
        )
        kwargs = {
            name: x if name in kept else rounded(x, kind, dtype) for name, x in kwargs.items()
        }
        with torch.autocast(kind, enabled=False):
            return function(*args, **kwargs)

    # torch.compile counts its recompilations by code object: each function has one of its own
    in_region.__code__ = in_region.__code__.replace(co_name=function.__name__)  # type: ignore[attr-defined]
    return in_region  # type: ignore[return-value]


def rounded(x: Any, kind: str, dtype: torch.dtype) -> Any:
    """What autocast makes of an argument: it leaves float64, 8 bits, integers and other devices."""
    eligible = (
        isinstance(x, Tensor)
        and x.is_floating_point()
        and 1 < x.dtype.itemsize < 8
        and x.device.type == kind
    )
    return x.to(dtype) if eligible else x
