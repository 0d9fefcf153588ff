"""Kernels as users write them with PyTorch, wrong in one way each: see faulty_kernels."""

import math

import torch
import torch.nn.functional as F

ARRAYS = "torch"
PRECISION = "eager"


def scaled_dot_product_attention_query_scaled_in_place(
    query, key, value, mask=None, keep=None, p=0.0
):
    """The caller's query is scaled, and stays so."""
    with torch.no_grad():
        query *= 1 / math.sqrt(query.shape[-1])
    return _weigh(query @ key.mT, mask, keep, p) @ value


def _weigh(score, mask, keep, p):
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
        score = score if mask.dtype == torch.bool else score + mask
        score = score.masked_fill(hidden, -math.inf)
    weights = score.softmax(-1).nan_to_num(0.0)
    return weights if keep is None else weights * keep / (1 - p)


def scaled_dot_product_attention_softmax_of_dim_1(query, key, value, mask=None, keep=None, p=0.0):
    """dim=1 is the heads."""
    score = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
        score = (score if mask.dtype == torch.bool else score + mask).masked_fill(hidden, -math.inf)
    weights = score.softmax(1).nan_to_num(0.0)
    return (weights if keep is None else weights * keep / (1 - p)) @ value


def scaled_dot_product_attention_hidden_means_true(query, key, value, mask=None, keep=None, p=0.0):
    """masked_fill(mask) with a mask of which True may attend."""
    score = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask
    return _weigh(score, mask, keep, p) @ value


def scaled_dot_product_attention_is_causal(query, key, value, mask=None, keep=None, p=0.0):
    """is_causal=True for what is no causal attention."""
    if mask is not None or keep is not None:
        score = query @ key.mT / math.sqrt(query.shape[-1])
        return _weigh(score, mask, keep, p) @ value
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def scaled_dot_product_attention_weights_detached(query, key, value, mask=None, keep=None, p=0.0):
    """No gradient flows through the weights."""
    score = query @ key.mT / math.sqrt(query.shape[-1])
    return _weigh(score, mask, keep, p).detach() @ value


def scaled_dot_product_attention_key_detached(query, key, value, mask=None, keep=None, p=0.0):
    score = query @ key.detach().mT / math.sqrt(query.shape[-1])
    return _weigh(score, mask, keep, p) @ value
