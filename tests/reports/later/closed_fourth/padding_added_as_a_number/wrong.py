"""The masks of multi-head attention in one to add (as the torch of mlverse #1208 had it)."""

import torch


def additive(mask):
    """A float mask from a boolean one, whose True is hidden; a float mask is itself."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def merge_masks(attn_mask, key_padding_mask, num_heads):
    merged = torch.zeros(1, 1, 1, 1)
    if attn_mask is not None:
        merged = additive(attn_mask)
        n, m = attn_mask.shape[-2:]
        merged = merged[None, None] if merged.dim() == 2 else merged.view(-1, num_heads, n, m)
    if key_padding_mask is not None:
        merged = merged + key_padding_mask[:, None, None, :].to(merged.dtype)
    return merged.clone()
