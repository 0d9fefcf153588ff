"""Flash attention by launches that count where they are (after mlir-air #1428)."""

import numpy as np

FEATURES = {"mask": False, "dropout": False}
TILE_Q = 4
HEADS_PER_UNROLL = 2


class Counter:
    """Kept in local memory from launch to launch: which block of queries is this?"""

    def __init__(self, num_head_groups):
        self.head, self.q_block = 0, 0
        self.wraps_at = num_head_groups * HEADS_PER_UNROLL

    def tick(self):
        self.head += 1
        if self.head == self.wraps_at:
            self.head = 0
            self.q_block += 1


def attend(q, k, v, first_row, causal, scale):
    s = q @ k.T * scale
    if causal:
        row = first_row + np.arange(len(q))[:, None]
        s = np.where(np.arange(len(k)) <= row, s, -np.inf).astype(q.dtype)
    top = s.max(-1, keepdims=True)
    top = np.where(np.isneginf(top), 0, top).astype(q.dtype)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return p @ v / np.where(total == 0, 1, total), (top + np.log(total))[:, 0]


def grouped_attention(query, key, value, scale=None, causal=False):
    batch, heads, n, d = query.shape
    kv_heads, m, e = value.shape[1:]
    scale = query.dtype.type(d**-0.5 if scale is None else scale)
    out = np.zeros((batch, heads, n, e), query.dtype)
    lse = np.zeros((batch, heads, n), query.dtype)
    num_head_groups = -(-heads // HEADS_PER_UNROLL)
    for b in range(batch):
        counter = Counter(num_head_groups)
        for q_block in range(-(-n // TILE_Q)):
            rows = slice(q_block * TILE_Q, (q_block + 1) * TILE_Q)
            for group in range(num_head_groups):
                first_row = counter.q_block * TILE_Q + m - n
                for h in range(
                    group * HEADS_PER_UNROLL, min((group + 1) * HEADS_PER_UNROLL, heads)
                ):
                    g = h * kv_heads // heads
                    out[b, h, rows], lse[b, h, rows] = attend(
                        query[b, h, rows], key[b, g], value[b, g], first_row, causal, scale
                    )
                counter.tick()
    return out, lse
