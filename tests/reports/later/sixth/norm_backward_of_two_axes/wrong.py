"""A Transformer-XL layer whose layer norm has a backward pass of its own."""

import torch
import torch.nn.functional as F


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        width = weight.numel()
        rows = x.reshape(-1, width)
        mean = rows.mean(1, keepdim=True)
        rstd = (rows.var(1, keepdim=True, unbiased=False) + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, rstd)
        return ((rows - mean) * rstd * weight + bias).reshape(x.shape)

    @staticmethod
    def backward(ctx, d_y):
        x, weight, mean, rstd = ctx.saved_tensors
        m = x.shape[0]
        n = x.numel() // m
        rows, d = x.reshape(m, n), d_y.reshape(m, n)
        gain = weight.repeat(n // weight.numel())
        z = (rows - mean[:m]) * rstd[:m]
        d_z = d * gain
        d_x = (d_z - d_z.mean(1, keepdim=True) - z * (z * d_z).mean(1, keepdim=True)) * rstd[:m]
        width = weight.numel()
        return d_x.reshape(x.shape), (d * z).sum(0)[:width], d.sum(0)[:width], None


def norm(x, parameters, name, eps):
    weight = parameters[name + ".weight"]
    bias = parameters.get(name + ".bias")
    return Norm.apply(x, weight, torch.zeros_like(weight) if bias is None else bias, eps)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, eps=1e-5):
    def linear(y, name):
        return F.linear(y, parameters[name + ".weight"], parameters.get(name + ".bias"))

    B, N, width = x.shape
    keys = x if mem is None else torch.cat([mem.detach(), x], 1)
    M, dim = keys.shape[1], width // num_heads
    q, k, v = (
        t.unflatten(-1, (num_heads, dim)).transpose(1, 2)
        for t in linear(keys, "qkv_net").chunk(3, -1)
    )
    r = linear(position, "r_net").unflatten(-1, (num_heads, dim)).transpose(0, 1)
    q, u, w = q[:, :, -N:], parameters["u"][:, None], parameters["v"][:, None]
    far = (q + w) @ r.mT
    column = torch.arange(M)[None, :] + torch.arange(N - 1, -1, -1)[:, None]
    far = far.gather(-1, column.clamp(max=M - 1).expand(B, num_heads, N, M))
    score = ((q + u) @ k.mT + far) / dim**0.5
    score = score.masked_fill(torch.ones(N, M, dtype=torch.bool).triu(M - N + 1), -torch.inf)
    out = (score.softmax(-1) @ v).transpose(1, 2).flatten(2)
    y = norm(x + linear(out, "o_net"), parameters, "layer_norm", eps)
    if "ff_in.weight" not in parameters:
        return y
    return norm(y + linear(linear(y, "ff_in").relu(), "ff_out"), parameters, "ff_norm", eps)
