"""Merging the partial results of split keys, by their log-sum-exps."""

import torch


def merge_attention(outputs, lses):
    work = lses.dtype
    out, lse = outputs[0].to(work), lses[0]
    out = out.masked_fill(lse.isneginf()[..., None], 0)
    for o, other in zip(outputs[1:], lses[1:], strict=True):
        o = o.to(work).masked_fill(other.isneginf()[..., None], 0)
        top = torch.maximum(lse, other)
        top = top.clamp(min=torch.finfo(work).min)
        a, b = torch.exp(lse - top), torch.exp(other - top)
        total = a + b
        seen = total.masked_fill(total == 0, 1)
        out = (out * a[..., None] + o * b[..., None]) / seen[..., None]
        lse = (top + seen.log()).masked_fill(total == 0, -torch.inf)
    return out.to(outputs.dtype), lse
