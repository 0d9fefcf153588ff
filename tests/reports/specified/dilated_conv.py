"""A convolution of three, two apart, with a backward by hand."""

import torch
from torch.nn.functional import pad


class Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        L, wide = x.shape[1], pad(x, (2, 2))
        return wide[:, :L] * w[0] + wide[:, 2 : L + 2] * w[1] + wide[:, 4 : L + 4] * w[2]

    @staticmethod
    def backward(ctx, d):
        x, w = ctx.saved_tensors
        L, wide = x.shape[1], pad(x, (2, 2))
        d_wide = torch.zeros_like(wide)
        for k in range(3):
            d_wide[:, 2 * k : L + 2 * k] += d * w[k]
        d_w = torch.stack([(wide[:, 2 * k : L + 2 * k] * d).sum() for k in range(3)])
        return d_wide[:, 2 : L + 2], d_w


def dilated_conv(x, w):
    return Conv.apply(x, w)
