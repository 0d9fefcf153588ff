"""Transformer-XL's layer, after a Conformer (as PSELDNets #3 had its scale)."""

import math

import torch
import torch.nn.functional as F

FEATURES = {"dropout": False}


def relative_shift(x):
    b, h, n, m = x.shape
    padded = F.pad(x, (1, 0)).view(b, h, m + 1, n)
    return padded[:, :, 1:].reshape(b, h, n, m)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    def projected(y, name):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def norm(y, name):
        return F.layer_norm(
            y, y.shape[-1:], parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), eps
        )

    d_model, n = x.shape[-1], x.shape[1]
    d_head = d_model // num_heads
    sqrt_dim = math.sqrt(d_head)
    keys = x if mem is None else torch.cat([mem.detach(), x], 1)
    q, k, v = (
        y.unflatten(-1, (num_heads, d_head)).transpose(1, 2)
        for y in projected(keys, "qkv_net").chunk(3, -1)
    )
    q, m = q[:, :, -n:], k.shape[2]
    pos = projected(position, "r_net").unflatten(-1, (num_heads, d_head)).transpose(0, 1)
    content = (q + parameters["u"][:, None]) @ k.mT
    score = (content + relative_shift((q + parameters["v"][:, None]) @ pos.mT)) / sqrt_dim
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    if visible is not None:
        seen = seen & visible
    seen = seen.expand(score.shape)
    empty = ~seen.any(-1, keepdim=True)
    attn = score.masked_fill(~seen & ~empty, -torch.inf).softmax(-1).masked_fill(~seen, 0.0)
    context = (attn @ v).transpose(1, 2).flatten(-2)
    y = norm(x + projected(context, "o_net"), "layer_norm")
    if "ff_in.weight" in parameters:
        y = norm(y + projected(projected(y, "ff_in").relu(), "ff_out"), "ff_norm")
    return y
