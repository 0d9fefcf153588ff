"""A post-norm layer with memory, out of two sublayers (as a Keras example, #2144, had it)."""

import torch
import torch.nn.functional as F


def dense(y, table, name):
    return F.linear(y, table[name + ".weight"], table.get(name + ".bias"))


def layer_norm(y, table, name, eps):
    return F.layer_norm(y, y.shape[-1:], table[name + ".weight"], table.get(name + ".bias"), eps)


def residual(x, branch, table, name, eps):
    return layer_norm(x + branch, table, name, eps)


def relative_attention(x, position, table, heads, mem, visible):
    (batch, n, width), d = x.shape, x.shape[-1] // heads
    keys = x if mem is None else torch.cat([mem.detach(), x], 1)
    m = keys.shape[1]
    q, k, v = dense(keys, table, "qkv_net").view(batch, m, 3, heads, d).permute(2, 0, 3, 1, 4)
    q = q[:, :, m - n :]
    r = dense(position, table, "r_net").view(m, heads, d).transpose(0, 1)
    by_content = torch.einsum("bhnd,bhmd->bhnm", q + table["u"][:, None], k)
    by_place = torch.einsum("bhnd,hmd->bhnm", q + table["v"][:, None], r)
    rows = [F.pad(by_place[:, :, i, n - 1 - i :], (0, n - 1 - i)) for i in range(n)]
    scores = (by_content + torch.stack(rows, 2)) / d**0.5
    hidden = torch.arange(m)[None, :] > torch.arange(m - n, m)[:, None]
    if visible is not None:
        hidden = hidden | ~visible
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).masked_fill(hidden, 0)
    mixed = torch.einsum("bhnm,bhmd->bnhd", weights, v).reshape(batch, n, width)
    return dense(mixed, table, "o_net")


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    attended = relative_attention(x, position, parameters, num_heads, mem, visible)
    y = residual(x, attended, parameters, "layer_norm", eps)
    if "ff_in.weight" not in parameters:
        return y
    inner = torch.relu(dense(y, parameters, "ff_in"))
    return residual(y, dense(inner, parameters, "ff_out"), parameters, "ff_norm", eps)
