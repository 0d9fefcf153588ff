"""Multi-head self-attention from single heads (as the solution of neetcode-gh/leetcode #5130)."""

import math

import torch
import torch.nn.functional as F

FEATURES = {"mask": False, "dropout": False}


def single_head(x, parameters, rows, channels):
    """One head: its rows of the weights, over these channels of x."""

    def projected(name):
        bias = parameters.get(f"{name}.bias")
        weight = parameters[f"{name}.weight"][rows, channels]
        return F.linear(x[..., channels], weight, None if bias is None else bias[rows])

    q, k, v = projected("q_proj"), projected("k_proj"), projected("v_proj")
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return weights @ v, weights


def multi_head_self_attention(x, parameters, num_heads):
    d = x.shape[-1] // num_heads
    heads, weights = [], []
    for h in range(num_heads):
        rows = slice(h * d, (h + 1) * d)
        head, w = single_head(x, parameters, rows, slice(None))
        heads.append(head)
        weights.append(w)
    out = F.linear(
        torch.cat(heads, -1), parameters["out_proj.weight"], parameters.get("out_proj.bias")
    )
    return out, torch.stack(weights, 1)
