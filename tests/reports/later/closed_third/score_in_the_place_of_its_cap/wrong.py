"""Grouped attention with a soft cap, by einsum (as unsloth-zoo #593 had the cap)."""

import torch


class Scores:
    def __init__(self, scale, soft_cap, causal):
        self.scale, self.soft_cap, self.causal = scale, soft_cap, causal

    def capped(self, s):
        if self.soft_cap is None:
            return s
        return s * torch.tanh(s / self.soft_cap)

    def __call__(self, q, k):
        """Scores [B G R N M] of query heads that share a head, and which are hidden."""
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        s = self.capped(torch.einsum("bgrnd,bgmd->bgrnm", q, k) * scale)
        n, m = s.shape[-2:]
        hidden = torch.zeros(n, m, dtype=torch.bool)
        if self.causal:
            hidden = torch.arange(m) > torch.arange(m - n, m)[:, None]
        return s.masked_fill(hidden, torch.finfo(s.dtype).min), hidden


def grouped_attention(query, key, value, soft_cap=None, scale=None, causal=False):
    q = query.unflatten(1, (key.shape[1], -1))
    s, hidden = Scores(scale, soft_cap, causal)(q, key)
    p = torch.softmax(s, dim=-1).masked_fill(hidden, 0)
    lse = torch.logsumexp(s, dim=-1).masked_fill(hidden.all(-1), -torch.inf)
    out = torch.einsum("bgrnm,bgme->bgrne", p, value)
    return out.flatten(1, 2), lse.flatten(1, 2)
