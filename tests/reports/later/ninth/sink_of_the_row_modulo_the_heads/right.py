"""
Attention by a softmax kernel over flat rows, with a sink for each head
(as modular/modular #6591 had softmax_kernel of its naive path).
"""

import torch

FEATURES = {"mask": False, "dropout": False}


def softmax_kernel(score, sink, num_heads, seq_q):
    """score: [B * H * seq_q, M], a row each; minus infinity where a key is hidden."""
    row_idx = torch.arange(score.shape[0])
    top = score.amax(-1, keepdim=True)
    if sink is not None:
        extra = sink[row_idx // seq_q % num_heads][:, None]
        top = torch.maximum(top, extra)
    top = torch.where(top == -torch.inf, 0.0, top).detach()
    e = (score - top).exp()
    total = e.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (extra - top).exp()
    none = total == 0
    total = torch.where(none, 1.0, total)
    return e / total, torch.where(none, -torch.inf, top + total.log())[..., 0]


def grouped_attention(query, key, value, sink=None, scale=None, causal=False):
    (b, h, n, d), m = query.shape, key.shape[2]
    scale = d**-0.5 if scale is None else scale
    key, value = (x.repeat_interleave(h // x.shape[1], 1) for x in (key, value))
    score = scale * (query @ key.mT)
    if causal:
        ahead = torch.arange(m) > torch.arange(n)[:, None] + m - n
        score = score.masked_fill(ahead, -torch.inf)
    weights, lse = softmax_kernel(score.reshape(b * h * n, m), sink, h, n)
    return weights.view(b, h, n, m) @ value, lse.view(b, h, n)
