"""A kernel of tanh and nothing else, for the ceiling of a GPU: each number stays in a register."""

import torch
import triton
import triton.language as tl

REPEATS, BLOCK, PROGRAMS = 256, 1024, 4096


@triton.jit
def kernel(out, REPEATS: tl.constexpr, BLOCK: tl.constexpr):
    x = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.float32) * 1e-6
    for _ in range(REPEATS):
        x = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), x)


def prepared():
    """How many tanh one call computes, and the call."""
    out = torch.empty(PROGRAMS * BLOCK, device="cuda")
    return PROGRAMS * BLOCK * REPEATS, lambda: kernel[(PROGRAMS,)](out, REPEATS, BLOCK)
