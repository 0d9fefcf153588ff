"""Memory: slices of old and new, joined by one copy."""

from collections.abc import Sequence
from typing import Any

import cupy
from jaxtyping import Float

from attnverify.contract.layers import (
    check_init_mems,
    check_memory_gradients,
    check_update_mems,
)

from .arrays import ARRAYS, Array, default_module, float_dtype

__all__ = ["init_mems", "update_mems", "update_mems_grad"]

Mems = list[Float[Array, "B S F"]] | None


def init_mems(n_layers: int, mem_len: int, batch: int, width: int, dtype: Any = "float32") -> Mems:
    """
    See :func:`spec.memory.init_mems`.

    On the device where there is one.
    """
    check_init_mems(ARRAYS, n_layers, mem_len, batch, width)
    xp, dtype = default_module(), float_dtype(dtype)
    return (
        [xp.zeros((batch, mem_len, width), dtype) for _ in range(n_layers)] if mem_len > 0 else None
    )


def update_mems(hids: Sequence[Float[Array, "B N F"]], mems: Mems, mem_len: int) -> Mems:
    """
    See :func:`spec.memory.update_mems`.

    Only the positions that stay are copied, into new arrays. There is no gradient to cut off here.
    """
    check_update_mems(ARRAYS, hids, mems, mem_len)
    if mems is None:
        return None
    return [last(mem, hid, mem_len) for mem, hid in zip(mems, hids, strict=True)]


def last(mem: Array, hid: Array, mem_len: int) -> Array:
    """The last positions of mem followed by hid."""
    S, N = mem.shape[1], hid.shape[1]
    first = max(0, S + N - mem_len)
    return cupy.get_array_module(hid).concatenate(
        [mem[:, first:], hid[:, max(0, first - S) :]], axis=1
    )


def update_mems_grad(
    d_new_mems: Mems, hids: Sequence[Float[Array, "B N F"]], mems: Mems, mem_len: int
) -> tuple[list[Array], ...]:
    """
    See :func:`spec.memory.update_mems_grad`.

    Zeros beside every input; the new memory is computed for its shapes alone.
    """
    check_memory_gradients(ARRAYS, d_new_mems, update_mems(hids, mems, mem_len))
    return (zeros_like(hids),) if mems is None else (zeros_like(hids), zeros_like(mems))


def zeros_like(arrays: Sequence[Array]) -> list[Array]:
    return [cupy.get_array_module(x).zeros(x.shape, x.dtype) for x in arrays]
