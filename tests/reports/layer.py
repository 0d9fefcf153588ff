"""A post-norm layer with memory and feed-forward."""

import torch
import torch.nn.functional as F


def rel_shift(x):
    batch, heads, n, m = x.shape
    x = F.pad(x, (1, 0)).reshape(batch, heads, m + 1, n)
    return x[:, :, 1:].reshape(batch, heads, n, m)


def layer_norm(y, weight, bias, eps):
    mean = y.mean(-1, keepdim=True)
    variance = (y - mean).square().mean(-1, keepdim=True)
    std = (variance + eps) ** 0.5
    normed = (y - mean) / std * weight
    return normed if bias is None else normed + bias


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    def linear(name, y):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def norm(y, name):
        return layer_norm(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), eps)

    def split(y):
        return y.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    n = x.shape[1]
    both = x if mem is None else torch.cat([mem.detach(), x], 1)
    q, k, v = (split(y) for y in linear("qkv_net", both).chunk(3, -1))
    q, r = q[:, :, -n:], split(linear("r_net", position)[None])
    u, w = parameters["u"][:, None], parameters["v"][:, None]
    scores = ((q + u) @ k.mT + rel_shift((q + w) @ r.mT)) / q.shape[-1] ** 0.5
    m = k.shape[2]
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    seen = seen if visible is None else seen & visible
    weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    attended = weights.masked_fill(~seen, 0) @ v
    y = norm(x + linear("o_net", attended.transpose(1, 2).flatten(2)), "layer_norm")
    if "ff_in.weight" not in parameters:
        return y
    return norm(y + linear("ff_out", F.relu(linear("ff_in", y))), "ff_norm")
