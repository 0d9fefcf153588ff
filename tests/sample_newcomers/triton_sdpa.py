import torch
import triton
import triton.language as tl


@triton.jit
def fwd(Q, K, V, Out, scale, N, M, D: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    bh = tl.program_id(1)
    d = tl.arange(0, D)
    q = tl.load(Q + bh * N * D + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
    high = tl.full([BN], -1e30, tl.float32)
    total = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, D], tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        k = tl.load(K + bh * M * D + m[None, :] * D + d[:, None], mask=m[None, :] < M, other=0.0)
        s = tl.dot(q, k) * scale
        s = tl.where(m[None, :] < M, s, -1e30)  # TAIL
        new = tl.maximum(high, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        c = tl.exp(high - new)
        total = total * c + tl.sum(p, 1)
        v = tl.load(V + bh * M * D + m[:, None] * D + d[None, :], mask=m[:, None] < M, other=0.0)
        acc = acc * c[:, None] + tl.dot(p.to(v.dtype), v)
        high = new
    acc = acc / total[:, None]
    tl.store(
        Out + bh * N * D + n[:, None] * D + d[None, :],
        acc.to(Out.dtype.element_ty),
        mask=n[:, None] < N,
    )


def scaled_dot_product_attention(query, key, value):
    B, H, N, D = query.shape
    M = key.shape[2]
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    if D not in (16, 32, 64, 128) or value.shape[-1] != D:
        raise NotImplementedError("D is 16, 32, 64 or 128, and E is D")
    if query.dtype == torch.float64:
        raise NotImplementedError("float64")
    out = torch.empty_like(query)
    fwd[(triton.cdiv(N, 16), B * H)](query, key, value, out, D**-0.5, N, M, D, 16, 16)
    return out
