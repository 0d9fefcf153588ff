"""ALiBi attention of a tensor-parallel model, its ranks one after the other (flashinfer #1606)."""

import torch
import torch.nn.functional as F


def slope(head, heads):
    """That of one head of so many."""
    whole = 1 << (heads.bit_length() - 1)
    if head < whole:
        return 2.0 ** (-8.0 * (head + 1) / whole)
    return 2.0 ** (-4.0 * (2 * (head - whole) + 1) / whole)


def on_one_rank(q, k, v, visible, first, heads):
    """Some of the heads [B H' N D], of which the first is head number ``first`` of the model."""
    slopes = torch.tensor([slope(first + h, heads) for h in range(q.shape[1])], dtype=q.dtype)
    bias = slopes[:, None, None] * visible.cumsum(-1)
    s = q @ k.mT * q.shape[-1] ** -0.5 + bias
    s = s.masked_fill(~visible, torch.finfo(s.dtype).min)
    return s.softmax(-1).masked_fill(~visible, 0) @ v


def alibi_multi_head_attention(query, key, value, parameters, num_heads, visible):
    def linear(y, name):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def split(y):
        return y.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    q = split(linear(query, "query.linear"))
    k = split(linear(key, "key.linear"))
    v = split(linear(value, "value.linear"))
    half = (num_heads + 1) // 2
    parts = []
    for first, last in ((0, half), (half, num_heads)):
        if last > first:
            own = slice(first, last)
            parts.append(on_one_rank(q[:, own], k[:, own], v[:, own], visible, 0, num_heads))
    joined = torch.cat(parts, dim=1).transpose(1, 2).flatten(2)
    return linear(joined, "output")
