"""A layer of Transformer-XL as a class, norms by their number (as mlx #1636 had it)."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, table, heads, eps):
        super().__init__()
        self.table, self.heads, self.eps = table, heads, eps

    def ln1(self, y):
        weight, bias = self.table["layer_norm.weight"], self.table.get("layer_norm.bias")
        return functional.layer_norm(y, y.shape[-1:], weight, bias, self.eps)

    def ln2(self, y):
        weight, bias = self.table["ff_norm.weight"], self.table.get("ff_norm.bias")
        return functional.layer_norm(y, y.shape[-1:], weight, bias, self.eps)

    def dense(self, y, name):
        return functional.linear(y, self.table[f"{name}.weight"], self.table.get(f"{name}.bias"))

    def attention(self, x, position, mem, visible):
        b, n, width = x.shape
        both = x if mem is None else torch.cat((mem.detach(), x), dim=1)
        m, d = both.shape[1], width // self.heads
        q, k, v = self.dense(both, "qkv_net").view(b, m, 3, self.heads, d).unbind(2)
        r = self.dense(position, "r_net").view(m, self.heads, d)
        q = q[:, m - n :]
        content = torch.einsum("bnhd,bmhd->bhnm", q + self.table["u"], k)
        place = torch.einsum("bnhd,mhd->bhnm", q + self.table["v"], r)
        back = torch.arange(n)[:, None] - torch.arange(m)[None, :] + m - n
        at = (m - 1 - back).clamp(0, m - 1).expand(b, self.heads, n, m)
        s = (content + place.gather(-1, at)) / d**0.5
        seen = back >= 0
        if visible is not None:
            seen = seen & visible
        s = s.masked_fill(~seen, torch.finfo(s.dtype).min)
        p = torch.softmax(s, -1) * seen
        return self.dense(torch.einsum("bhnm,bmhd->bnhd", p, v).flatten(2), "o_net")

    def forward(self, x, position, mem, visible):
        y = self.ln1(x + self.attention(x, position, mem, visible))
        if "ff_in.weight" in self.table:
            z = self.dense(torch.relu(self.dense(y, "ff_in")), "ff_out")
            y = self.ln2(y + z)
        return y


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    return Block(parameters, num_heads, eps)(x, position, mem, visible)
