"""Dropout with a backward pass of its own."""

import torch


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep, p):
        keep = torch.ones_like(x, dtype=torch.bool) if keep is None else keep.expand_as(x)
        y = torch.where(keep, x / (1 - p), 0)
        ctx.save_for_backward(keep)
        ctx.p = p
        return y

    @staticmethod
    def backward(ctx, d_y):
        (keep,) = ctx.saved_tensors
        return torch.where(keep, d_y / (1 - ctx.p), 0), None, None


def dropout(weights, keep, p):
    return Dropout.apply(weights, keep, p)
