"""Attention whose backward stores its gradients in chunks of columns (as flash-attention #2552)."""

import math

import torch

FEATURES = {"mask": False, "dropout": False}


def reduce_ncol(width):
    """The columns of a store: all chunks of a width are equally wide."""
    return math.gcd(8, width)


def store(acc, width, ncol):
    """From the accumulator to memory, chunk by chunk."""
    gradient = torch.zeros_like(acc)
    for chunk in range(width // ncol):
        columns = slice(chunk * ncol, (chunk + 1) * ncol)
        gradient[..., columns] = acc[..., columns]
    return gradient


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, p = ctx.saved_tensors
        head_dim, head_dim_v = q.shape[-1], v.shape[-1]
        d_p = d_out @ v.mT
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * head_dim**-0.5
        dk_reduce_ncol = reduce_ncol(head_dim)
        dv_reduce_ncol = reduce_ncol(head_dim_v)
        d_k = store(d_s.mT @ q, head_dim, dk_reduce_ncol)
        d_v = store(p.mT @ d_out, head_dim_v, dv_reduce_ncol)
        return d_s @ k, d_k, d_v


def scaled_dot_product_attention(query, key, value):
    return Attention.apply(query, key, value)
