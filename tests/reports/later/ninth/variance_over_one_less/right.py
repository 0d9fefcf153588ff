"""
A layer of Transformer-XL with a norm written out
(as harvardnlp/annotated-transformer #119 had its LayerNorm).
"""

import torch
from torch.nn.functional import linear

FEATURES = {"mask": False, "dropout": False}


def layer_norm(x, weight, bias, eps):
    var = x.var(-1, unbiased=False, keepdim=True)
    y = weight * (x - x.mean(-1, keepdim=True)) / torch.sqrt(var + eps)
    return y if bias is None else y + bias


def project(x, parameters, name):
    return linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))


def rel_shift(x):
    """Row i moves to the left by what it lies before the last one."""
    b, h, n, m = x.shape
    x = torch.nn.functional.pad(x, (1, 0)).view(b, h, m + 1, n)
    return x[:, :, 1:].reshape(b, h, n, m)


def attention(x, mem, position, parameters, num_heads):
    keys = x if mem is None else torch.cat([mem.detach(), x], 1)
    (b, n, f), m = x.shape, keys.shape[1]
    d = f // num_heads
    qkv = project(keys, parameters, "qkv_net")
    q, k, v = qkv.view(b, m, 3, num_heads, d).unbind(2)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    q = q[:, :, -n:]
    r = project(position, parameters, "r_net").view(m, num_heads, d).transpose(0, 1)
    content = (q + parameters["u"][:, None]) @ k.mT
    where = rel_shift((q + parameters["v"][:, None]) @ r.mT)
    score = (content + where) * d**-0.5
    ahead = torch.arange(m) > torch.arange(n)[:, None] + m - n
    weights = torch.softmax(score.masked_fill(ahead, -torch.inf), -1)
    return project((weights @ v).transpose(1, 2).reshape(b, n, f), parameters, "o_net")


def norm(x, parameters, name, eps):
    return layer_norm(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), eps)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, eps=1e-5):
    hidden = x + attention(x, mem, position, parameters, num_heads)
    output = norm(hidden, parameters, "layer_norm", eps)
    if "ff_in.weight" not in parameters:
        return output
    residual = output
    inner = torch.relu(project(output, parameters, "ff_in"))
    return norm(residual + project(inner, parameters, "ff_out"), parameters, "ff_norm", eps)
