"""Transformer-XL layer, post-norm, its blocks in the order of mlx.nn (after mlx #3382)."""

import torch
import torch.nn.functional as F

FEATURES = {"dropout": False}


def linear(x, parameters, name):
    return F.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def norm(x, parameters, name, eps):
    return F.layer_norm(
        x, x.shape[-1:], parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), eps
    )


def shifted(x):
    b, h, n, m = x.shape
    x = F.pad(x, (1, 0)).view(b, h, m + 1, n)
    return x[:, :, 1:].reshape(b, h, n, m)


def attention(x, position, parameters, num_heads, mem, visible):
    b, n, f = x.shape
    keys = x if mem is None else torch.cat([mem.detach(), x], 1)
    heads = lambda t: t.view(b, -1, num_heads, f // num_heads).transpose(1, 2)
    q, k, v = (heads(t) for t in linear(keys, parameters, "qkv_net").chunk(3, -1))
    q, m = q[:, :, -n:], keys.shape[1]
    r = linear(position, parameters, "r_net").view(m, num_heads, -1).transpose(0, 1)
    content = (q + parameters["u"][:, None]) @ k.mT
    distance = shifted((q + parameters["v"][:, None]) @ r.mT)
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    seen = seen if visible is None else seen & visible
    s = ((content + distance) / (f // num_heads) ** 0.5).masked_fill(~seen, -torch.inf)
    weights = torch.where(seen.any(-1, keepdim=True), s, 0.0).softmax(-1)
    out = torch.where(seen, weights, 0.0) @ v
    return linear(out.transpose(1, 2).reshape(b, n, f), parameters, "o_net")


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    y = attention(x, position, parameters, num_heads, mem, visible)
    x = norm(x + y, parameters, "layer_norm", eps)
    if "ff_in.weight" not in parameters:
        return x
    y = linear(x, parameters, "ff_in").relu()
    y = linear(y, parameters, "ff_out")
    return norm(x + y, parameters, "ff_norm", eps)
