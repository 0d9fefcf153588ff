"""Flash attention on the CPU, a tile of keys at a time (after the kernel of llama.cpp #29034)."""

import numpy as np

FEATURES = {"dropout": False}
TILE_KV = 16


def grouped_attention(query, key, value, mask=None, soft_cap=None, scale=None):
    batch, heads, n, d = query.shape
    kv_heads, m, e = value.shape[1:]
    scale = query.dtype.type(1 / np.sqrt(d) if scale is None else scale)
    if mask is not None:
        if mask.dtype == bool:
            mask = np.where(mask, 0, -np.inf).astype(query.dtype)
        mask = np.broadcast_to(mask, (batch, heads, n, m))
    out = np.zeros((batch, heads, n, e), query.dtype)
    lse = np.full((batch, heads, n), -np.inf, query.dtype)
    for b, h in np.ndindex(batch, heads):
        g = h // (heads // kv_heads)
        M = np.full((n, 1), -np.inf, query.dtype)
        S = np.zeros((n, 1), query.dtype)
        VKQ = np.zeros((n, e), query.dtype)
        for ic in range(0, m, TILE_KV):
            kv_tile = min(TILE_KV, m - ic)
            K = np.zeros((TILE_KV, d), query.dtype)
            V = np.zeros((TILE_KV, e), query.dtype)
            K[:kv_tile] = key[b, g, ic : ic + kv_tile]
            V[:kv_tile] = value[b, g, ic : ic + kv_tile]
            KQ = (query[b, h] @ K.T) * scale
            KQ[:, kv_tile:] = -np.inf  # the padding of the last tile takes no weight
            if soft_cap is not None:
                KQ = np.tanh(KQ / query.dtype.type(soft_cap)) * query.dtype.type(soft_cap)
            if mask is not None:
                padded = np.full((n, TILE_KV), -np.inf, query.dtype)
                padded[:, :kv_tile] = mask[b, h, :, ic : ic + kv_tile]
                KQ = KQ + padded
            M_new = np.maximum(M, KQ.max(-1, keepdims=True))
            safe = np.where(np.isneginf(M_new), 0, M_new).astype(query.dtype)
            P = np.exp(KQ - safe)
            ms = np.exp(M - safe)
            VKQ = VKQ * ms + P @ V
            S = S * ms + P.sum(-1, keepdims=True)
            M = M_new
        there = S[:, 0] > 0
        out[b, h, there] = VKQ[there] / S[there]
        lse[b, h, there] = M[there, 0] + np.log(S[there, 0])
    return out, lse
