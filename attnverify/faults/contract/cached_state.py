"""Faults of state: results that depend on the calls before."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import widened
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients, layers

ALONE = "a result depends on its arguments alone"


@fault("state", "a score buffer that is not cleared",
       source="TransformerEngine PR #236", clause=ALONE,
       reveals="a second call under another mask", stateful=True)  # fmt: skip
def softmax_kept_buffer(score: ndarray, memory: Any, mask: Any = None) -> Any:
    s, visible = attention.see(score, mask)
    e = attention.exponentials(s, visible)
    buffer = memory.setdefault(score.shape, np.zeros(score.shape))
    buffer[visible] = e[visible]
    total = buffer.sum(axis=-1, keepdims=True)
    return np.where(visible, e / np.where(total == 0, 1, total), 0)


@fault("state", "dropout off for ever after one call without it",
       source="Megatron-LM PR #411", clause=ALONE, reveals="p = 0, then p > 0",
       stateful=True)  # fmt: skip
def dropout_off_for_ever(weights: ndarray, keep: Any, p: float, memory: Any) -> Any:
    memory["off"] = memory.get("off", False) or p == 0
    return weights.copy() if memory["off"] else attention.dropout(weights, keep, p)


@fault("state", "the slopes of the first call's heads",
       source="x-transformers commit 74f241d", clause=ALONE, reveals="another H",
       stateful=True)  # fmt: skip
def alibi_attention_cached_slopes(memory: Any, **given: Any) -> Any:
    slopes = lambda H: np.resize(memory.setdefault("slopes", attention.get_slopes(H)), H)
    return attention.alibi_attention(
        **given, score=lambda q, k: attention.alibi_score(q, k, slopes=slopes)
    )


@fault("state", "a causal mask cached by the keys' length", source="this project",
       clause=ALONE, reveals="another N, the same M", stateful=True)  # fmt: skip
def transformer_xl_attention_cached_mask(memory: Any, **given: Any) -> Any:
    def causal(N: int, M: int) -> ndarray:
        known = memory.get(M)
        if known is None or len(known) < N:
            known = memory[M] = attention.causal_mask(N, M)
        return known[:N]

    return attention.transformer_xl_attention(**given, causal=causal)


@fault("state", "positions cut from the front of a longer table",
       source="this project", clause=ALONE, reveals="long then short",
       stateful=True)  # fmt: skip
def sinusoidal_positions_cached(M: int, F: int, memory: Any) -> Any:
    known = memory.get(F)
    if known is None or len(known) < M:
        known = memory[F] = attention.sinusoidal_positions(M, F)
    return known[:M].copy()


@fault("state", "the mask of the last call with this shape", source="this project",
       clause=ALONE, reveals="mask A, then mask B", stateful=True)  # fmt: skip
def scaled_dot_product_attention_cached_mask(memory: Any, mask: Any = None, **given: Any) -> Any:
    if mask is not None and mask.dtype == bool:
        mask = memory.setdefault(mask.shape, mask.copy())
    return attention.scaled_dot_product_attention(mask=mask, **given)


@fault("state", "keys kept from the last call with this shape, one call in fifty",
       source="flash-attention #359", clause=ALONE, reveals="many calls",
       stateful=True)  # fmt: skip
def scaled_dot_product_attention_grad_race(key: ndarray, memory: Any, **given: Any) -> Any:
    memory["calls"] = memory.get("calls", 0) + 1
    stale = np.roll(key, 1, axis=2) if memory["calls"] % 50 == 0 else key
    query_grad = lambda d, visible, k: gradients.query_grad(d, visible, stale)
    return gradients.scaled_dot_product_attention_grad(key=key, **given, query_grad=query_grad)


@fault("state", "the first call's rows of the table", source="this project",
       clause=ALONE, reveals="another M, the same N", stateful=True)  # fmt: skip
def learned_relative_score_cached_rows(memory: Any, **given: Any) -> Any:
    def rows(N: int, M: int, P: int, align: str) -> ndarray:
        known = memory.setdefault((N, M), attention.table_rows(N, M, P, align) - P)
        return known + P

    return attention.learned_relative_score(**given, table_rows=rows)


@fault("state", "a memory that remembers its own segments", source="this project",
       clause=ALONE, reveals="two calls", stateful=True)  # fmt: skip
def update_mems_remembers(hids: Any, mems: Any, mem_len: int, memory: Any) -> Any:
    kind = len(hids), hids[0].shape[0], hids[0].shape[2]
    new = attention.update_mems(hids, memory.get(kind, mems) if mems is not None else None, mem_len)
    if new is not None:
        memory[kind] = [x.copy() for x in new]
    return new


@fault("state", "an output buffer that every call writes again",
       source="CUDA graphs with a static output", clause=ALONE,
       reveals="an output kept over the next call", stateful=True, raw=True)  # fmt: skip
def rel_shift_static_output(x: ndarray, memory: Any) -> Any:
    buffer = memory.setdefault((x.shape, x.dtype), np.empty(x.shape, x.dtype))
    buffer[...] = attention.rel_shift(x.astype(np.float64))
    return buffer


@fault("state", "an output buffer that every call writes again",
       source="CUDA graphs with a static output", clause=ALONE,
       reveals="an output kept over the next call", stateful=True, raw=True)  # fmt: skip
def alibi_attention_static_output(query: ndarray, value: ndarray, memory: Any, **given: Any) -> Any:
    output = attention.alibi_attention(
        **map_leaves(widened, {"query": query, "value": value, **given})
    )
    buffer = memory.setdefault((output.shape, query.dtype), np.empty(output.shape, query.dtype))
    buffer[...] = output
    return buffer


def _in_narrowest(operation: str, memory: Any, **given: Any) -> Any:
    dtype = memory.get("dtype", given["query"].dtype)
    memory["dtype"] = min(dtype, given["query"].dtype, key=lambda one: one.itemsize)
    wide = map_leaves(widened, given)
    return getattr(attention, operation)(**wide).astype(memory["dtype"]).astype(np.float64)


add_faults("state", (
    ("get_alibi_biases_cached", "biases cached by their length, whatever the mask",
     "labml's ALiBi page", ALONE, "mask A, then mask B",
     lambda n_heads, visible, memory: memory.setdefault((n_heads, visible.shape),
      attention.get_alibi_biases(n_heads, visible)).copy(), {"stateful": True}),
    ("scaled_dot_product_attention_first_scale", "the scale of the first call", "this project",
     ALONE, "another D",
     lambda memory, **given: attention.scaled_dot_product_attention(**given, scale=lambda D:
      memory.setdefault("scale", attention.inverse_root(D))), {"stateful": True}),
    ("scaled_dot_product_attention_narrowest_dtype",
     "the narrowest dtype so far kept for every call", "this project", ALONE,
     "a narrow dtype before a wide one",
     lambda memory, query, **given: _in_narrowest("scaled_dot_product_attention", memory,
      query=query, **given), {"wrong_in": ("float64", "float32"), "stateful": True, "raw": True}),
    ("transformer_xl_score_narrowest_dtype", "the narrowest dtype so far kept for every call",
     "this project", ALONE, "a narrow dtype before a wide one",
     lambda memory, query, **given: _in_narrowest("transformer_xl_score", memory, query=query,
      **given), {"wrong_in": ("float64", "float32"), "stateful": True, "raw": True}),
    ("alibi_multi_head_attention_cached_biases",
     "biases cached by their length, whatever the mask", "labml's ALiBi page",
     "alibi_multi_head_attention, clause 3", "mask A, then mask B of the same length",
     lambda memory, **given: layers.alibi_multi_head_attention( **given, biases=lambda H, visible:
     memory.setdefault( (H, visible.shape), attention.get_alibi_biases(H, visible) ), ),
     {"stateful": True}),
))  # fmt: skip
