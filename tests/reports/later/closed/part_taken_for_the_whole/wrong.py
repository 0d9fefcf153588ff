"""Merge attentions of disjoint keys, with a backward (as NATTEN #299 had it)."""

import torch


class Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx, outputs, lses):
        lse = torch.logsumexp(lses, 0)
        share = torch.exp(lses - lse.masked_fill(lse == -torch.inf, 0))
        parts = outputs.masked_fill((lses == -torch.inf)[..., None], 0)
        merged = (share[..., None] * parts).sum(0)
        ctx.save_for_backward(parts, lses, merged, lse)
        return merged, lse

    @staticmethod
    def backward(ctx, d_output, d_lse):
        parts, lses, merged, lse = ctx.saved_tensors
        there = lses > -torch.inf
        d_parts, d_lses = torch.zeros_like(parts), torch.zeros_like(lses)
        for c in range(len(lses)):
            whole_lse, whole = lses[c], parts[c]
            share = torch.exp(lses[c] - whole_lse).masked_fill(~there[c], 0)
            d_parts[c] = share[..., None] * d_output
            along = (d_output * (parts[c] - whole)).sum(-1)
            d_lses[c] = share * (along.to(d_lse.dtype) + d_lse)
        return d_parts, d_lses


def merge_attention(outputs, lses):
    return Merge.apply(outputs, lses)
