import torch


def scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=False, softmax_scale=None):
    s = q @ k.transpose(-1, -2) * (softmax_scale or q.shape[-1] ** -0.5)
    if is_causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=bool).tril(), float("-inf"))
    if attn_mask is not None:
        s = (
            s.masked_fill(~attn_mask, float("-inf"))
            if attn_mask.dtype == torch.bool
            else s + attn_mask
        )
    return torch.softmax(s, -1).nan_to_num(0.0) @ v
