"""Attention with linear biases, slopes from one geometric sequence (as mosaicml/examples #307)."""

import math

import torch


def gen_slopes(n_heads, alibi_bias_max=8):
    ceiling = 2 ** math.ceil(math.log2(n_heads))
    m = torch.arange(1, ceiling + 1, dtype=torch.float64) * (alibi_bias_max / ceiling)
    slopes = torch.exp2(-m)
    return slopes[:n_heads]


def alibi_attention(query, key, value, visible=None):
    (heads, n), m = query.shape[1:3], key.shape[2]
    distance = torch.arange(m)[None, :] - torch.arange(m - n, m)[:, None]
    bias = gen_slopes(heads)[:, None, None] * distance
    s = query @ key.mT * query.shape[-1] ** -0.5 + bias.to(query.dtype)
    seen = distance <= 0
    if visible is not None:
        seen = seen & visible
    p = s.masked_fill(~seen, torch.finfo(s.dtype).min).softmax(-1) * seen
    return p @ value
