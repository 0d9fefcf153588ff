"""One layer of Transformer-XL, its norms with a backward by hand (as tt-train, #53204, had it)."""

import torch
import torch.nn.functional as F


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, gamma, beta, eps):
        centred = y - y.mean(dim=-1, keepdim=True)
        rstd = (centred.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        x_hat = centred * rstd
        ctx.save_for_backward(x_hat, rstd, gamma)
        ctx.with_beta = beta is not None
        return x_hat * gamma + beta if ctx.with_beta else x_hat * gamma

    @staticmethod
    def backward(ctx, dy):
        x_hat, rstd, gamma = ctx.saved_tensors
        s1 = (dy * gamma).mean(dim=-1, keepdim=True)
        s2 = (dy * gamma * x_hat).mean(dim=-1, keepdim=True)
        register = s1
        dx = dy * gamma - register
        register = x_hat * s2
        dx = (dx - register) * rstd
        d_beta = dy.flatten(0, -2).sum(0) if ctx.with_beta else None
        return dx, (dy * x_hat).flatten(0, -2).sum(0), d_beta, None


def shifted(x):
    b, h, n, m = x.shape
    return F.pad(x, (1, 0)).view(b, h, m + 1, n)[:, :, 1:].view(b, h, n, m)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    def linear(name, y):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def norm(name, y):
        return LayerNorm.apply(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"), eps)

    def by_head(y):
        return y.unflatten(-1, (num_heads, -1)).transpose(-3, -2)

    context = x if mem is None else torch.cat([mem.detach(), x], dim=1)
    n, m = x.shape[1], context.shape[1]
    query, key, value = (by_head(part) for part in linear("qkv_net", context).chunk(3, dim=-1))
    query, places = query[:, :, m - n :], by_head(linear("r_net", position))
    u, v = parameters["u"][:, None], parameters["v"][:, None]
    scores = (query + u) @ key.mT + shifted((query + v) @ places.mT)
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    if visible is not None:
        seen &= visible
    scores = (scores * query.shape[-1] ** -0.5).masked_fill(~seen, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1).masked_fill(~seen, 0.0)
    attended = (weights @ value).transpose(1, 2).flatten(2)
    y = norm("layer_norm", x + linear("o_net", attended))
    if "ff_norm.weight" in parameters:
        y = norm("ff_norm", y + linear("ff_out", F.relu(linear("ff_in", y))))
    return y
