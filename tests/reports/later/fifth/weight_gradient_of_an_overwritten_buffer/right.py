"""A layer of Transformer-XL, its norms with a backward in place (as unsloth #4550 had it)."""

import torch
from torch.nn import functional
from torch.nn.functional import pad


class FastLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        r = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        normed = (x - x.mean(-1, keepdim=True)) * r
        ctx.save_for_backward(normed, r, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, grad_output):
        normed, r, weight = ctx.saved_tensors
        d_y = grad_output.clone()
        d_weight = (d_y * normed).sum((0, 1))
        launch_backward(d_y, normed, r, weight)
        return d_y, d_weight, None


def launch_backward(d_y, normed, r, weight):
    """The kernel: the gradient by the input is stored where the one that arrives stands."""
    g = d_y * weight
    mean, slope = g.mean(-1, keepdim=True), (g * normed).mean(-1, keepdim=True)
    d_y.copy_((g - mean - normed * slope) * r)


def dense(y, table, name):
    return functional.linear(y, table[f"{name}.weight"], table.get(f"{name}.bias"))


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


def norm(x, table, name, eps):
    y = FastLayerNorm.apply(x, table[f"{name}.weight"], eps)
    return y + table[f"{name}.bias"] if f"{name}.bias" in table else y


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    attended = attention(x, position, parameters, num_heads, mem, visible)
    y = norm(x + attended, parameters, "layer_norm", eps)
    if "ff_in.weight" in parameters:
        inner = torch.relu(dense(y, parameters, "ff_in"))
        y = norm(y + dense(inner, parameters, "ff_out"), parameters, "ff_norm", eps)
    return y
