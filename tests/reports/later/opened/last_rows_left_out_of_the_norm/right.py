"""One layer of Transformer-XL, norms behind the residuals (as attorch #18 had it)."""

import torch
import torch.nn.functional as F

BLOCK = 4


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, weight, bias, eps):
        rstd = torch.rsqrt(y.var(-1, correction=0, keepdim=True) + eps)
        hat = (y - y.mean(-1, keepdim=True)) * rstd
        ctx.save_for_backward(hat, rstd, weight)
        return hat * weight if bias is None else hat * weight + bias

    @staticmethod
    def backward(ctx, d_y):
        hat, rstd, weight = ctx.saved_tensors
        g = d_y * weight
        mean = g.mean(-1, keepdim=True)
        d_x = (g - mean - hat * (g * hat).mean(-1, keepdim=True)) * rstd
        rows_hat, rows_d = hat.flatten(0, 1), d_y.flatten(0, 1)
        blocks = -(-len(rows_d) // BLOCK)  # one partial sum for each block of rows
        d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        for i in range(blocks):
            at = slice(i * BLOCK, (i + 1) * BLOCK)
            d_weight += (rows_d[at] * rows_hat[at]).sum(0)
            d_bias += rows_d[at].sum(0)
        d_bias = d_bias if ctx.needs_input_grad[2] else None
        return d_x, d_weight, d_bias, None


layer_norm = Norm.apply


def rel_shift(x):
    b, h, n, m = x.shape
    return F.pad(x, (1, 0)).view(b, h, m + 1, n)[:, :, 1:].reshape(b, h, n, m)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    def linear(name, y):
        return F.linear(y, parameters[name + ".weight"], parameters.get(name + ".bias"))

    def norm(name, y):
        return layer_norm(y, parameters[name + ".weight"], parameters.get(name + ".bias"), eps)

    def heads(y):
        return y.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    n = x.shape[1]
    context = x if mem is None else torch.cat([mem.detach(), x], dim=1)
    q, k, v = map(heads, linear("qkv_net", context).chunk(3, dim=-1))
    q, r = q[:, :, -n:], heads(linear("r_net", position).unsqueeze(0))
    content = (q + parameters["u"].unsqueeze(1)) @ k.mT
    place = rel_shift((q + parameters["v"].unsqueeze(1)) @ r.mT)
    seen = torch.ones(n, context.shape[1], dtype=torch.bool).tril(context.shape[1] - n)
    seen = seen if visible is None else seen & visible
    scores = (content + place) * q.shape[-1] ** -0.5
    p = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~seen, 0)
    attended = linear("o_net", (p @ v).transpose(1, 2).flatten(2))
    y = norm("layer_norm", x + attended)
    if "ff_in.weight" not in parameters:
        return y
    inner = F.relu(linear("ff_in", y))
    return norm("ff_norm", y + linear("ff_out", inner))
