"""
Packed sequences by plain attention of the pieces between their boundaries
(as Tencent-Hunyuan/HunyuanVideo #310 found its torch mode).
"""

import torch

FEATURES = {"mask": False, "dropout": False}


def attend(q, k, v, scale, causal):
    """[n H D], [m G D], [m G E] of one piece."""
    (n, h, _), (m, g, _) = q.shape, k.shape
    k, v = (x.repeat_interleave(h // g, 1) for x in (k, v))
    score = scale * torch.einsum("nhd,mhd->hnm", q, k)
    seen = torch.ones(n, m, dtype=torch.bool)
    if causal:
        seen = torch.arange(m) <= torch.arange(n)[:, None] + m - n
    some = seen.any(-1)[:, None]
    score = torch.where(some, score.masked_fill(~seen, -torch.inf), 0.0)
    lse = torch.logsumexp(score, -1, keepdim=True)
    weights = torch.where(seen, (score - lse).exp(), 0.0)
    lse = torch.where(some, lse, -torch.inf)[..., 0]
    return torch.einsum("hnm,mhe->nhe", weights, v), lse.T


def packed_attention(query, key, value, query_starts, key_starts, scale=None, causal=False):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    cu_seqlens_q, cu_seqlens_kv = query_starts.tolist(), key_starts.tolist()
    output = query.new_zeros(*query.shape[:2], value.shape[-1])
    lse = query.new_full(query.shape[:2], -torch.inf)
    ends = zip(cu_seqlens_q, cu_seqlens_kv, strict=False)
    cuts = list(ends)
    for b in range(len(cuts) - 1):
        (i, y), (j, z) = cuts[b : b + 2]
        if i < j and y < z:
            output[i:j], lse[i:j] = attend(query[i:j], key[y:z], value[y:z], scale, causal)
    return output, lse
