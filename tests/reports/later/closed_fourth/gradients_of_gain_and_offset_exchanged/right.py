"""A Transformer-XL layer whose norm has a backward of its own (as oneflow #6149 had it)."""

import torch
from torch.nn import functional
from torch.nn.functional import pad


def dense(y, table, name):
    return functional.linear(y, table[f"{name}.weight"], table.get(f"{name}.bias"))


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        centred = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        z = centred * rstd
        ctx.save_for_backward(z, gamma, rstd)
        return z * gamma + beta

    @staticmethod
    def backward(ctx, d_y):
        z, gamma, rstd = ctx.saved_tensors
        d_z = d_y * gamma
        rest = d_z.mean(-1, keepdim=True) + z * (d_z * z).mean(-1, keepdim=True)
        over = tuple(range(d_y.dim() - 1))
        gamma_diff, beta_diff = (d_y * z).sum(over), d_y.sum(over)
        return (d_z - rest) * rstd, gamma_diff, beta_diff, None


def norm(y, table, name, eps):
    weight, bias = table[f"{name}.weight"], table.get(f"{name}.bias")
    return LayerNorm.apply(y, weight, torch.zeros_like(weight) if bias is None else bias, eps)


def split(x, heads):
    """[b n f] as [b h n d]."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def shifted(x):
    """Every row moved to the left until column j is key j."""
    *front, n, m = x.shape
    return pad(x, (1, 0)).view(*front, m + 1, n)[..., 1:, :].reshape(*front, n, m)


def attention(x, position, table, heads, mem, visible):
    both = x if mem is None else torch.cat((mem.detach(), x), dim=1)
    n, m = x.shape[1], both.shape[1]
    q, k, v = (split(y, heads) for y in dense(both, table, "qkv_net").chunk(3, dim=-1))
    r = split(dense(position, table, "r_net")[None], heads)
    q = q[:, :, m - n :]
    content = (q + table["u"][:, None]) @ k.mT
    s = (content + shifted((q + table["v"][:, None]) @ r.mT)) * q.shape[-1] ** -0.5
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    if visible is not None:
        seen = seen & visible
    p = s.masked_fill(~seen, torch.finfo(s.dtype).min).softmax(-1) * seen
    return dense((p @ v).transpose(1, 2).flatten(2), table, "o_net")


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    attended = attention(x, position, parameters, num_heads, mem, visible)
    y = norm(x + attended, parameters, "layer_norm", eps)
    if "ff_in.weight" in parameters:
        z = dense(torch.relu(dense(y, parameters, "ff_in")), parameters, "ff_out")
        y = norm(y + z, parameters, "ff_norm", eps)
    return y
