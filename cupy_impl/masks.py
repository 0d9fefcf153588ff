"""Masks, made and merged where their arrays are."""

import math
from types import ModuleType
from typing import Any

import cupy
from jaxtyping import Bool, Float

from .arrays import Array, default_module, float_dtype, is_array, is_float
from .shapes import check_integer, kind

__all__ = ["causal_mask", "merge_masks"]


def causal_mask(N: int, M: int) -> Bool[Array, "N M"]:
    """
    See :func:`spec.masks.causal_mask`.

    On the device where there is one.
    """
    check_integer("N", N)
    check_integer("M", M)
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
    check_integer("num_heads", num_heads)
    check_attn_mask(attn_mask, num_heads)
    check_padding(key_padding_mask, attn_mask, num_heads)
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


def check_attn_mask(attn_mask: Any, H: int) -> None:
    if attn_mask is None:
        return
    if not (is_array(attn_mask) and (attn_mask.dtype == bool or is_float(attn_mask))):
        raise ValueError(f"attn_mask: wanted a boolean or float array, got {kind(attn_mask)}")
    if (
        attn_mask.ndim not in (2, 3)
        or 0 in attn_mask.shape
        or (attn_mask.ndim == 3 and len(attn_mask) % H)
    ):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with H={H}, got {attn_mask.shape}"
        )


def check_padding(key_padding_mask: Any, attn_mask: Array | None, H: int) -> None:
    """Hold the padding to two axes and to the sizes that ``attn_mask`` fixes."""
    if key_padding_mask is None:
        return
    if not (is_array(key_padding_mask) and key_padding_mask.dtype == bool):
        raise ValueError(f"key_padding_mask: wanted a boolean array, got {kind(key_padding_mask)}")
    shape, wanted = key_padding_mask.shape, {}
    if attn_mask is not None:
        wanted = {"B": len(attn_mask) // H} if attn_mask.ndim == 3 else {}
        wanted["M"] = attn_mask.shape[-1]
    sizes = dict(zip("BM", shape, strict=False))
    if (
        len(shape) != 2
        or 0 in shape
        or any(sizes[letter] != size for letter, size in wanted.items())
    ):
        known = (
            " ".join(f"{letter}={size}" for letter, size in wanted.items()) or "sizes of at least 1"
        )
        raise ValueError(f"key_padding_mask: wanted shape [B M] with {known}, got {shape}")
