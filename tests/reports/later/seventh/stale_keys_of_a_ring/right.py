"""Ring attention, one process for all ranks (as diffusers #14265 had TemplatedRingAttention)."""

import torch

FEATURES = {"mask": False, "dropout": False}


def forward_op(query, key, value):
    s = query @ key.mT * query.shape[-1] ** -0.5
    lse = s.logsumexp(-1, keepdim=True)
    return (s - lse).exp() @ value, lse


def backward_op(query, key, value, out, lse, grad_out):
    scale = query.shape[-1] ** -0.5
    p = (query @ key.mT * scale - lse).exp()
    ds = p * (grad_out @ value.mT - (grad_out * out).sum(-1, keepdim=True)) * scale
    return ds @ key, ds.mT @ query, p.mT @ grad_out


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, ring_degree):
        out = lse = None
        for k, v in zip(key.chunk(ring_degree, 2), value.chunk(ring_degree, 2), strict=False):
            o, own = forward_op(query, k, v)
            if out is not None:
                both = torch.logaddexp(lse, own)
                o, own = (lse - both).exp() * out + (own - both).exp() * o, both
            out, lse = o, own
        ctx.ring_degree = ring_degree
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value, out, lse = ctx.saved_tensors
        keys, values = key.chunk(ctx.ring_degree, 2), value.chunk(ctx.ring_degree, 2)
        grad_query, grad_keys, grad_values = torch.zeros_like(query), [], []
        for i in range(ctx.ring_degree):
            k, v = keys[i], values[i]
            dq, dk, dv = backward_op(query, k, v, out, lse, grad_out)
            grad_query += dq
            grad_keys.append(dk)
            grad_values.append(dv)
        return grad_query, torch.cat(grad_keys, 2), torch.cat(grad_values, 2), None


def scaled_dot_product_attention(query, key, value):
    # the ring must divide the keys
    ring_degree = next(r for r in (4, 3, 2, 1) if key.shape[2] % r == 0)
    return RingAttention.apply(query, key, value, ring_degree)
