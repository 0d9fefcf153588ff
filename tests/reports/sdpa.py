"""Attention with a backward by hand."""

import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, bias, drop):
        scores = query @ key.mT * query.shape[-1] ** -0.5 + bias
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0)
        e = torch.exp(scores - top)
        total = e.sum(-1, keepdim=True)
        p = e / torch.where(total == 0, 1, total)
        ctx.save_for_backward(query, key, value, p, drop)
        ctx.shape = bias.shape
        return (p * drop) @ value

    @staticmethod
    def backward(ctx, d_out):
        query, key, value, p, drop = ctx.saved_tensors
        d_value = (p * drop).mT @ d_out
        d_p = (d_out @ value.mT) * drop
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True))
        scale = query.shape[-1] ** -0.5
        d_bias = d_s.sum_to_size(ctx.shape) if ctx.needs_input_grad[3] else None
        return d_s @ key * scale, d_s.mT @ query * scale, d_value, d_bias, None


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    bias = query.new_zeros(1, 1)
    if mask is not None and mask.dtype == torch.bool:
        bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    elif mask is not None:
        bias = mask
    drop = query.new_ones(()) if keep is None else keep / (1 - p)
    return Attend.apply(query, key, value, bias, drop.to(query.dtype))
