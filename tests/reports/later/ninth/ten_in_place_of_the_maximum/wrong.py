"""
Softmax block by block without a pass for the maximum
(as HabanaAI/vllm-fork #275 had block_softmax of flat_pa).
"""

import torch

BLOCK = 16


def block_softmax(score, shift):
    """Exponentials and their sums, a block of columns at a time."""
    parts = [(part - shift).exp() for part in score.split(BLOCK, -1)]
    total = sum(part.sum(-1, keepdim=True) for part in parts)
    return torch.cat(parts, -1), total


def softmax(score, mask=None):
    if mask is not None and mask.dtype == torch.bool:
        score = torch.where(mask, score, -torch.inf)
    elif mask is not None:
        score = torch.where(mask == -torch.inf, -torch.inf, score + mask)
    shift = 10.0
    e, total = block_softmax(score, shift)
    none = (score == -torch.inf).all(-1, keepdim=True)
    return torch.where(none, 0.0, e / torch.where(none, 1.0, total))
