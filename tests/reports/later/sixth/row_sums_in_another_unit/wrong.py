"""Attention whose backward recomputes the weights from the row's log-sum-exp, by powers of two."""

import torch

LN2 = 0.6931471805599453


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias):
        score = q @ k.mT * q.shape[-1] ** -0.5
        score = score if bias is None else score + bias
        top = score.amax(-1, keepdim=True)
        top = top.masked_fill(top.isneginf(), 0)
        e = torch.exp(score - top)
        total = e.sum(-1, keepdim=True)
        total = total.masked_fill(total == 0, 1)
        out = e / total @ v
        lse = top + total.log()
        ctx.save_for_backward(q, k, v, bias, out, lse)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, bias, out, lse = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        score = q @ k.mT * (scale / LN2)
        score = score if bias is None else score + bias / LN2
        p = torch.exp2(score - lse)
        delta = (out * d_out).sum(-1, keepdim=True)
        d_score = p * (d_out @ v.mT - delta)
        d_bias = None
        if ctx.needs_input_grad[3]:
            d_bias = d_score.sum_to_size(bias.shape)
        return d_score @ k * scale, d_score.mT @ q * scale, p.mT @ d_out, d_bias


def scaled_dot_product_attention(query, key, value, mask=None):
    work = torch.promote_types(query.dtype, torch.float32)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=work).masked_fill(~mask, -torch.inf)
    mask = None if mask is None else mask.to(work)
    return Attention.apply(query.to(work), key.to(work), value.to(work), mask).to(query.dtype)
