"""
GQA over a static cache: the mask has a row of the cache's size for each prompt
(as onnxruntime-genai #1639).
"""

import torch

FEATURES = {"mask": False, "dropout": False}


def static_mask(lengths, max_length):
    """Ones for the tokens of each prompt of the batch, [batch, max_length]."""
    batch = len(lengths)
    mask = torch.zeros(batch * max_length, dtype=torch.bool)
    sequence_length = int(lengths.max())
    for b in range(batch):
        start = b * sequence_length
        for i in range(sequence_length):
            if i < lengths[b]:
                mask[start + i] = True
    return mask.view(batch, max_length)


def grouped_attention(query, key, value, scale=None, lengths=None):
    batch, heads, _, d = query.shape
    kv_heads, m = key.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    if lengths is None:
        lengths = torch.full((batch,), m)
    seen = static_mask(lengths, m)[:, None, :, None]
    key, value = (
        torch.where(seen, x, 0.0).repeat_interleave(heads // kv_heads, 1) for x in (key, value)
    )
    s = (query @ key.mT * scale).masked_fill(~seen.mT, -torch.inf)
    lse = s.logsumexp(-1, keepdim=True)
    weights = (s - torch.where(lse == -torch.inf, 0.0, lse)).exp()
    return weights @ value, lse[..., 0]
