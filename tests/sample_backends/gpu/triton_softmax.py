"""A user's Triton kernel: a softmax with a program for each row, tuned between two sizes."""

import torch
import triton
import triton.language as tl

PRECISION = "fused"
DTYPES = ("float32", "float16", "bfloat16")


@triton.autotune(
    [triton.Config({"LANES": 4}, num_warps=1), triton.Config({"LANES": 8}, num_warps=2)],
    key=["WIDTH"],
)
@triton.jit
def kernel(score, sees, weights, rows, M, WIDTH: tl.constexpr, LANES: tl.constexpr):
    row = tl.program_id(0) * LANES + tl.arange(0, LANES)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside, at = (row < rows) & (column < M), row * M + column
    seen = tl.load(sees + at, mask=inside, other=0) != 0
    x = tl.load(score + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(seen, x, -float("inf"))
    most = tl.max(x, 1)
    most = tl.where(most == -float("inf"), 0.0, most)
    e = tl.where(seen, tl.exp(x - most[:, None]), 0.0)
    sum = tl.sum(e, 1)
    found = e / tl.where(sum == 0, 1.0, sum)[:, None]
    tl.store(weights + at, found.to(weights.dtype.element_ty), mask=inside)


def softmax(score, mask=None):
    assert score.is_cuda
    dtype = score.dtype
    if dtype == torch.float64:
        raise NotImplementedError("takes float32 and the halves")
    sees = score != -torch.inf
    if mask is not None and mask.dtype == torch.bool:
        sees = sees & mask
    elif mask is not None:
        sees, score = sees & (mask != -torch.inf), torch.where(sees, score, 0).float() + mask
    score, sees = score.contiguous(), sees.contiguous()
    weights = torch.empty(score.shape, dtype=dtype, device="cuda")
    M = score.shape[-1]
    rows = score.numel() // max(M, 1)
    if score.numel():
        width = triton.next_power_of_2(M)
        kernel[lambda meta: (triton.cdiv(rows, meta["LANES"]),)](
            score, sees, weights, rows, M, WIDTH=width
        )
    return weights
