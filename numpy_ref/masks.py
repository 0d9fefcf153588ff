"""Masks: a triangle, and a merge that only moves numbers."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from .rounding import float_dtype
from .shapes import described, hold_integer, is_float

__all__ = ["causal_mask", "merge_masks"]


def causal_mask(N: int, M: int) -> Bool[ndarray, "N M"]:
    """
    See :func:`spec.masks.causal_mask`.

    NumPy's triangle, its diagonal moved to the end of the keys.
    """
    hold_integer("N", N)
    hold_integer("M", M)
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
    hold_integer("num_heads", num_heads)
    numbers = to_add(attn_mask, int(num_heads), dtype)
    if key_padding_mask is None:
        return numbers
    hold_padding(key_padding_mask, attn_mask, int(num_heads))
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
    hides = isinstance(attn_mask, ndarray) and attn_mask.dtype == bool
    if not hides and not is_float(attn_mask):
        raise ValueError(f"attn_mask: wanted a boolean or float array, got {described(attn_mask)}")
    *lead, N, M = attn_mask.shape if attn_mask.ndim > 1 else (0, 0)
    if len(lead) > 1 or 0 in attn_mask.shape or N == 0 or (lead and lead[0] % H):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with H={H}, got {attn_mask.shape}"
        )
    four = attn_mask.reshape((lead[0] // H, H, N, M) if lead else (1, 1, N, M))
    if not hides:
        return four.copy()
    numbers = np.zeros(four.shape, float_dtype(dtype))
    numbers[four] = -np.inf
    return numbers


def hold_padding(padding: Any, attn_mask: ndarray | None, H: int) -> None:
    if not (isinstance(padding, ndarray) and padding.dtype == bool):
        raise ValueError(f"key_padding_mask: wanted a boolean array, got {described(padding)}")
    B = attn_mask.shape[0] // H if attn_mask is not None and attn_mask.ndim == 3 else "any"
    M = attn_mask.shape[-1] if attn_mask is not None else "any"
    fits = (
        padding.ndim == 2
        and padding.size > 0
        and all(want in ("any", size) for want, size in zip((B, M), padding.shape, strict=True))
    )
    if not fits:
        raise ValueError(
            f"key_padding_mask: wanted shape [B M] with B={B} M={M}, got {padding.shape}"
        )
