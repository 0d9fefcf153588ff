"""Memory: the tail of two arrays, copied."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.layers import (
    check_init_mems,
    check_memory_gradients,
    check_update_mems,
)

from .arrays import ARRAYS
from .rounding import float_dtype

__all__ = ["init_mems", "update_mems", "update_mems_grad"]

Mems = list[Float[ndarray, "B S F"]] | None


def init_mems(n_layers: int, mem_len: int, batch: int, width: int, dtype: Any = "float64") -> Mems:
    """
    See :func:`spec.memory.init_mems`.

    One array of zeros a layer, in ``dtype``.
    """
    check_init_mems(ARRAYS, n_layers, mem_len, batch, width)
    if mem_len == 0:
        return None
    return [np.zeros((batch, mem_len, width), float_dtype(dtype)) for _ in range(n_layers)]


def update_mems(hids: Sequence[Float[ndarray, "B N F"]], mems: Mems, mem_len: int) -> Mems:
    """
    See :func:`spec.memory.update_mems`.

    Cuts the tails first and joins them after: what falls out of the memory is never copied.
    """
    check_update_mems(ARRAYS, hids, mems, mem_len)
    if mems is None:
        return None
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
    check_memory_gradients(ARRAYS, d_new_mems, update_mems(hids, mems, mem_len))
    d_hids = [np.zeros_like(hid) for hid in hids]
    return (d_hids,) if mems is None else (d_hids, [np.zeros_like(mem) for mem in mems])
