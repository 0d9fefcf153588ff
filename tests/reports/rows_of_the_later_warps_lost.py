"""A CUDA softmax, a row by each warp (kind of karpathy/llm.c #776)."""

import cupy as cp

FEATURES = {"gradient": False, "mask": False, "float mask": False}
CODE = r"""
extern "C" __global__ void row_softmax(const float* x, float* y, int rows, int cols) {
    int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    int row = blockIdx.x * warps + threadIdx.x / 32;
    if (row >= rows) return;
    x += (long long)row * cols;
    y += (long long)row * cols;
    float top = -3.402823466e+38f, total = 0.f;
    for (int c = lane; c < cols; c += 32) top = fmaxf(top, x[c]);
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, o));
    for (int c = lane; c < cols; c += 32) total += expf(x[c] - top);
    for (int o = 16; o > 0; o /= 2) total += __shfl_xor_sync(0xffffffff, total, o);
    if (total == 0.f) total = 1.f;
    for (int c = lane; c < cols; c += 32) y[c] = expf(x[c] - top) / total;
}
"""
kernel = cp.RawKernel(CODE, "row_softmax")


def softmax(score):
    x = cp.ascontiguousarray(score, dtype=cp.float32)
    cols = x.shape[-1]
    rows = x.size // cols
    y = cp.empty_like(x)
    kernel(((rows + 3) // 4,), (128,), (x, y, cp.int32(rows), cp.int32(cols)))
    return y
