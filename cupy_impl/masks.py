"""Masks, made and merged where their arrays are."""

import math
from types import ModuleType
from typing import Any

import cupy
from jaxtyping import Bool, Float

from attnverify.contract.arguments import check_sizes
from attnverify.contract.masks import check_merged, check_visibility

from .arrays import ARRAYS, Array, default_module, float_dtype

__all__ = ["causal_mask", "merge_masks", "visible_keys"]


def causal_mask(N: int, M: int) -> Bool[Array, "N M"]:
    """
    See :func:`spec.masks.causal_mask`.

    On the device where there is one.
    """
    check_sizes(ARRAYS, N=N, M=M)
    return causal(default_module(), N, M)


def causal(xp: ModuleType, N: int, M: int, visible: Array | None = None) -> Bool[Array, "... N M"]:
    """The end-aligned triangle, less what ``visible`` hides."""
    triangle = xp.tri(N, M, M - N, dtype=bool)
    return triangle if visible is None else triangle & visible


def merge_masks(
    attn_mask: Bool[Array, "... N M"] | Float[Array, "... N M"] | None,
    key_padding_mask: Bool[Array, "B M"] | None,
    num_heads: int,
    dtype: Any = "float32",
) -> Float[Array, "B H N M"]:
    """
    See :func:`spec.masks.merge_masks`.

    One selection per mask. A float ``attn_mask`` keeps its dtype and its bits; ``dtype`` is that of
    every other result.
    """
    check_merged(ARRAYS, attn_mask, key_padding_mask, num_heads)
    given = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
    xp = cupy.get_array_module(*given) if given else default_module()
    if attn_mask is None or attn_mask.dtype == bool:
        zero = xp.zeros((1, 1, 1, 1), float_dtype(dtype))
        merged = zero if attn_mask is None else hidden(xp, four_axes(attn_mask, num_heads), zero)
    else:
        merged = four_axes(attn_mask, num_heads).copy()
    return (
        merged
        if key_padding_mask is None
        else hidden(xp, key_padding_mask[:, None, None, :], merged)
    )


def hidden(xp: ModuleType, where: Array, mask: Array) -> Array:
    return xp.where(
        where, xp.full((), -math.inf, mask.dtype), mask
    )  # a bare -inf would turn bfloat16 into float64


def four_axes(attn_mask: Array, H: int) -> Array:
    return (
        attn_mask[None, None]
        if attn_mask.ndim == 2
        else attn_mask.reshape(-1, H, *attn_mask.shape[1:])
    )


def visible_keys(B: int, N: int, M: int, **options: Any) -> Bool[Array, "B N M"]:
    """
    See :func:`spec.masks.visible_keys`.

    Where the arrays among its options are; on the device where there is one and no array is given.
    """
    check_visibility(ARRAYS, B, N, M, **options)
    return visible(B, N, M, **options)


def visible(
    B: int,
    N: int,
    M: int,
    causal: Any = False,
    window: Any = None,
    chunk: Any = None,
    offset: Any = None,
    lengths: Any = None,
    query_lengths: Any = None,
    segments: Any = None,
    blocks: Any = None,
    pinned: Any = 0,
) -> Array:
    """As a band of each row, from ``first`` to ``end``, less what segments and pins change."""
    given = [
        x for x in (offset, lengths, query_lengths, blocks, *(segments or ())) if x is not None
    ]
    xp = cupy.get_array_module(*given) if given else default_module()
    i, j = xp.arange(N)[None, :, None], xp.arange(M)[None, None, :]
    m = (xp.full(B, M) if lengths is None else lengths)[:, None, None]
    n = (xp.full(B, N) if query_lengths is None else query_lengths)[:, None, None]
    p = (m - n if offset is None else offset[:, None, None]) + i
    left, right = window or (None, None)
    end = m if right is None else xp.minimum(m, p + right + 1)
    first = xp.zeros_like(p) if left is None else p - left
    seen = (i < n) & (j < end) & ((j >= first) | (j < pinned))
    if causal and blocks is None:
        seen &= j <= p
    elif causal:
        seen &= (j <= p) | same_block(xp, blocks, p, m)
    if chunk is not None:
        run = p // chunk * chunk
        seen &= (j >= run) & (j < run + chunk)
    if segments is not None:
        seen &= segments[0][:, :, None] == segments[1][:, None, :]
    return seen


def same_block(xp: ModuleType, blocks: Array, p: Array, m: Array) -> Array:
    """Which keys are in the block of the key at p, where there is one."""
    at = xp.clip(p, 0, blocks.shape[1] - 1)[:, :, 0]
    own = xp.take_along_axis(blocks, at, 1)[:, :, None]
    return (p >= 0) & (p < m) & (own != -1) & (own == blocks[:, None, :])
