"""A layer of Transformer-XL, its norms in blocks of a power of two (as triton #9838 had it)."""

import torch
from torch.nn import functional
from torch.nn.functional import pad


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


def layer_norm(x, weight, bias, eps):
    """Each row in one block; what lies behind its end is loaded as 0."""
    n_cols = x.shape[-1]
    block_size = 1 << (n_cols - 1).bit_length()
    mask = torch.arange(block_size) < n_cols
    x = torch.where(mask, pad(x, (0, block_size - n_cols)), 0.0)
    mean = x.sum(-1, keepdim=True) / n_cols
    xmean = torch.where(mask, x - mean, 0.0)
    var = (xmean * xmean).sum(-1, keepdim=True) / n_cols
    y = (xmean * torch.rsqrt(var + eps))[..., :n_cols] * weight
    return y if bias is None else y + bias


def norm(x, table, name, eps):
    return layer_norm(x, table[f"{name}.weight"], table.get(f"{name}.bias"), eps)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    attended = attention(x, position, parameters, num_heads, mem, visible)
    y = norm(x + attended, parameters, "layer_norm", eps)
    if "ff_in.weight" in parameters:
        inner = torch.relu(dense(y, parameters, "ff_in"))
        y = norm(y + dense(inner, parameters, "ff_out"), parameters, "ff_norm", eps)
    return y
