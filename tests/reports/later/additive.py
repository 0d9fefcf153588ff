"""Additive attention, one hidden layer a pair."""

import torch

FEATURES = {"dropout": False}


def additive_attention(query, key, value, w_query, w_key, w_score, mask=None):
    hidden = torch.tanh((query @ w_query.T)[:, :, None] + (key @ w_key.T)[:, None])
    scores = hidden @ w_score
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    top = scores.amax(-1, keepdim=True)
    e = torch.exp(scores - top.masked_fill(top == -torch.inf, 0))
    total = e.sum(-1, keepdim=True)
    return (e / torch.where(total == 0, 1, total)) @ value
