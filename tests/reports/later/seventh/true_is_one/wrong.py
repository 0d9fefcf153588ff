"""Eager attention that adds whatever mask it is given (as speculators #691 had it)."""

import torch

FEATURES = {"dropout": False}


def create_mask(mask, dtype):
    return mask


def eager_attention_forward(query, key, value, attention_mask, scaling):
    scores = query @ key.transpose(-2, -1) * scaling
    if attention_mask is None:
        return scores.softmax(dim=-1) @ value
    scores = scores + attention_mask
    # a row without any key gives zeros
    hidden = scores == -torch.inf
    empty = hidden.all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(hidden, 0.0)
    return weights @ value


def scaled_dot_product_attention(query, key, value, mask=None):
    attention_mask = None if mask is None else create_mask(mask, query.dtype)
    return eager_attention_forward(query, key, value, attention_mask, query.shape[-1] ** -0.5)
