"""Attention with dropout on the weights and a fused backward of softmax and dropout."""

import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, hidden, keep, p):
        scale = query.shape[-1] ** -0.5
        score = (query @ key.mT * scale).masked_fill(hidden, -torch.inf)
        top = score.amax(-1, keepdim=True)
        e = torch.exp(score - top.masked_fill(top.isneginf(), 0))
        total = e.sum(-1, keepdim=True)
        weights = e / total.masked_fill(total == 0, 1)
        dropped = weights * keep / (1 - p)
        ctx.save_for_backward(query, key, value, weights, dropped, keep)
        ctx.numbers = scale, p
        return dropped @ value

    @staticmethod
    def backward(ctx, d_output):
        query, key, value, weights, dropped, keep = ctx.saved_tensors
        scale, p = ctx.numbers
        d_value = dropped.mT @ d_output
        d_weights = (d_output @ value.mT) * keep * (1 / (1 - p))
        d_score = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
        d_score = d_score * scale
        return d_score @ key, d_score.mT @ query, d_value, None, None, None


def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is None:
        hidden = torch.zeros(shape, dtype=torch.bool)
    elif mask.dtype == torch.bool:
        hidden = ~mask.expand(shape)
    else:
        raise NotImplementedError("boolean masks alone")
    keep = torch.ones(shape, dtype=torch.bool) if keep is None else keep.expand(shape)
    work = torch.promote_types(query.dtype, torch.float32)
    return Attend.apply(query.to(work), key.to(work), value.to(work), hidden, keep, p).to(
        query.dtype
    )
