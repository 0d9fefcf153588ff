"""Triton grouped attention in halves (as triton #11415 had it); run in its interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl

PRECISION = "fused"
FEATURES = {"gradient": False}


def wide(x, width):
    """Filled up with zeros to the width that a tile has."""
    return torch.nn.functional.pad(x, (0, width - x.shape[-1])).contiguous()


@triton.jit
def rows_of(P, z, i, n, W: tl.constexpr):
    return tl.load(P + (z * n + i)[:, None] * W + tl.arange(0, W)[None, :], (i < n)[:, None], 0.0)


@triton.jit
def half(Q, K, V, OUT, LSE, z, g, i, row, scale, N, M: tl.constexpr, W: tl.constexpr):
    q = rows_of(Q, z, i, N, W)
    top, total = tl.full([16], float("-inf"), tl.float32), tl.zeros([16], tl.float32)
    acc = tl.zeros([16, W], tl.float32)
    for start in range(0, M, 16):
        j = start + tl.arange(0, 16)
        s = tl.dot(q, tl.trans(rows_of(K, g, j, M, W)), input_precision="ieee") * scale
        s = tl.where((j < M)[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, fade = tl.exp(s - new[:, None]), tl.exp(top - new)
        total, top = total * fade + tl.sum(p, 1), new
        acc = acc * fade[:, None] + tl.dot(p, rows_of(V, g, j, M, W), input_precision="ieee")
    at = (z * N + i)[:, None] * W + tl.arange(0, W)[None, :]
    tl.store(OUT + at, acc / total[:, None], (i < N)[:, None])
    tl.store(LSE + z * N + row, top + tl.log(total), i < N)


@triton.jit
def attend(Q, K, V, OUT, LSE, SHARE, scale, N, M: tl.constexpr, W: tl.constexpr):
    z, i = tl.program_id(1), tl.program_id(0) * 32 + tl.arange(0, 16)
    g, row = z // SHARE, i
    half(Q, K, V, OUT, LSE, z, g, i, row, scale, N, M, W)
    row += 16
    half(Q, K, V, OUT, LSE, z, g, i + 16, row, scale, N, M, W)


def grouped_attention(query, key, value):
    (b, h, n, d), g, m, e = query.shape, key.shape[1], key.shape[2], value.shape[3]
    w = max(16, triton.next_power_of_2(max(d, e)))
    q, k, v = wide(query, w), wide(key, w), wide(value, w)
    out, lse = torch.zeros(b, h, n, w, dtype=q.dtype), torch.zeros(b, h, n, dtype=torch.float32)
    attend[(triton.cdiv(n, 32), b * h)](q, k, v, out, lse, h // g, d**-0.5, n, m, w)
    return out[..., :e], lse
