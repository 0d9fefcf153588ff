"""Ring attention over chunks of the keys, with a backward of its own (after tt-metal #53205)."""

import torch

FEATURES = {"mask": False, "dropout": False}
RING_SIZE = 2


def local_forward(query, key, value, seen, scale):
    """One step of the ring: output and lse of this chunk alone."""
    s = (query @ key.mT * scale).masked_fill(~seen, -torch.inf)
    lse = s.logsumexp(-1, keepdim=True)
    return (s - torch.where(lse == -torch.inf, 0.0, lse)).exp() @ value, lse


def local_backward(d_out, d_lse, out, lse, query, key, value, seen, scale):
    """The backward kernel of one device: dQ, dK, dV from what it is given as output and lse."""
    s = (query @ key.mT * scale).masked_fill(~seen, -torch.inf)
    p = (s - torch.where(lse == -torch.inf, 0.0, lse)).exp()
    u = (d_out * out).sum(-1, keepdim=True) - d_lse
    ds = p * (d_out @ value.mT - u) * scale
    return ds @ key, ds.mT @ query, p.mT @ d_out


def steps(query, key, value, causal):
    n, m = query.shape[2], key.shape[2]
    seen = torch.ones(n, m, dtype=torch.bool)
    seen = seen.tril(m - n) if causal else seen
    return zip(*(x.chunk(RING_SIZE, d) for x, d in ((key, 2), (value, 2), (seen, 1))), strict=False)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, scale, causal):
        parts = [local_forward(query, *kv, scale) for kv in steps(query, key, value, causal)]
        lses = torch.stack([lse for _, lse in parts])
        final_lse = lses.logsumexp(0)
        w = (lses - torch.where(final_lse == -torch.inf, 0.0, final_lse)).exp()
        out = sum(w[j] * part for j, (part, _) in enumerate(parts))
        ctx.save_for_backward(query, key, value, out, final_lse)
        ctx.scale, ctx.causal = scale, causal
        return out, final_lse[..., 0]

    @staticmethod
    def backward(ctx, d_out, d_lse):
        query, key, value, out, final_lse = ctx.saved_tensors
        d_lse = d_lse[..., None]
        dq, dk, dv = torch.zeros_like(query), [], []
        for k, v, seen in steps(query, key, value, ctx.causal):
            found = local_backward(d_out, d_lse, out, final_lse, query, k, v, seen, ctx.scale)
            dq, dk, dv = dq + found[0], [*dk, found[1]], [*dv, found[2]]
        return dq, torch.cat(dk, 2), torch.cat(dv, 2), None, None


def grouped_attention(query, key, value, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    return RingAttention.apply(query, key, value, scale, causal)
