"""Sparse attention over chosen tokens, with a backward of its own (after cudnn-frontend #676)."""

import torch


def token_indices(selection, block, m):
    """The chosen tokens of each row, padded with -1: [B, G, N, topk]."""
    tokens = selection[..., None] * block + torch.arange(block)
    tokens = torch.where((selection[..., None] < 0) | (tokens >= m), -1, tokens)
    return tokens.flatten(-2)


def places(topk):
    b = torch.arange(topk.shape[0])[:, None, None, None]
    g = torch.arange(topk.shape[1])[:, None, None]
    return b, g, topk.clamp(min=0)


class SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, topk, scale):
        batch, heads, n, d = query.shape
        kv_heads = key.shape[1]
        q = query.reshape(batch, kv_heads, heads // kv_heads, n, d)
        valid = topk >= 0
        k = torch.where(valid[..., None], key[places(topk)], 0.0)
        v = torch.where(valid[..., None], value[places(topk)], 0.0)
        s = torch.einsum("bgrnd,bgntd->bgrnt", q, k) * scale
        s = s.masked_fill(~valid[:, :, None], -torch.inf)
        lse = s.logsumexp(-1)
        p = (s - torch.where(lse == -torch.inf, 0.0, lse)[..., None]).exp()
        out = torch.einsum("bgrnt,bgnte->bgrne", p, v)
        ctx.save_for_backward(q, key, value, topk, out, lse)
        ctx.scale = scale
        return out.reshape(batch, heads, n, -1), lse.reshape(batch, heads, n)

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, key, value, topk, out, lse = ctx.saved_tensors
        d_out, d_lse = d_out.reshape(out.shape), d_lse.reshape(lse.shape)
        at = places(topk)
        valid = topk >= 0
        k = torch.where(valid[..., None], key[at], 0.0)
        v = torch.where(valid[..., None], value[at], 0.0)
        s = torch.einsum("bgrnd,bgntd->bgrnt", q, k) * ctx.scale
        # the weights again, from the scores and the saved lse
        s = s.masked_fill(~valid[:, :, None], -torch.inf)
        p = (s - torch.where(lse == -torch.inf, 0.0, lse)[..., None]).exp()
        dpsum = (out * d_out).sum(-1, keepdim=True)
        dp = torch.einsum("bgrne,bgnte->bgrnt", d_out, v)
        ds = p * (dp - dpsum + d_lse[..., None]) * ctx.scale
        dq = torch.einsum("bgrnt,bgntd->bgrnd", ds, k)
        dk = torch.zeros_like(key).index_put_(
            at, torch.einsum("bgrnt,bgrnd->bgntd", ds, q), accumulate=True
        )
        dv = torch.zeros_like(value).index_put_(
            at, torch.einsum("bgrnt,bgrne->bgnte", p, d_out), accumulate=True
        )
        return dq.flatten(1, 2), dk, dv, None, None


def selected_attention(query, key, value, selection, block, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    topk = token_indices(selection, block, key.shape[2])
    return SparseAttention.apply(query, key, value, topk, scale)
