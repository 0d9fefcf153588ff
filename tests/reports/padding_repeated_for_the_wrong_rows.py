"""Multi-head attention with the heads in front (kind of sooftware/attentions #4)."""

import torch
import torch.nn.functional as F

FEATURES = {"mask": False, "float mask": False, "dropout": False}


def multi_head_attention(query, key, value, parameters, num_heads, key_padding_mask=None):
    def linear(name, y):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def heads(name, y):
        y = linear(name, y).unflatten(-1, (num_heads, -1))
        return y.permute(2, 0, 1, 3).flatten(0, 1)  # [H*B N D]

    q, k, v = heads("q_proj", query), heads("k_proj", key), heads("v_proj", value)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if key_padding_mask is None:
        weights = scores.softmax(-1)
    else:
        mask = key_padding_mask[:, None, :]
        mask = mask.repeat(num_heads, 1, 1)
        low = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(mask, low).softmax(-1).masked_fill(mask, 0)
    out = (weights @ v).unflatten(0, (num_heads, -1)).permute(1, 2, 0, 3).flatten(2)
    return linear("out_proj", out), weights.unflatten(0, (num_heads, -1)).transpose(0, 1)
