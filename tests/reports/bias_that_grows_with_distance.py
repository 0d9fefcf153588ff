"""ALiBi as a score modification (kind of meta-pytorch/attention-gym #86)."""

import torch


def slopes(heads):
    n = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-8 * (h + 1) / n) for h in range(n)]
    return torch.tensor(first + [2 ** (-4 * (2 * h + 1) / n) for h in range(heads - n)])


def alibi_attention(query, key, value, visible=None):
    n, m = query.shape[2], key.shape[2]
    q_idx, kv_idx = m - n + torch.arange(n)[:, None], torch.arange(m)
    rates = slopes(query.shape[1]).to(query.dtype)[:, None, None]
    bias = rates * (kv_idx - q_idx)
    scores = query @ key.mT * query.shape[-1] ** -0.5 + bias
    seen = kv_idx <= q_idx if visible is None else (kv_idx <= q_idx) & visible
    low = torch.finfo(scores.dtype).min
    return scores.masked_fill(~seen, low).softmax(-1).masked_fill(~seen, 0) @ value
