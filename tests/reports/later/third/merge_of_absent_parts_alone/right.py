"""The merge of partial attentions of a cascade (as flashinfer #4051 had it)."""

import torch

FEATURES = {"gradient": False}


def shift_of(lses):
    """What is subtracted before the exponentials: the largest lse of each row."""
    top = lses.amax(0)
    return top.masked_fill(top == -torch.inf, 0)


def merge_attention(outputs, lses):
    there = lses > -torch.inf
    shift = shift_of(lses)
    w = torch.exp(lses - shift)
    total = w.sum(0)
    shown = torch.where(there[..., None], outputs, 0)
    mixed = (w[..., None].to(shown.dtype) * shown).sum(0)
    whole = torch.where(total == 0, 1, total).to(mixed.dtype)
    return mixed / whole[..., None], shift + total.log()
