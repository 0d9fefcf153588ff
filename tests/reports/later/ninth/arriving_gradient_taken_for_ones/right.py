"""
Attention as a cell of its own, whose backward differentiates the forward once more
(as mindspore-lab/mindone #1438 had NativeAttentionCell).
"""

import torch

FEATURES = {"mask": False, "dropout": False}


def forward_fn(query, key, value):
    score = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    return torch.softmax(score, dim=-1) @ value


class NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        ctx.save_for_backward(query, key, value)
        return forward_fn(query, key, value)

    @staticmethod
    def backward(ctx, dout):
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = forward_fn(*inputs)
        return torch.autograd.grad(out, inputs, dout)


def scaled_dot_product_attention(query, key, value):
    return NativeAttention.apply(query, key, value)
