"""Memory: slices of old and new, joined by one copy."""

from collections.abc import Sequence
from typing import Any

import cupy
from jaxtyping import Float

from .arrays import Array, default_module, float_dtype
from .shapes import check, check_integer, check_list

__all__ = ["init_mems", "update_mems", "update_mems_grad"]

Mems = list[Float[Array, "B S F"]] | None


def init_mems(n_layers: int, mem_len: int, batch: int, width: int, dtype: Any = "float32") -> Mems:
    """
    See :func:`spec.memory.init_mems`.

    On the device where there is one.
    """
    check_integer("n_layers", n_layers)
    check_integer("mem_len", mem_len, least=0)
    check_integer("batch", batch)
    check_integer("width", width)
    xp, dtype = default_module(), float_dtype(dtype)
    return (
        [xp.zeros((batch, mem_len, width), dtype) for _ in range(n_layers)] if mem_len > 0 else None
    )


def update_mems(hids: Sequence[Float[Array, "B N F"]], mems: Mems, mem_len: int) -> Mems:
    """
    See :func:`spec.memory.update_mems`.

    Only the positions that stay are copied, into new arrays. There is no gradient to cut off here.
    """
    check_integer("mem_len", mem_len, least=0)
    check_list("hids", hids)
    for layer, hid in enumerate(hids):
        check({f"hids.{layer}": "B N F"}, hid)
    if mems is None:
        return None
    check_list("mems", mems, len(hids))
    for layer, (mem, hid) in enumerate(zip(mems, hids, strict=True)):
        check({f"hids.{layer}": "B N F", f"mems.{layer}": "B S F"}, hid, mem)
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
    check_gradients(d_new_mems, update_mems(hids, mems, mem_len))
    return (zeros_like(hids),) if mems is None else (zeros_like(hids), zeros_like(mems))


def check_gradients(d_new_mems: Mems, new_mems: Mems) -> None:
    """What arrives at the new memory has its shapes."""
    if new_mems is None:
        if d_new_mems is not None:
            raise ValueError(f"d_new_mems: wanted None, got {type(d_new_mems).__name__}")
        return
    check_list("d_new_mems", d_new_mems, len(new_mems))
    for layer, (gradient, x) in enumerate(zip(d_new_mems or [], new_mems, strict=True)):
        check({"new": "B S F", f"d_new_mems.{layer}": "B S F"}, x, gradient)


def zeros_like(arrays: Sequence[Array]) -> list[Array]:
    return [cupy.get_array_module(x).zeros(x.shape, x.dtype) for x in arrays]
