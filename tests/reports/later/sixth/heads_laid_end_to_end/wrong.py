"""Multi-head self-attention from scratch, with one helper for the attention itself."""

import torch


def scaled_dot_product(q, k, v, hidden, bias):
    score = torch.matmul(q, k.transpose(-2, -1)) / q.size(-1) ** 0.5 + bias
    score = score.masked_fill(hidden, float("-inf"))
    blind = hidden.all(-1, keepdim=True) | score.isneginf().all(-1, keepdim=True)
    attention = torch.softmax(score.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)
    return torch.matmul(attention, v), attention


def multi_head_self_attention(x, parameters, num_heads, attn_mask=None, key_padding_mask=None):
    batch, length, width = x.size()

    def linear(t, name):
        y = t @ parameters[f"{name}.weight"].T
        return y + parameters[f"{name}.bias"] if f"{name}.bias" in parameters else y

    q, k, v = (
        linear(x, name).reshape(batch, length, num_heads, width // num_heads).permute(0, 2, 1, 3)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    hidden, bias = torch.zeros(batch, num_heads, length, length, dtype=torch.bool), 0.0
    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(batch, num_heads, length, length)
        if attn_mask.dtype == torch.bool:
            hidden = hidden | attn_mask
        else:
            bias = attn_mask
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None, None, :]
    values, attention = scaled_dot_product(q, k, v, hidden, bias)
    values = values.reshape(batch, length, width)
    return linear(values, "out_proj"), attention
