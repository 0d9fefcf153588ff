"""Triton attention on [B N H D] (kind of BobMcDear/attorch #14)."""

import triton
import triton.language as tl

ARRAYS = "torch"
PRECISION = "fused"
LAYOUT = "BNHD"
FEATURES = {"gradient": False, "mask": False, "float mask": False, "dropout": False}


@triton.jit
def forward(
    Q, K, V, OUT, H, N, M, scale, D: tl.constexpr, E: tl.constexpr,
    TOP: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    row, b, h = tl.program_id(0), tl.program_id(1) // H, tl.program_id(1) % H
    # rows are H * width apart; the head's offset in rows, then in numbers
    q_head, k_head, v_head = h * D, h * D, h * E
    d, e, cols = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, TOP)
    in_cols = (cols < M)[:, None]
    q = tl.load(Q + (b * N + row) * H * D + q_head + d, d < D, 0.0)
    at_k = (b * M + cols)[:, None] * H * D + k_head + d[None, :]
    k = tl.load(K + at_k, in_cols & (d < D)[None, :], 0.0)
    at_v = (b * M + cols)[:, None] * H * E + v_head + e[None, :]
    v = tl.load(V + at_v, in_cols & (e < E)[None, :], 0.0)
    s = tl.where(cols < M, tl.sum(k * q[None, :], 1) * scale, float("-inf"))
    p = tl.exp(s - tl.max(s, 0))
    out = tl.sum(p[:, None] * v, 0) / tl.sum(p, 0)
    tl.store(OUT + (b * N + row) * H * E + h * E + e, out, e < E)


def scaled_dot_product_attention(query, key, value):
    q, k, v = query.contiguous(), key.contiguous(), value.contiguous()
    (b, n, h, d), m, e = q.shape, k.shape[1], v.shape[3]
    out = q.new_empty(b, n, h, e)
    powers = {"TOP": m, "DP": d, "EP": e}
    powers = {name: max(16, triton.next_power_of_2(size)) for name, size in powers.items()}
    forward[(n, b * h)](q, k, v, out, h, n, m, d**-0.5, D=d, E=e, **powers)
    return out
