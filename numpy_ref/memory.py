"""Memory: the tail of two arrays, copied."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from .rounding import float_dtype
from .shapes import hold, hold_integer, hold_layers

__all__ = ["init_mems", "update_mems", "update_mems_grad"]

Mems = list[Float[ndarray, "B S F"]] | None


def init_mems(n_layers: int, mem_len: int, batch: int, width: int, dtype: Any = "float64") -> Mems:
    """
    See :func:`spec.memory.init_mems`.

    One array of zeros a layer, in ``dtype``.
    """
    hold_integer("n_layers", n_layers)
    hold_integer("mem_len", mem_len, least=0)
    hold_integer("batch", batch)
    hold_integer("width", width)
    if mem_len == 0:
        return None
    return [np.zeros((batch, mem_len, width), float_dtype(dtype)) for _ in range(n_layers)]


def update_mems(hids: Sequence[Float[ndarray, "B N F"]], mems: Mems, mem_len: int) -> Mems:
    """
    See :func:`spec.memory.update_mems`.

    Cuts the tails first and joins them after: what falls out of the memory is never copied.
    """
    hold_integer("mem_len", mem_len, least=0)
    hold_layers("hids", hids)
    for layer, hid in enumerate(hids):
        hold(**{f"hids.{layer}": (hid, "B N F")})
    if mems is None:
        return None
    hold_layers("mems", mems, len(hids))
    for layer, (mem, hid) in enumerate(zip(mems, hids, strict=True)):
        hold(**{f"hids.{layer}": (hid, "B N F"), f"mems.{layer}": (mem, "B S F")})
    return [tail(mem, hid, int(mem_len)) for mem, hid in zip(mems, hids, strict=True)]


def tail(mem: ndarray, hid: ndarray, mem_len: int) -> ndarray:
    S, N = mem.shape[1], hid.shape[1]
    new = min(N, mem_len)
    old = min(S, mem_len - new)
    return np.concatenate([mem[:, S - old :], hid[:, N - new :]], axis=1)


def update_mems_grad(
    d_new_mems: Mems, hids: Sequence[Float[ndarray, "B N F"]], mems: Mems, mem_len: int
) -> tuple[list[ndarray], ...]:
    """
    See :func:`spec.memory.update_mems_grad`.

    Zeros in the shapes and formats of the inputs.
    """
    hold_gradients(d_new_mems, update_mems(hids, mems, mem_len))
    d_hids = [np.zeros_like(hid) for hid in hids]
    return (d_hids,) if mems is None else (d_hids, [np.zeros_like(mem) for mem in mems])


def hold_gradients(d_new_mems: Mems, new_mems: Mems) -> None:
    """What arrives at the new memory has its shapes."""
    if new_mems is None:
        if d_new_mems is not None:
            raise ValueError(f"d_new_mems: wanted None, got {type(d_new_mems).__name__}")
        return
    hold_layers("d_new_mems", d_new_mems, len(new_mems))
    for layer, (gradient, x) in enumerate(zip(d_new_mems or [], new_mems, strict=True)):
        sizes = dict(zip("BSF", x.shape, strict=True))
        hold(sizes, **{f"d_new_mems.{layer}": (gradient, "B S F")})
