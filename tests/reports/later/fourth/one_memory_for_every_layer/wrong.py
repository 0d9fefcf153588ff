"""A stack of Transformer-XL layers with segment memory (as InfiniTransformer #14 had it)."""

import torch
from torch.nn import functional
from torch.nn.functional import pad


def dense(y, table, name):
    return functional.linear(y, table[f"{name}.weight"], table.get(f"{name}.bias"))


def sinusoids(m, width, like):
    distance = torch.arange(m - 1, -1, -1, dtype=torch.float64)[:, None]
    angle = distance * 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    return torch.cat((angle.sin(), angle.cos()), dim=-1).to(like.dtype)


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


class Layer:
    def __init__(self, table, heads, eps, layer_idx):
        self.table, self.heads, self.eps, self.layer_idx = table, heads, eps, layer_idx

    def norm(self, y, name):
        weight, bias = self.table[f"{name}.weight"], self.table.get(f"{name}.bias")
        return functional.layer_norm(y, y.shape[-1:], weight, bias, self.eps)

    def __call__(self, x, position, mems):
        mem = None if mems is None else mems[0]
        y = self.norm(x + attention(x, position, self.table, self.heads, mem, None), "layer_norm")
        if "ff_in.weight" in self.table:
            z = dense(torch.relu(dense(y, self.table, "ff_in")), self.table, "ff_out")
            y = self.norm(y + z, "ff_norm")
        return y


def transformer_xl(x, parameters, num_heads, mems, mem_len, eps=1e-5):
    m = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    position, hids = sinusoids(m, x.shape[-1], x), [x]
    for i, table in enumerate(parameters):
        hids.append(Layer(table, num_heads, eps, layer_idx=i)(hids[-1], position, mems))
    if mems is None:
        return hids[-1], None
    kept = [torch.cat(pair, dim=1).detach() for pair in zip(mems, hids[:-1], strict=True)]
    return hids[-1], [y[:, max(0, m - mem_len) :].clone() for y in kept]
