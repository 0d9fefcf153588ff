"""One layer of Transformer-XL of small modules, with a fast norm (as unsloth #4533 had it)."""

import torch
import torch.nn.functional as F


class FastNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, weight, eps):
        inverse = torch.rsqrt(y.var(-1, unbiased=False, keepdim=True) + eps)
        normed = (y - y.mean(-1, keepdim=True)) * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, arriving):
        normed, inverse, weight = ctx.saved_tensors
        g = arriving * weight
        along = (g * normed).mean(-1, keepdim=True)
        d_y = (g - g.mean(-1, keepdim=True) - normed * along) * inverse
        d_weight = (arriving * normed).sum((0, 1))
        return d_y, d_weight, None


class Layer:
    def __init__(self, parameters, heads, eps):
        self.p, self.heads, self.eps = parameters, heads, eps

    def linear(self, name, y):
        return F.linear(y, self.p[name + ".weight"], self.p.get(name + ".bias"))

    def norm(self, name, y):
        y = FastNorm.apply(y, self.p[name + ".weight"], self.eps)
        return y + self.p[name + ".bias"] if name + ".bias" in self.p else y

    def split(self, y):
        return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, x, position, mem, visible):
        keys = x if mem is None else torch.cat([mem.detach(), x], 1)
        q, k, v = (self.split(y) for y in self.linear("qkv_net", keys).chunk(3, -1))
        n, m = x.shape[1], keys.shape[1]
        q, r = q[:, :, m - n :], self.split(self.linear("r_net", position)[None])
        by_place = (q + self.p["v"][:, None]) @ r.mT
        by_place = F.pad(by_place, (1, 0)).reshape(len(x), self.heads, m + 1, n)[:, :, 1:]
        s = (q + self.p["u"][:, None]) @ k.mT + by_place.reshape(len(x), self.heads, n, m)
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
        hidden = hidden if visible is None else hidden | ~visible
        s = (s * q.shape[-1] ** -0.5).masked_fill(hidden, torch.finfo(s.dtype).min)
        mixed = s.softmax(-1).masked_fill(hidden, 0) @ v
        return self.linear("o_net", mixed.transpose(1, 2).flatten(2))

    def __call__(self, x, position, mem, visible):
        y = self.norm("layer_norm", x + self.attend(x, position, mem, visible))
        if "ff_in.weight" not in self.p:
            return y
        return self.norm("ff_norm", y + self.linear("ff_out", self.linear("ff_in", y).relu()))


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    return Layer(parameters, num_heads, eps)(x, position, mem, visible)
