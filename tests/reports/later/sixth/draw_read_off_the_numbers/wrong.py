"""Dropout with a backward pass that keeps no mask: it compares what went in and what came out."""

import torch


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep, p):
        keep = torch.ones_like(x, dtype=torch.bool) if keep is None else keep.expand_as(x)
        y = torch.where(keep, x / (1 - p), 0)
        ctx.save_for_backward(x, y)
        ctx.p = p
        return y

    @staticmethod
    def backward(ctx, d_y):
        x, y = ctx.saved_tensors
        d_x = torch.where(y != 0, d_y / (1 - ctx.p), 0)
        return torch.where(x == 0, d_y, d_x), None, None


def dropout(weights, keep, p):
    return Dropout.apply(weights, keep, p)
