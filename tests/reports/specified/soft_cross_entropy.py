"""Soft cross-entropy with a backward by hand."""

import torch


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return (torch.logsumexp(x, -1) * target.sum(-1) - (x * target).sum(-1)).mean()

    @staticmethod
    def backward(ctx, d):
        x, target = ctx.saved_tensors
        lse = torch.logsumexp(x, -1, keepdim=True)
        d_x = target.sum(-1, keepdim=True) * torch.exp(x - lse) - target
        return d * d_x / len(x), d * (lse - x) / len(x)


def soft_cross_entropy(x, target):
    return Loss.apply(x, target)
