"""A Triton softmax with its backward (kind of flagos-ai/Torch-FL #171)."""

import torch
import triton
import triton.language as tl

FEATURES = {"mask": False, "float mask": False}


@triton.jit
def row_softmax(X, Y, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + tl.program_id(0) * cols + at, at < cols, other=-float("inf"))
    top = tl.max(x, 0)
    e = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(e, 0)
    y = e / tl.where(total == 0.0, 1.0, total)
    tl.store(Y + tl.program_id(0) * cols + at, y, at < cols)


@triton.jit
def row_softmax_backward(Y, DY, DX, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    y = tl.load(Y + tl.program_id(0) * cols + at, at < cols, other=0.0)
    d_y = tl.load(DY + tl.program_id(0) * cols + at, at < cols, other=0.0)
    d_x = y * (d_y - tl.sum(y * d_y, 0))
    tl.store(DX + tl.program_id(0) * cols + at, d_x, at < cols)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, score):
        x = score.contiguous()
        y = torch.empty_like(x)
        cols = x.shape[-1]
        row_softmax[(x.numel() // cols,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, d_y):
        (y,) = ctx.saved_tensors
        cols, d_x = y.shape[-1], torch.empty_like(y)
        d_y = d_y.contiguous()
        block = triton.next_power_of_2(cols)
        row_softmax_backward[(y.numel() // cols,)](y, d_y, d_x, cols, BLOCK=block)
        return d_x


def softmax(score):
    return Softmax.apply(score)
