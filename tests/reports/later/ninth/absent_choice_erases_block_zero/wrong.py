"""
Attention over chosen blocks by a mask that is scattered from their numbers
(as NVIDIA-NeMo/Automodel #2152 had the indexer's mask of DeepSeek V4).
"""

import torch

FEATURES = {"mask": False, "dropout": False}


def chosen_blocks(selection, blocks):
    """[B G N J] numbers of blocks, -1 for none, as [B G N blocks]."""
    valid = selection >= 0
    index = selection.clamp(min=0).long()
    chosen = torch.zeros(*selection.shape[:-1], blocks, dtype=torch.bool)
    return chosen.scatter_(-1, index, valid)


def selected_attention(query, key, value, selection, block, scale=None, causal=False):
    (_, h, n, d), (_, g, m, _) = query.shape, key.shape
    scale = d**-0.5 if scale is None else scale
    chosen = chosen_blocks(selection, -(-m // block))
    seen = chosen.repeat_interleave(block, -1)[..., :m].repeat_interleave(h // g, 1)
    if causal:
        seen = seen & (torch.arange(m) <= torch.arange(n)[:, None] + m - n)
    key, value = (x.repeat_interleave(h // g, 1) for x in (key, value))
    score = (scale * (query @ key.mT)).masked_fill(~seen, -torch.inf)
    some = seen.any(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(some, score, 0.0), -1, keepdim=True)
    weights = torch.where(seen, (score - lse).exp(), 0.0)
    return weights @ value, torch.where(some, lse, -torch.inf)[..., 0]
