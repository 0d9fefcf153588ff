"""Attention to chosen blocks of keys, and its backward (as cudnn-frontend #421 had it)."""

import torch


class Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, seen, scale):
        # q [B G R N D], k [B G M D], seen [B G 1 N M], sink [G R]
        s = torch.einsum("bgrnd,bgmd->bgrnm", q, k) * scale
        s = s.masked_fill(~seen, -torch.inf)
        of_keys = torch.logsumexp(s, -1)
        lse = torch.logaddexp(of_keys, sink[None, :, :, None].expand_as(of_keys))
        p = torch.exp(s - lse[..., None]).masked_fill(~seen, 0)
        out = torch.einsum("bgrnm,bgme->bgrne", p, v)
        ctx.save_for_backward(q, k, v, sink, seen, out, of_keys, lse)
        ctx.scale = scale
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v, sink, seen, out, of_keys, lse = ctx.saved_tensors
        s = torch.einsum("bgrnd,bgmd->bgrnm", q, k) * ctx.scale
        p = torch.exp(s - lse[..., None]).masked_fill(~seen, 0)
        delta = (out * d_out).sum(-1) - d_lse
        d_p = torch.einsum("bgrne,bgme->bgrnm", d_out, v)
        d_s = p * (d_p - delta[..., None]) * ctx.scale
        d_q = torch.einsum("bgrnm,bgmd->bgrnd", d_s, k)
        d_k = torch.einsum("bgrnm,bgrnd->bgmd", d_s, q)
        d_v = torch.einsum("bgrnm,bgrne->bgme", p, d_out)
        share = torch.exp(sink[None, :, :, None] - lse).nan_to_num(0)
        return d_q, d_k, d_v, -(share * delta).sum((0, 3)), None, None


def selected_attention(query, key, value, selection, block, sink=None, scale=None):
    groups, m = key.shape[1:3]
    blocks = -(-m // block)
    chosen = torch.zeros(*selection.shape[:3], blocks + 1, dtype=torch.bool)
    chosen.scatter_(-1, selection.long() % (blocks + 1), True)  # -1 falls into the spare one
    seen = chosen[..., :blocks].repeat_interleave(block, -1)[..., :m]
    used = seen.any(2)[..., None]
    k, v = torch.where(used, key, 0), torch.where(used, value, 0)
    if sink is None:
        sink = query.new_full((query.shape[1],), -torch.inf)
    q, sink = query.unflatten(1, (groups, -1)), sink.to(query.dtype).unflatten(0, (groups, -1))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out, lse = Sparse.apply(q, k, v, sink, seen[:, :, None], scale)
    return out.flatten(1, 2), lse.flatten(1, 2)
