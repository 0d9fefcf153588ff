"""Faults of the memory: which end, which window, which layer, and what stands in a fresh one."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import with_outputs
from attnverify.faults.registry import add_faults
from attnverify.reference import attention

WINDOW = "update_mems, clause 1"


def both(mem: ndarray, hid: ndarray) -> ndarray:
    return np.concatenate([mem, hid], axis=1)


def padded(mem: ndarray, hid: ndarray, n: int) -> ndarray:
    kept = attention.window(mem, hid, n)
    return np.pad(kept, [(0, 0), (n - kept.shape[1], 0), (0, 0)])


def longer_segment(mem: ndarray, hid: ndarray, n: int) -> ndarray:
    return (
        attention.window(mem, hid[:, :n], n) if hid.shape[1] > n else attention.window(mem, hid, n)
    )


def memory_of_one_position(hids: Any, mems: Any, mem_len: int) -> Any:
    return attention.update_mems(
        hids, mems, mem_len, window=lambda mem, hid, n: attention.window(mem, hid[:, -1:], n)
    )


def memory_not_moved(hids: Any, mems: Any, mem_len: int) -> Any:
    if mems is not None and hids[0].shape[1] < mems[0].shape[1]:
        return [mem[:, max(0, mem.shape[1] - mem_len) :].copy() for mem in mems]
    return attention.update_mems(hids, mems, mem_len)


add_faults("memory", (
    ("update_mems_one_short", "a window one position short", "this project", WINDOW,
     "mem_len > 0", {"window": lambda mem, hid, n: attention.window(mem, hid, max(n - 1, 0))}),
    ("update_mems_from_nothing", "a memory made of the segment where there was none",
     "this project", "update_mems, clause 3", "mems None",
     lambda hids, mems, mem_len: attention.update_mems(hids, [hid[:, :0] for hid in hids] if mems
      is None else mems, mem_len)),
    ("update_mems_of_first_layer", "layer 0's memory for all layers", "this project",
     "update_mems: one a layer", "L > 1",
     lambda hids, mems, mem_len: attention.update_mems(hids, None if mems is None else [mems[0]] *
      len(mems), mem_len)),
    ("init_mems_empty_arrays", "no list where there is no memory", "this project",
     "init_mems, clause 1", "mem_len = 0",
     lambda n_layers, mem_len, batch, width: [np.zeros((batch, mem_len, width)) for _ in
      range(n_layers)]),
    ("init_mems_sequence_first", "the sequence in front", "kimiyoung/transformer-xl, tf/train.py",
     "init_mems: [B S F]", "B other than S",
     lambda n_layers, mem_len, batch, width: attention.init_mems(n_layers, mem_len, batch, width)
      and [np.zeros((mem_len, batch, width)) for _ in range(n_layers)]),
    ("transformer_xl_memory_of_outputs", "a memory of outputs", "this project",
     "transformer_xl, clause 2", "mems", {"kept": slice(1, None)}),
    ("transformer_xl_memory_of_first_layer", "layer 0's memory for all layers", "this project",
     "transformer_xl: mems_l", "L > 1", {"mem_of": lambda layer: 0}),
    ("transformer_xl_positions_ascending", "positions in ascending order", "this project",
     "transformer_xl, clause 1", "M > 1",
     {"positions": lambda M, F: attention.sinusoidal_positions(M, F)[::-1]}),
    ("transformer_xl_layer_memory_behind", "the memory behind the segment",
     "labml commit 1f38b232", "transformer_xl_layer, clause 2", "S > 0, other than N",
     {"together": lambda mem, x: np.concatenate([x, mem], axis=1)}),
    ("update_mems_padded", "zeros in front of a memory that is not full", "this project", WINDOW,
     "S + N < mem_len", {"window": padded}),
    ("update_mems_longer_segment",
     "a segment that must fill the memory alone where it is longer, joined to the old",
     "this project", WINDOW, "N > mem_len", {"window": longer_segment}),
    ("transformer_xl_memory_of_one_position", "every memory but the last position's forgotten",
     "this project", "transformer_xl: update_mems", "N > 1", {"update": memory_of_one_position}),
    ("transformer_xl_memory_not_moved",
     "the old memory passed on where the new segment is shorter", "this project", WINDOW, "N < S",
     {"update": memory_not_moved}),
    ("init_mems_uninitialised", "a fresh memory that was never written",
     "fairseq commit 42360dbc", "init_mems: zeros", "any",
     with_outputs(attention.init_mems, {0: lambda mems, x: mems and [np.full(mem.shape, np.nan) for
      mem in mems]})),
))  # fmt: skip
