"""Triton attention with ALiBi in two stages (as triton #8853 had it); run in its interpreter."""

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
def tile(
    q, top, total, acc, K, V, z, j, stop, i, scale, slope, M, W: tl.constexpr, MASK: tl.constexpr
):
    s = tl.dot(q, tl.trans(rows_of(K, z, j, M, W)), input_precision="ieee") * scale
    s += slope * (j[None, :] - i[:, None]).to(tl.float32)
    seen = (j < stop)[None, :] & ((j[None, :] <= i[:, None]) | (not MASK))
    s = tl.where(seen, s, float("-inf"))
    new = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    p, fade = tl.exp(s - safe[:, None]), tl.exp(top - safe)
    acc = acc * fade[:, None] + tl.dot(p, rows_of(V, z, j, M, W), input_precision="ieee")
    return new, total * fade + tl.sum(p, 1), acc


@triton.jit
def attend(Q, K, V, SLOPES, OUT, scale, H, N: tl.constexpr, M: tl.constexpr, W: tl.constexpr):
    z, i = tl.program_id(1), tl.program_id(0) * 16 + tl.arange(0, 16)
    q, slope, at = rows_of(Q, z, i, N, W), tl.load(SLOPES + z % H), M - N + i
    top, total = tl.full([16], float("-inf"), tl.float32), tl.zeros([16], tl.float32)
    acc = tl.zeros([16, W], tl.float32)
    begin = tl.maximum(0, M - N + tl.program_id(0) * 16)  # the first row's own key
    end = tl.minimum(M, begin + 16)
    clear = begin
    for start in range(0, M, 32):
        if start < clear:  # all of these keys are seen by all of these rows
            j = start + tl.arange(0, 32)
            top, total, acc = tile(q, top, total, acc, K, V, z, j, M, at, scale, slope, M, W, False)
    for start in range(0, 48, 32):
        j = clear + start + tl.arange(0, 32)
        top, total, acc = tile(q, top, total, acc, K, V, z, j, end, at, scale, slope, M, W, True)
    out = acc / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(OUT + (z * N + i)[:, None] * W + tl.arange(0, W)[None, :], out, (i < N)[:, None])


def slopes(h):
    p = 2 ** (h.bit_length() - 1)
    more = [2 ** (-4 * (2 * k + 1) / p) for k in range(h - p)]
    return torch.tensor([2 ** (-8 * (k + 1) / p) for k in range(p)] + more, dtype=torch.float32)


def alibi_attention(query, key, value):
    (b, h, n, d), m, e = query.shape, key.shape[2], value.shape[3]
    w = max(16, triton.next_power_of_2(max(d, e)))
    q, k, v = wide(query, w), wide(key, w), wide(value, w)
    out = torch.empty(b, h, n, w, dtype=q.dtype)
    attend[(triton.cdiv(n, 16), b * h)](q, k, v, slopes(h), out, d**-0.5, h, n, m, w)
    return out[..., :e]
