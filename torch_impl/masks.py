"""Masks: the specification is :mod:`spec.masks`."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .shapes import check_integer, kind

__all__ = ["causal_mask", "merge_masks"]

HIDDEN = -torch.inf


def causal_mask(N: int, M: int, device: Any = None) -> Bool[Tensor, "N M"]:
    """As :func:`spec.masks.causal_mask`, on PyTorch's default device unless told."""
    check_integer("N", N)
    check_integer("M", M)
    return torch.ones(N, M, dtype=torch.bool, device=device).tril_(M - N)


def merge_masks(
    attn_mask: Bool[Tensor, "... N M"] | Float[Tensor, "... N M"] | None,
    key_padding_mask: Bool[Tensor, "B M"] | None,
    num_heads: int,
    dtype: torch.dtype = torch.float32,
    device: Any = None,
) -> Float[Tensor, "B H N M"]:
    """
    As :func:`spec.masks.merge_masks`. A float attn_mask keeps its dtype; ``dtype`` is that of every
    other result.

    One pass over N by M: what is hidden is merged while it is written.
    """
    check_integer("num_heads", num_heads)
    if attn_mask is not None:
        check_attn_mask(attn_mask, num_heads)
    if key_padding_mask is not None:
        check_padding(key_padding_mask, attn_mask, num_heads)
    padded, attn = both_in_four_axes(attn_mask, key_padding_mask, num_heads)
    like = next((mask for mask in (attn, padded) if mask is not None), None)
    if attn is not None and attn.dtype != torch.bool:
        return attn.clone() if padded is None else torch.where(padded, HIDDEN, attn)
    added = torch.zeros(1, 1, 1, 1, dtype=dtype, device=device if like is None else like.device)
    for hidden in (padded, attn):  # the small one first
        added = added if hidden is None else torch.where(hidden, HIDDEN, added)
    return added


def both_in_four_axes(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, H: int
) -> tuple[Tensor | None, Tensor | None]:
    """The two masks, padding first, as views with the four axes [B H N M]."""
    padded = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    if attn_mask is None:
        return padded, None
    return padded, attn_mask[None, None] if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, H))


def two_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, H: int
) -> tuple[Tensor | None, Tensor | None]:
    """
    The two masks as what is hidden and what is added, each None or with the four axes [B H N M].
    """
    hidden, attn = both_in_four_axes(attn_mask, key_padding_mask, H)
    if attn is None or attn.dtype != torch.bool:
        return hidden, attn
    return attn if hidden is None else attn | hidden, None


def check_attn_mask(attn_mask: Any, H: int) -> None:
    if not isinstance(attn_mask, Tensor) or not (
        attn_mask.dtype == torch.bool or attn_mask.dtype.is_floating_point
    ):
        raise ValueError(f"attn_mask: wanted a boolean or float tensor, got {kind(attn_mask)}")
    if (
        attn_mask.ndim not in (2, 3)
        or 0 in attn_mask.shape
        or (attn_mask.ndim == 3 and attn_mask.shape[0] % H)
    ):
        raise ValueError(
            f"attn_mask: wanted shape [N M] or [B*H N M] with H={H}, got {tuple(attn_mask.shape)}"
        )


def check_padding(key_padding_mask: Any, attn_mask: Tensor | None, H: int) -> None:
    if not isinstance(key_padding_mask, Tensor) or key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask: wanted a boolean tensor, got {kind(key_padding_mask)}")
    B = attn_mask.shape[0] // H if attn_mask is not None and attn_mask.ndim == 3 else None
    M = attn_mask.shape[-1] if attn_mask is not None else None
    shape = tuple(key_padding_mask.shape)
    if len(shape) != 2 or 0 in shape or B not in (None, shape[0]) or M not in (None, shape[1]):
        fixed = " ".join(
            f"{letter}={size}" for letter, size in (("B", B), ("M", M)) if size is not None
        )
        raise ValueError(
            f"key_padding_mask: wanted shape [B M]{' with ' * bool(fixed)}{fixed}, got {shape}"
        )
