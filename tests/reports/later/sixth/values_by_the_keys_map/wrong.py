"""The multi-head attention of an annotated transformer."""

import torch
import torch.nn.functional as F


def multi_head_attention(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    B, N, width = query.shape
    M, dim = key.shape[1], width // num_heads

    def project(name, x):
        y = F.linear(x, parameters[name + ".weight"], parameters.get(name + ".bias"))
        return y.view(B, -1, num_heads, dim).transpose(1, 2)

    query = project("q_proj", query)
    key_heads = project("k_proj", key)
    value_heads = project("k_proj", value)

    score = query @ key_heads.transpose(-2, -1) / dim**0.5
    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.view(B, num_heads, N, M)
        score = (
            score.masked_fill(attn_mask, -torch.inf)
            if attn_mask.dtype == torch.bool
            else score + attn_mask
        )
    if key_padding_mask is not None:
        score = score.masked_fill(key_padding_mask[:, None, None, :], -torch.inf)
    empty = torch.isneginf(score).all(-1, keepdim=True)
    weights = score.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    x = (weights @ value_heads).transpose(1, 2).reshape(B, N, width)
    return F.linear(x, parameters["out_proj.weight"], parameters.get("out_proj.bias")), weights
