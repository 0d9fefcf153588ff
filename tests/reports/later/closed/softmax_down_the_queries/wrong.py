"""Multi-head attention, for a sequence that attends to itself (as vision-transformer #1 had it)."""

import torch
import torch.nn.functional as F


def hidden_pairs(attn_mask, key_padding_mask, b, h, n, m):
    """A bias to add, and what is hidden: True in a boolean mask hides."""
    bias = torch.zeros(1, 1, 1, 1)
    hidden = torch.zeros(1, 1, n, m, dtype=torch.bool)
    if attn_mask is not None:
        mask = attn_mask.view(b, h, n, m) if attn_mask.dim() == 3 else attn_mask
        if mask.dtype == torch.bool:
            hidden = hidden | mask
        else:
            hidden = hidden | (mask == -torch.inf)
            bias = mask.masked_fill(mask == -torch.inf, 0)
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None, None, :]
    return bias, hidden


def multi_head_self_attention(x, parameters, num_heads, attn_mask=None, key_padding_mask=None):
    def heads(name, x):
        y = F.linear(x, parameters[name + ".weight"], parameters.get(name + ".bias"))
        return y.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    q, k, v = heads("q_proj", x), heads("k_proj", x), heads("v_proj", x)
    b, h, n, m = *q.shape[:3], k.shape[2]
    bias, hidden = hidden_pairs(attn_mask, key_padding_mask, b, h, n, m)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-2).masked_fill(hidden, 0)
    y = (weights @ v).transpose(1, 2).flatten(2)
    out = F.linear(y, parameters["out_proj.weight"], parameters.get("out_proj.bias"))
    return out, weights
