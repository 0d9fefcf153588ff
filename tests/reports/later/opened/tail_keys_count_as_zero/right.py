"""Triton flash attention (as tiny-flash-attention #12 had it); run in its interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl

PRECISION = "fused"
FEATURES = {"gradient": False, "mask": False, "dropout": False}


def wide(x, width):
    """Filled up with zeros to the width that a tile has."""
    return torch.nn.functional.pad(x, (0, width - x.shape[-1])).contiguous()


@triton.jit
def rows_of(P, z, i, n, W: tl.constexpr):
    return tl.load(P + (z * n + i)[:, None] * W + tl.arange(0, W)[None, :], (i < n)[:, None], 0.0)


@triton.jit
def attend(Q, K, V, OUT, scale, N: tl.constexpr, M: tl.constexpr, W: tl.constexpr, T: tl.constexpr):
    z, i = tl.program_id(1), tl.program_id(0) * T + tl.arange(0, T)
    q = rows_of(Q, z, i, N, W)
    top, total = tl.full([T], float("-inf"), tl.float32), tl.zeros([T], tl.float32)
    acc = tl.zeros([T, W], tl.float32)
    for start in range(0, M, T):
        j = start + tl.arange(0, T)
        qk = tl.dot(q, tl.trans(rows_of(K, z, j, M, W)), input_precision="ieee")
        s = qk * (scale * 1.4426950408889634)
        s = tl.where((j < M)[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, fade = tl.exp2(s - new[:, None]), tl.exp2(top - new)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p, rows_of(V, z, j, M, W), input_precision="ieee")
        top = new
    at = (z * N + i)[:, None] * W + tl.arange(0, W)[None, :]
    tl.store(OUT + at, acc / total[:, None], (i < N)[:, None])


def scaled_dot_product_attention(query, key, value):
    (b, h, n, d), m, e = query.shape, key.shape[2], value.shape[3]
    w = max(16, triton.next_power_of_2(max(d, e)))
    q, k, v = wide(query, w), wide(key, w), wide(value, w)
    out = torch.empty(b, h, n, w, dtype=q.dtype)
    attend[(triton.cdiv(n, 16), b * h)](q, k, v, out, d**-0.5, n, m, w, 16)
    return out[..., :e]
