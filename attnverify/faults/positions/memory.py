"""Faults of the memory: which end, which window, which layer, and what stands in a fresh one."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import attention, layers

WINDOW = "update_mems, clause 1"


def both(mem: ndarray, hid: ndarray) -> ndarray:
    return np.concatenate([mem, hid], axis=1)


@fault(
    "memory",
    "the memory behind the present",
    source="labml commit 1f38b232",
    clause=WINDOW,
    reveals="S > 0",
)
def update_mems_behind(**given: Any) -> Any:
    return attention.update_mems(**given, window=lambda mem, hid, n: attention.window(hid, mem, n))


@fault(
    "memory",
    "everything kept where nothing should be",
    source="x-transformers, t[-0:]",
    clause="update_mems, clause 2",
    reveals="mem_len = 0",
)
def update_mems_keeps_everything(**given: Any) -> Any:
    return attention.update_mems(**given, window=lambda mem, hid, n: both(mem, hid)[:, -n:].copy())


@fault(
    "memory",
    "a window as long as the memory is now",
    source="Transformers-RL #7",
    clause=WINDOW,
    reveals="S other than mem_len",
)
def update_mems_current_length(**given: Any) -> Any:
    return attention.update_mems(
        **given, window=lambda mem, hid, n: attention.window(mem, hid, mem.shape[1])
    )


@fault(
    "memory",
    "the first positions in place of the last",
    source="this project",
    clause=WINDOW,
    reveals="S + N > mem_len",
)
def update_mems_first_positions(**given: Any) -> Any:
    return attention.update_mems(**given, window=lambda mem, hid, n: both(mem, hid)[:, :n].copy())


@fault(
    "memory",
    "a window one position short",
    source="this project",
    clause=WINDOW,
    reveals="mem_len > 0",
)
def update_mems_one_short(**given: Any) -> Any:
    return attention.update_mems(
        **given, window=lambda mem, hid, n: attention.window(mem, hid, max(n - 1, 0))
    )


@fault(
    "memory",
    "zeros in front of a memory that is not full",
    source="this project",
    clause=WINDOW,
    reveals="S + N < mem_len",
)
def update_mems_padded(**given: Any) -> Any:
    def window(mem: ndarray, hid: ndarray, n: int) -> ndarray:
        kept = attention.window(mem, hid, n)
        return np.pad(kept, [(0, 0), (n - kept.shape[1], 0), (0, 0)])

    return attention.update_mems(**given, window=window)


@fault(
    "memory",
    "a segment that must fill the memory alone where it is longer, joined to the old",
    source="this project",
    clause=WINDOW,
    reveals="N > mem_len",
)
def update_mems_longer_segment(**given: Any) -> Any:
    def window(mem: ndarray, hid: ndarray, n: int) -> ndarray:
        return (
            attention.window(mem, hid[:, :n], n)
            if hid.shape[1] > n
            else attention.window(mem, hid, n)
        )

    return attention.update_mems(**given, window=window)


@fault(
    "memory",
    "a memory made of the segment where there was none",
    source="this project",
    clause="update_mems, clause 3",
    reveals="mems None",
)
def update_mems_from_nothing(hids: Any, mems: Any, mem_len: int) -> Any:
    return attention.update_mems(
        hids, [hid[:, :0] for hid in hids] if mems is None else mems, mem_len
    )


@fault(
    "memory",
    "layer 0's memory for all layers",
    source="this project",
    clause="update_mems: one a layer",
    reveals="L > 1",
)
def update_mems_of_first_layer(hids: Any, mems: Any, mem_len: int) -> Any:
    return attention.update_mems(hids, None if mems is None else [mems[0]] * len(mems), mem_len)


@fault(
    "memory",
    "a fresh memory that was never written",
    source="fairseq commit 42360dbc",
    clause="init_mems: zeros",
    reveals="any",
)
def init_mems_uninitialised(**given: Any) -> Any:
    mems = attention.init_mems(**given)
    return mems and [np.full(mem.shape, np.nan) for mem in mems]


@fault(
    "memory",
    "no list where there is no memory",
    source="this project",
    clause="init_mems, clause 1",
    reveals="mem_len = 0",
)
def init_mems_empty_arrays(n_layers: int, mem_len: int, batch: int, width: int) -> Any:
    return [np.zeros((batch, mem_len, width)) for _ in range(n_layers)]


@fault(
    "memory",
    "the sequence in front",
    source="kimiyoung/transformer-xl, tf/train.py",
    clause="init_mems: [B S F]",
    reveals="B other than S",
)
def init_mems_sequence_first(n_layers: int, mem_len: int, batch: int, width: int) -> Any:
    return attention.init_mems(n_layers, mem_len, batch, width) and [
        np.zeros((mem_len, batch, width)) for _ in range(n_layers)
    ]


@fault(
    "memory",
    "a memory of outputs",
    source="this project",
    clause="transformer_xl, clause 2",
    reveals="mems",
)
def transformer_xl_memory_of_outputs(**given: Any) -> Any:
    return layers.transformer_xl(**given, kept=slice(1, None))


@fault(
    "memory",
    "layer 0's memory for all layers",
    source="this project",
    clause="transformer_xl: mems_l",
    reveals="L > 1",
)
def transformer_xl_memory_of_first_layer(**given: Any) -> Any:
    return layers.transformer_xl(**given, mem_of=lambda layer: 0)


@fault(
    "memory",
    "positions in ascending order",
    source="this project",
    clause="transformer_xl, clause 1",
    reveals="M > 1",
)
def transformer_xl_positions_ascending(**given: Any) -> Any:
    return layers.transformer_xl(
        **given, positions=lambda M, F: attention.sinusoidal_positions(M, F)[::-1]
    )


@fault(
    "memory",
    "the memory behind the segment",
    source="labml commit 1f38b232",
    clause="transformer_xl_layer, clause 2",
    reveals="S > 0, other than N",
)
def transformer_xl_layer_memory_behind(**given: Any) -> Any:
    return layers.transformer_xl_layer(
        **given, together=lambda mem, x: np.concatenate([x, mem], axis=1)
    )


@fault(
    "memory",
    "every memory but the last position's forgotten",
    source="this project",
    clause="transformer_xl: update_mems",
    reveals="N > 1",
)
def transformer_xl_memory_of_one_position(**given: Any) -> Any:
    def update(hids: Any, mems: Any, mem_len: int) -> Any:
        return attention.update_mems(
            hids, mems, mem_len, window=lambda mem, hid, n: attention.window(mem, hid[:, -1:], n)
        )

    return layers.transformer_xl(**given, update=update)


@fault(
    "memory",
    "the old memory passed on where the new segment is shorter",
    source="this project",
    clause=WINDOW,
    reveals="N < S",
)
def transformer_xl_memory_not_moved(**given: Any) -> Any:
    def update(hids: Any, mems: Any, mem_len: int) -> Any:
        if mems is not None and hids[0].shape[1] < mems[0].shape[1]:
            return [mem[:, max(0, mem.shape[1] - mem_len) :].copy() for mem in mems]
        return attention.update_mems(hids, mems, mem_len)

    return layers.transformer_xl(**given, update=update)
