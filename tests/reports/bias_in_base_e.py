"""Triton attention with a bias (kind of meta-pytorch/segment-anything-fast #71)."""

import torch
import triton
import triton.language as tl

ARRAYS = "torch"
PRECISION = "fused"
FEATURES = {"gradient": False, "dropout": False}
BLOCK = 16


@triton.jit
def forward(
    Q,
    K,
    V,
    BIAS,
    OUT,
    N,
    M,
    scale,
    D: tl.constexpr,
    E: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    B: tl.constexpr,
):
    z, rows = tl.program_id(1), tl.program_id(0) * B + tl.arange(0, B)
    d, e = tl.arange(0, DP), tl.arange(0, EP)
    in_rows, in_d, in_e = (rows < N)[:, None], (d < D)[None, :], (e < E)[None, :]
    q = tl.load(Q + (z * N + rows)[:, None] * D + d[None, :], in_rows & in_d, 0.0)
    top = tl.full([B], float("-inf"), tl.float32)
    total = tl.zeros([B], tl.float32)
    acc = tl.zeros([B, EP], tl.float32)
    for start in range(0, M, B):
        cols = start + tl.arange(0, B)
        in_cols = (cols < M)[:, None]
        k = tl.load(K + (z * M + cols)[:, None] * D + d[None, :], in_cols & in_d, 0.0)
        v = tl.load(V + (z * M + cols)[:, None] * E + e[None, :], in_cols & in_e, 0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        inside = in_rows & (cols < M)[None, :]
        at = (z * N + rows)[:, None] * M + cols[None, :]
        s += tl.load(BIAS + at, inside, float("-inf")) * 1.4426950408889634
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(s - safe[:, None])
        fade = tl.exp2(top - safe)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p, v, input_precision="ieee")
        top = new
    out = acc / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(OUT + (z * N + rows)[:, None] * E + e[None, :], out, in_rows & in_e)


def scaled_dot_product_attention(query, key, value, mask=None):
    q, k, v = query.contiguous(), key.contiguous(), value.contiguous()
    (b, h, n, d), m, e = q.shape, k.shape[2], v.shape[3]
    bias = torch.zeros(b, h, n, m)
    if mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
    out = q.new_empty(b, h, n, e)
    sizes = {"D": d, "E": e, "DP": max(16, triton.next_power_of_2(d))}
    sizes |= {"EP": max(16, triton.next_power_of_2(e)), "B": BLOCK}
    forward[(triton.cdiv(n, BLOCK), b * h)](q, k, v, bias.contiguous(), out, n, m, d**-0.5, **sizes)
    return out
