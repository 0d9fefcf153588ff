"""One layer of Transformer-XL, norms behind the residuals (as stanza #1610 had it)."""

import torch
import torch.nn.functional as F


def layer_norm(y, weight, bias, eps):
    return F.layer_norm(y, y.shape[-1:], weight, bias, eps)


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
