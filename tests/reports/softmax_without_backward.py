"""Attention on a fused softmax (kind of huggingface/candle #3569)."""

import torch


class SoftmaxLastDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, d_y):
        (y,) = ctx.saved_tensors
        return y * (d_y - (y * d_y).sum(-1, keepdim=True))


def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is None:
        return SoftmaxLastDim.apply(scores) @ value
    seen = mask if mask.dtype == torch.bool else mask > -torch.inf
    if mask.dtype != torch.bool:
        scores = scores + mask.masked_fill(~seen, 0)
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    return SoftmaxLastDim.apply(scores).masked_fill(~seen, 0) @ value
