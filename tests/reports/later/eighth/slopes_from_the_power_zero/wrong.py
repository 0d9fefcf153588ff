"""Multi-head attention with ALiBi (the slopes as aprender #2143 had them)."""

import math

import torch
import torch.nn.functional as F

FEATURES = {"dropout": False}


def compute_slopes(num_heads):
    closest = 2 ** math.floor(math.log2(num_heads))
    ratio = 8.0 / closest
    slopes = [2.0 ** (-ratio * i) for i in range(closest)]
    if closest < num_heads:
        # every other slope of twice as many heads
        step = 4.0 / closest
        slopes += [2.0 ** (-step * (2 * i + 1)) for i in range(num_heads - closest)]
    return slopes


def alibi_multi_head_attention(query, key, value, parameters, num_heads, visible):
    batch, n, width = query.shape

    def heads(x, name):
        x = F.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        return x.view(batch, n, num_heads, -1).transpose(1, 2)

    q, k, v = heads(query, "query.linear"), heads(key, "key.linear"), heads(value, "value.linear")
    slopes = torch.tensor(compute_slopes(num_heads), dtype=query.dtype)
    bias = slopes[:, None, None] * visible.cumsum(-1)
    scores = q @ k.mT / math.sqrt(width // num_heads) + bias
    scores = scores.masked_fill(~visible, -torch.inf)
    some = visible.any(-1, keepdim=True)
    weights = torch.where(some, scores, 0.0).softmax(-1)
    out = torch.where(visible, weights, 0.0) @ v
    out = out.transpose(1, 2).reshape(batch, n, width)
    return F.linear(out, parameters["output.weight"], parameters.get("output.bias"))
