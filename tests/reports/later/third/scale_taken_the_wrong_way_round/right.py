"""Self-attention of one head (as maxtext #1370 had its scale)."""

import torch


class SelfAttention:
    def __init__(self, parameters):
        self.weights = [parameters["w_" + name] for name in ("query", "key", "value")]
        self.softmax_scale = self.weights[1].shape[0] ** -0.5

    def scores(self, q, k):
        return torch.einsum("bqk,bsk->bqs", q, k) * self.softmax_scale

    def __call__(self, x, mask):
        q, k, v = (torch.einsum("bnf,gf->bng", x, w) for w in self.weights)
        s = self.scores(q, k)
        hidden = torch.zeros(s.shape, dtype=torch.bool)
        if mask is not None and mask.dtype == torch.bool:
            hidden = hidden | ~mask
        elif mask is not None:
            hidden = hidden | (mask == -torch.inf)
            s = s + mask.masked_fill(mask == -torch.inf, 0)
        p = s.masked_fill(hidden, torch.finfo(s.dtype).min).softmax(-1)
        return torch.einsum("bqs,bse->bqe", p.masked_fill(hidden, 0), v)


def self_attention(x, parameters, mask=None):
    return SelfAttention(parameters)(x, mask)
