"""A CUDA softmax, a row by one warp, online (kind of KarhouTam/cuda-kernels #3)."""

import cupy as cp

FEATURES = {"gradient": False, "mask": False, "float mask": False}
CODE = r"""
#define INFINITY __int_as_float(0x7f800000)
extern "C" __global__ void row_softmax(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x, lane = threadIdx.x;
    x += (long long)row * cols;
    y += (long long)row * cols;
    float top = -INFINITY, total = 0.f;
    for (int c = lane; c < cols; c += 32) {
        float bigger = fmaxf(top, x[c]);
        if (bigger == -INFINITY) continue;
        total = total * expf(top - bigger) + expf(x[c] - bigger);
        top = bigger;
    }
    float all = top;
    for (int o = 16; o > 0; o /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffff, all, o));
    if (all == -INFINITY) all = 0.f;
    total *= expf(top - all);
    for (int o = 16; o > 0; o /= 2) total += __shfl_xor_sync(0xffffffff, total, o);
    if (total == 0.f) total = 1.f;
    for (int c = lane; c < cols; c += 32) y[c] = expf(x[c] - all) / total;
}
"""
kernel = cp.RawKernel(CODE, "row_softmax")


def softmax(score):
    x = cp.ascontiguousarray(score, dtype=cp.float32)
    cols = x.shape[-1]
    rows = x.size // cols
    y = cp.empty_like(x)
    kernel((rows,), (32,), (x, y, cp.int32(rows), cp.int32(cols)))
    return y
