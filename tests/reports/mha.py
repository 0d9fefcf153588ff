"""Multi-head attention of linear layers."""

import torch
import torch.nn.functional as F


def multi_head_attention(
    query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None
):
    def linear(name, y):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def split(y):
        batch, length, width = y.shape
        return y.view(batch, length, num_heads, width // num_heads).transpose(1, 2)

    q, k, v = (
        split(linear(f"{n}_proj", y)) for n, y in zip("qkv", (query, key, value), strict=True)
    )
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if attn_mask is not None:
        attn_mask = attn_mask.reshape(-1, *scores.shape[1:]) if attn_mask.ndim == 3 else attn_mask
        if attn_mask.dtype == torch.bool:
            hidden = hidden | attn_mask
        else:
            hidden = hidden | (attn_mask == -torch.inf)
            scores = scores + attn_mask.masked_fill(attn_mask == -torch.inf, 0)
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None, None, :]
    low = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(hidden, low).softmax(-1).masked_fill(hidden, 0)
    mixed = weights @ v
    batch, heads, length, width = mixed.shape
    joined = mixed.permute(0, 2, 1, 3).reshape(batch, length, heads * width)
    return linear("out_proj", joined), weights
