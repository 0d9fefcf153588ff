"""Attention with a learned bias and a backward of its own (kind of flash-sparse-attention #193)."""

import torch


def probabilities(q, k, bias, hidden):
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s if bias is None else s + bias
    s = s if hidden is None else s.masked_fill(hidden, -torch.inf)
    top = s.amax(-1, keepdim=True)
    e = torch.exp(s - top.masked_fill(torch.isinf(top), 0))
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)


def gradient_of_bias(d_s, bias):
    d_bias = torch.zeros_like(bias)
    for b in range(d_s.shape[0]):
        for h in range(d_s.shape[1]):
            part = d_bias.expand(d_s.shape)[b, h]  # a view: shared where the bias is
            part.add_(d_s[b, h])
    return d_bias


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, hidden):
        p = probabilities(q, k, bias, hidden)
        ctx.save_for_backward(q, k, v, bias, p)
        return p @ v

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, bias, p = ctx.saved_tensors
        d_p = d_out @ v.mT
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True))
        d_bias = None if bias is None else gradient_of_bias(d_s, bias)
        d_s = d_s * q.shape[-1] ** -0.5
        return d_s @ k, d_s.mT @ q, p.mT @ d_out, d_bias, None


def scaled_dot_product_attention(query, key, value, mask=None):
    bias = hidden = None
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
        bias = None if mask.dtype == torch.bool else mask.masked_fill(hidden, 0)
        if bias is not None:  # a bias for every query and key, shared by heads and batch or not
            bias = bias.expand(*bias.shape[:-2], query.shape[2], key.shape[2]).contiguous()
    return Attention.apply(query, key, value, bias, hidden)
