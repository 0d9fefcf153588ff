"""A layer of Transformer-XL, its feed-forward on two ranks (as vllm-gguf-plugin #103)."""

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


class FeedForward:
    """A column-parallel map, a ReLU, and a row-parallel map whose parts are summed."""

    def __init__(self, table):
        self.table = table
        inner = table["ff_in.weight"].shape[0]
        self.tp_size = 2 if inner % 2 == 0 else 1
        self.shard_size = inner // self.tp_size

    def load_merged_column(self, loaded, **kwargs):
        tp_rank = kwargs.get("tp_rank", 0)
        return loaded.narrow(0, tp_rank * self.shard_size, self.shard_size)

    def load_row(self, loaded, tp_rank):
        return loaded.narrow(1, tp_rank * self.shard_size, self.shard_size)

    def __call__(self, y):
        total, bias = 0, self.table.get("ff_in.bias")
        for tp_rank in range(self.tp_size):
            weight = self.load_merged_column(self.table["ff_in.weight"], tp_rank=tp_rank)
            own = None if bias is None else self.load_merged_column(bias, tp_rank=tp_rank)
            inner = torch.relu(functional.linear(y, weight, own))
            total = total + inner @ self.load_row(self.table["ff_out.weight"], tp_rank).T
        bias = self.table.get("ff_out.bias")
        return total if bias is None else total + bias


def norm(x, table, name, eps):
    weight, bias = table[f"{name}.weight"], table.get(f"{name}.bias")
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def transformer_xl_layer(x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5):
    attended = attention(x, position, parameters, num_heads, mem, visible)
    y = norm(x + attended, parameters, "layer_norm", eps)
    if "ff_in.weight" in parameters:
        y = norm(y + FeedForward(parameters)(y), parameters, "ff_norm", eps)
    return y
