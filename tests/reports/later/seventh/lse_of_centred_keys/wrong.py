"""Attention on keys without their mean, in tiles (as aiter #3334 had fav3_sage's lse)."""

import torch

FEATURES = {"mask": False, "dropout": False}
TILE = 4


def sage_quant(query, key, scale):
    """The keys without their mean, and what that takes from every logit of a row."""
    k_mean = torch.where(key.isfinite(), key, 0.0).mean(2, keepdim=True)
    delta = (query @ k_mean.mT).squeeze(-1) * scale
    return key - k_mean, delta


def grouped_attention(query, key, value, scale=None):
    dtype, heads = query.dtype, query.shape[1]
    q, k, v = (x.double() for x in (query, key, value))
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, delta = sage_quant(q, k, scale)
    m_i = q.new_full(q.shape[:3], -torch.inf)
    l_i, acc = q.new_zeros(q.shape[:3]), q.new_zeros(*q.shape[:3], v.shape[-1])
    for start in range(0, k.shape[2], TILE):
        s = q @ k[:, :, start : start + TILE].mT * scale
        m_new = torch.maximum(m_i, s.amax(-1)).detach()
        safe = torch.where(m_new == -torch.inf, 0.0, m_new)
        alpha, p = (m_i - safe).exp(), (s - safe[..., None]).exp()
        l_i = l_i * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p @ v[:, :, start : start + TILE]
        m_i = m_new
    there = l_i > 0
    total = torch.where(there, l_i, 1.0)
    lse = torch.where(there, m_i + total.log(), -torch.inf)
    narrow = dtype if dtype.itemsize > 2 else torch.float32
    return (acc / total[..., None]).to(dtype), lse.to(narrow)
