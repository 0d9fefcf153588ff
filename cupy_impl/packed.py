"""Sequences laid end to end, as whole arrays."""

from typing import Any

import cupy
from jaxtyping import Bool, Float, Int

from attnverify.contract.packed import D_PACKED, check_packed
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee
from .grouped import attended, gradients

__all__ = ["packed_attention", "packed_attention_grad"]

Starts = Int[Array, "B+1"]


@ieee
def packed_attention(
    query: Float[Array, "T H D"],
    key: Float[Array, "U G D"],
    value: Float[Array, "U G E"],
    query_starts: Starts,
    key_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[Array, "T H E"], Float[Array, "T H"]]:
    """
    See :func:`spec.packed.packed_attention`.

    All rows over all keys, hidden from each other where their sequences are two.
    """
    check_packed(
        ARRAYS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    pairs = visible_tokens(query, key, query_starts, key_starts, **options)
    q, k, v = heads_first(query, key, value)
    return tokens_first(*attended(q, k, v, None, pairs, soft_cap, sink, scale))


@ieee
def packed_attention_grad(
    d_output: Float[Array, "T H E"],
    d_lse: Float[Array, "T H"],
    query: Float[Array, "T H D"],
    key: Float[Array, "U G D"],
    value: Float[Array, "U G E"],
    query_starts: Starts,
    key_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Array, ...]:
    """See :func:`spec.packed.packed_attention_grad`."""
    at = check_packed(
        ARRAYS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    check(ARRAYS, D_PACKED, d_output, d_lse, **at)
    pairs = visible_tokens(query, key, query_starts, key_starts, **options)
    d_o, d_l = heads_first(d_output, d_lse)
    q, k, v = heads_first(query, key, value)
    found = gradients((d_o, d_l), q, k, v, None, pairs, soft_cap, sink, scale)
    return *tokens_first(*found[:3]), *found[3:]


def visible_tokens(
    query: Array,
    key: Array,
    query_starts: Starts,
    key_starts: Starts,
    causal: bool = False,
    window: Any = None,
    chunk: int | None = None,
    offset: Array | None = None,
    lengths: Array | None = None,
    pinned: int = 0,
) -> Bool[Array, "1 H T U"]:
    """Which tokens see each other: of each its sequence and its place there, then comparisons."""
    xp = cupy.get_array_module(query)
    (T, H), U = query.shape[:2], key.shape[0]
    of_row, i = places(query_starts, T)
    of_key, j = places(key_starts, U)
    m = xp.diff(key_starts) if lengths is None else lengths
    first = m - xp.diff(query_starts) if offset is None else offset
    p, j = (first[of_row] + i)[:, None], j[None, :]
    there = (i >= 0)[:, None] & (j >= 0) & (of_row[:, None] == of_key) & (j < m[of_key])
    left, right = window or (None, None)
    if causal:
        there &= j <= p
    if left is not None:
        there &= (j >= p - left) | (j < pinned)
    if right is not None:
        there &= j <= p + right
    if chunk is not None:
        there &= j // chunk == p // chunk
    return xp.broadcast_to(there, (1, H, T, U))


def places(starts: Starts, count: int) -> tuple[Array, Array]:
    """The sequence of each token and its place there, which is -1 in none."""
    xp = cupy.get_array_module(starts)
    at = xp.arange(count)
    b = xp.searchsorted(starts, at, side="right") - 1
    inside = (b >= 0) & (b < len(starts) - 1)
    b = xp.where(inside, b, 0)
    return b, xp.where(inside, at - starts[b], -1)


def heads_first(*tokens: Array) -> tuple[Any, ...]:
    """Tokens [T H ...] as heads of one entry [1 H T ...], in one piece."""
    return tuple(cupy.get_array_module(x).ascontiguousarray(x.swapaxes(0, 1))[None] for x in tokens)


def tokens_first(*heads: Array) -> tuple[Any, ...]:
    """And back."""
    return tuple(x[0].swapaxes(0, 1) for x in heads)
