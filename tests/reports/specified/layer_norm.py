"""Layer norm with a backward by hand."""

import torch


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        c = x - x.mean(-1, keepdim=True)
        r = torch.rsqrt((c * c).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(c * r, r, weight)
        return c * r * weight + bias

    @staticmethod
    def backward(ctx, d):
        y, r, weight = ctx.saved_tensors
        g = d * weight
        d_x = r * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))
        return d_x, (d * y).sum((0, 1)), d.sum((0, 1))


def layer_norm(x, weight, bias):
    return Norm.apply(x, weight, bias)
