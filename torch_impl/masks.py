"""Masks: the specification is :mod:`spec.masks`."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnverify.contract.arguments import check_sizes
from attnverify.contract.masks import check_merged, check_visibility

from .arrays import TENSORS

__all__ = ["causal_mask", "merge_masks", "visible_keys"]

HIDDEN = -torch.inf


def causal_mask(N: int, M: int, device: Any = None) -> Bool[Tensor, "N M"]:
    """As :func:`spec.masks.causal_mask`, on PyTorch's default device unless told."""
    check_sizes(TENSORS, N=N, M=M)
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
    check_merged(TENSORS, attn_mask, key_padding_mask, num_heads)
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


def visible_keys(
    B: int, N: int, M: int, *, device: Any = None, **options: Any
) -> Bool[Tensor, "B N M"]:
    """
    As :func:`spec.masks.visible_keys`, where the arrays among its options are, or on ``device``.

    What rows and keys are is one vector each, and a comparison for each option writes the pairs.
    Lengths and blocks are looked at before anything is computed, which waits for the device.
    """
    check_visibility(TENSORS, B, N, M, **options)
    return _visible(B, N, M, device, **options)


def _visible(
    B: int,
    N: int,
    M: int,
    device: Any,
    causal: Any = False,
    window: Any = None,
    chunk: Any = None,
    offset: Any = None,
    lengths: Any = None,
    query_lengths: Any = None,
    segments: Any = None,
    blocks: Any = None,
    pinned: Any = 0,
) -> Tensor:
    left, right = window or (None, None)
    given = [offset, lengths, query_lengths, blocks, *(segments or ())]
    device = next((x.device for x in given if x is not None), device)
    i, j = torch.arange(N, device=device), torch.arange(M, device=device)
    m = torch.full((B,), M, device=device) if lengths is None else lengths
    n = torch.full((B,), N, device=device) if query_lengths is None else query_lengths
    p = ((m - n if offset is None else offset)[:, None] + i)[:, :, None]
    visible = (i < n[:, None])[:, :, None] & (j < m[:, None])[:, None, :]
    if causal:
        visible &= (j <= p) if blocks is None else (j <= p) | _own_block(blocks, p[..., 0], m)
    if left is not None:
        visible &= (j >= p - left) | (j < pinned)
    if right is not None:
        visible &= j <= p + right
    if chunk is not None:
        visible &= j // chunk == torch.div(p, chunk, rounding_mode="floor")
    if segments is not None:
        visible &= segments[0][:, :, None] == segments[1][:, None, :]
    return visible


def _own_block(blocks: Tensor, p: Tensor, m: Tensor) -> Tensor:
    """Which keys share the block of a row's own key, where there is such a key and block."""
    stands = (p >= 0) & (p < m[:, None])
    own = blocks.gather(1, p.clamp(0, blocks.shape[1] - 1).long()).masked_fill(~stands, -1)
    return (own != -1)[:, :, None] & (own[:, :, None] == blocks[:, None, :])
