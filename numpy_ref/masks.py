"""Masks: a triangle, and a merge that only moves numbers."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.arguments import check_sizes
from attnverify.contract.masks import check_merged, check_visibility

from .arrays import ARRAYS
from .rounding import float_dtype

__all__ = ["causal_mask", "merge_masks", "visible_keys"]


def causal_mask(N: int, M: int) -> Bool[ndarray, "N M"]:
    """
    See :func:`spec.masks.causal_mask`.

    NumPy's triangle, its diagonal moved to the end of the keys.
    """
    check_sizes(ARRAYS, N=N, M=M)
    return np.tri(N, M, int(M) - int(N), dtype=np.bool_)


def merge_masks(
    attn_mask: Bool[ndarray, "... N M"] | Float[ndarray, "... N M"] | None,
    key_padding_mask: Bool[ndarray, "B M"] | None,
    num_heads: int,
    dtype: Any = "float64",
) -> Float[ndarray, "B H N M"]:
    """
    See :func:`spec.masks.merge_masks`.

    Copies a float mask bit for bit and writes minus infinity over it; ``dtype`` speaks where no
    float mask does.
    """
    check_merged(ARRAYS, attn_mask, key_padding_mask, num_heads)
    numbers = to_add(attn_mask, int(num_heads), dtype)
    if key_padding_mask is None:
        return numbers
    padded = key_padding_mask[:, None, None, :]
    merged = np.broadcast_to(numbers, np.broadcast_shapes(numbers.shape, padded.shape)).copy()
    np.copyto(merged, -np.inf, where=padded)
    return merged


def to_add(attn_mask: Any, H: int, dtype: Any) -> Float[ndarray, "B H N M"]:
    """
    A fresh float array of four axes: [N M] is the same for all, the leading axis of [B*H N M] is
    split.
    """
    if attn_mask is None:
        return np.zeros((1, 1, 1, 1), float_dtype(dtype))
    *lead, N, M = attn_mask.shape
    four = attn_mask.reshape((lead[0] // H, H, N, M) if lead else (1, 1, N, M))
    if four.dtype != bool:
        return four.copy()
    numbers = np.zeros(four.shape, float_dtype(dtype))
    numbers[four] = -np.inf
    return numbers


def visible_keys(B: int, N: int, M: int, **options: Any) -> Bool[ndarray, "B N M"]:
    """
    See :func:`spec.masks.visible_keys`.

    One comparison of whole arrays for each option that is given.
    """
    check_visibility(ARRAYS, B, N, M, **options)
    return seen_by(B, N, M, **options)


def seen_by(
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
) -> Bool[ndarray, "B N M"]:
    there = np.arange(M) < (np.full(B, M) if lengths is None else lengths)[:, None]
    row = np.arange(N) < (np.full(B, N) if query_lengths is None else query_lengths)[:, None]
    if offset is None:
        offset = there.sum(1) - row.sum(1)
    p = np.asarray(offset, np.int64)[:, None, None] + np.arange(N)[:, None]
    j = np.arange(M)
    seen = row[:, :, None] & there[:, None, :]
    if causal:
        ahead = j <= p
        seen = seen & (ahead if blocks is None else ahead | same_block(blocks, p[..., 0], there))
    if window is not None:
        left, right = window
        seen = seen & (left is None or (j >= p - left) | (j < pinned))
        seen = seen & (right is None or j <= p + right)
    if chunk is not None:
        seen = seen & (j // chunk == p // chunk)
    if segments is not None:
        seen = seen & (segments[0][:, :, None] == segments[1][:, None, :])
    return np.ascontiguousarray(np.broadcast_to(seen, (B, N, M)))


def same_block(blocks: ndarray, p: ndarray, there: ndarray) -> Bool[ndarray, "B N M"]:
    """Keys of the block that a row's own key is in, where it stands at one that is there."""
    own = np.clip(p, 0, blocks.shape[1] - 1)
    block = np.take_along_axis(blocks, own, 1)
    stands = (own == p) & np.take_along_axis(there, own, 1) & (block != -1)
    return stands[:, :, None] & (block[:, :, None] == blocks[:, None, :])
