"""
Attention with a soft cap, tile by tile
(as vllm #56579 had apply_softcap of its Triton kernels).
"""

import torch

FEATURES = {"gradient": False, "mask": False, "dropout": False}
TILE = 16


def apply_softcap(S, x):
    Sdiv = S / x
    p1 = torch.exp(Sdiv)
    p2 = torch.exp(-Sdiv)
    return x * (p1 - p2) / (p1 + p2)


def grouped_attention(query, key, value, soft_cap=None, scale=None, causal=False):
    n, m, d = query.shape[2], key.shape[2], query.shape[3]
    scale = d**-0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    M = query.new_full((*query.shape[:3], 1), -torch.inf)
    L = torch.zeros_like(M)
    acc = query.new_zeros(*query.shape[:3], value.shape[-1])
    row = torch.arange(n)[:, None] + m - n
    for j in range(0, m, TILE):
        S = scale * (query @ key[:, :, j : j + TILE].mT)
        if soft_cap is not None:
            S = apply_softcap(S, soft_cap)
        if causal:
            S = S.masked_fill(torch.arange(j, j + S.shape[-1]) > row, -torch.inf)
        m_j = torch.maximum(M, S.amax(-1, keepdim=True))
        safe = torch.where(m_j == -torch.inf, 0.0, m_j)
        P, alpha = (S - safe).exp(), (M - safe).exp()
        L = L * alpha + P.sum(-1, keepdim=True)
        acc = acc * alpha + P @ value[:, :, j : j + TILE]
        M = m_j
    lse = torch.where(L == 0, -torch.inf, M + L.log())
    return acc / torch.where(L == 0, 1.0, L), lse[..., 0]
