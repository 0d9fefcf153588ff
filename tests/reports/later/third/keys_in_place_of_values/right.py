"""Multi-head attention, one head after the other (as the book's notebook, #261, had it)."""

import math

import torch


def project(y, parameters, name):
    out = torch.einsum("btf,gf->btg", y, parameters[name + ".weight"])
    bias = parameters.get(name + ".bias")
    return out if bias is None else out + bias


def hidden_pairs(attn_mask, key_padding_mask, shape):
    """What is hidden [B H N M], and what is added to the scores."""
    hidden, added = torch.zeros(shape, dtype=torch.bool), 0.0
    if attn_mask is not None:
        each = attn_mask.reshape(-1, *shape[1:]) if attn_mask.ndim == 3 else attn_mask
        if each.dtype == torch.bool:
            hidden = hidden | each
        else:
            hidden = hidden | (each == -math.inf)
            added = each.masked_fill(each == -math.inf, 0.0)
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None, None, :]
    return hidden, torch.zeros(shape) + added


def multi_head_attention(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    q, k, v = (
        project(y, parameters, name)
        for y, name in ((query, "q_proj"), (key, "k_proj"), (value, "v_proj"))
    )
    shape = (len(query), num_heads, query.shape[1], key.shape[1])
    hidden, added = hidden_pairs(attn_mask, key_padding_mask, shape)
    head_dim = query.shape[-1] // num_heads
    outputs, all_weights = [], []
    for i in range(num_heads):
        own = slice(i * head_dim, (i + 1) * head_dim)
        scores = torch.einsum("btd,bsd->bts", q[..., own], k[..., own]) / math.sqrt(head_dim)
        scores = (scores + added[:, i]).masked_fill(hidden[:, i], torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1).masked_fill(hidden[:, i], 0.0)
        outputs.append(torch.einsum("bts,bsd->btd", weights, v[..., own]))
        all_weights.append(weights)
    joined = torch.cat(outputs, dim=-1)
    return project(joined, parameters, "out_proj"), torch.stack(all_weights, dim=1)
