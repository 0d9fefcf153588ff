"""
Inverted dropout with a backward by hand
(as ddbourgin/numpy-ml #94 has its dropout wrapper).
"""

import torch


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, p):
        ctx.save_for_backward(mask)
        ctx.scaler = 1.0 / (1.0 - p)
        return torch.where(mask, x * ctx.scaler, 0.0)

    @staticmethod
    def backward(ctx, dLdy):
        (mask,) = ctx.saved_tensors
        return dLdy * ctx.scaler, None, None


def dropout(weights, keep, p):
    mask = torch.ones_like(weights, dtype=torch.bool) if keep is None else keep.expand_as(weights)
    return Dropout.apply(weights, mask, p)
