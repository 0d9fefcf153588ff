"""A layer of Transformer-XL on a layer norm with a backward by hand (kind of FlagGems #59)."""

import torch
import torch.nn.functional as F


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        rstd = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + eps)
        normed = (x - x.mean(-1, keepdim=True)) * rstd
        ctx.save_for_backward(normed, rstd, weight)
        return normed * weight if bias is None else normed * weight + bias

    @staticmethod
    def backward(ctx, d_y):
        normed, rstd, weight = ctx.saved_tensors
        g = d_y * weight
        axes = -1  # a block of rows
        mean, slope = g.mean(axes, keepdim=True), (g * normed).mean(axes, keepdim=True)
        d_x = g - mean - normed * slope
        d_bias = d_y.sum((0, 1)) if ctx.needs_input_grad[2] else None
        return d_x * rstd, (d_y * normed).sum((0, 1)), d_bias, None


def rel_shift(x):
    batch, heads, n, m = x.shape
    x = F.pad(x, (1, 0)).reshape(batch, heads, m + 1, n)
    return x[:, :, 1:].reshape(batch, heads, n, m)


def attend(x, position, parameters, heads, mem, visible):
    """What the attention of the layer adds to x."""

    def linear(name, y):
        return F.linear(y, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def split(y):
        return y.unflatten(-1, (heads, -1)).transpose(1, 2)

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
    return linear("o_net", attended.transpose(1, 2).flatten(2))


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    def norm(y, name):
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        return Norm.apply(y, weight, bias, eps)

    y = norm(x + attend(x, position, parameters, num_heads, mem, visible), "layer_norm")
    return feed_forward(y, parameters, norm) if "ff_in.weight" in parameters else y


def feed_forward(y, parameters, norm):
    inner = F.relu(F.linear(y, parameters["ff_in.weight"], parameters.get("ff_in.bias")))
    z = F.linear(inner, parameters["ff_out.weight"], parameters.get("ff_out.bias"))
    return norm(y + z, "ff_norm")
