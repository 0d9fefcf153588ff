"""
Attention over chosen blocks of keys, gathered row by row; the backward scatters into dK and dV
(as NVIDIA/cudnn-frontend #385 had its sparse attention backward).
"""

import torch

FEATURES = {"mask": False, "dropout": False}


def chosen(selection, block, m, last):
    """The keys of the blocks that one row names, up to its own position."""
    keys = [torch.arange(c * block, min((c + 1) * block, m)) for c in selection.tolist() if c >= 0]
    keys = torch.cat(keys) if keys else torch.zeros(0, dtype=torch.long)
    return keys if last is None else keys[keys <= last]


class SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, selection, block, scale, causal):
        (b, h, n, _), (_, g, m, e) = q.shape, v.shape
        share = h // g
        o, lse = q.new_zeros(b, h, n, e), q.new_full((b, h, n), -torch.inf)
        for bi in range(b):
            for gi in range(g):
                heads = slice(gi * share, (gi + 1) * share)
                for i in range(n):
                    j = chosen(selection[bi, gi, i], block, m, m - n + i if causal else None)
                    if len(j):
                        s = scale * (q[bi, heads, i] @ k[bi, gi, j].T)
                        lse[bi, heads, i] = torch.logsumexp(s, -1)
                        o[bi, heads, i] = torch.softmax(s, -1) @ v[bi, gi, j]
        ctx.save_for_backward(q, k, v, selection, o, lse)
        ctx.rest = block, scale, causal
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, selection, o, lse = ctx.saved_tensors
        block, scale, causal = ctx.rest
        (b, h, n, _), (_, g, m, _) = q.shape, v.shape
        share = h // g
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (do * o).sum(-1) - dlse
        for bi in range(b):
            for gi in range(g):
                heads = slice(gi * share, (gi + 1) * share)
                for i in range(n):
                    j = chosen(selection[bi, gi, i], block, m, m - n + i if causal else None)
                    if not len(j):
                        continue
                    qi, doi = q[bi, heads, i], do[bi, heads, i]
                    p = torch.exp(scale * (qi @ k[bi, gi, j].T) - lse[bi, heads, i, None])
                    ds = scale * p * (doi @ v[bi, gi, j].T - delta[bi, heads, i, None])
                    dq[bi, heads, i] = ds @ k[bi, gi, j]
                    dk[bi, gi].index_copy_(0, j, ds.T @ qi)
                    dv[bi, gi].index_copy_(0, j, p.T @ doi)
        return dq, dk, dv, None, None, None, None


def selected_attention(query, key, value, selection, block, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return SparseAttention.apply(query, key, value, selection, block, scale, causal)
