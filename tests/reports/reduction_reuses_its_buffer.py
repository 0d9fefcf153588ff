"""A CUDA softmax, a row by one block (kind of JustVugg/colibri #1098)."""

import cupy as cp

FEATURES = {"gradient": False, "mask": False, "float mask": False}
CODE = r"""
__device__ float reduce(float v, float* red, bool sum) {
    int t = threadIdx.x;
    red[t] = v;
    __syncthreads();
    for (int o = blockDim.x / 2; o > 0; o /= 2) {
        if (t < o) red[t] = sum ? red[t] + red[t + o] : fmaxf(red[t], red[t + o]);
        __syncthreads();
    }
    float all = red[0];
    __syncthreads();
    return all;
}
extern "C" __global__ void row_softmax(const float* x, float* y, int rows, int cols) {
    __shared__ float red[64];
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    float top = -3.402823466e+38f, total = 0.f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) top = fmaxf(top, x[c]);
    top = reduce(top, red, false);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) total += expf(x[c] - top);
    total = reduce(total, red, true);
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[c] = expf(x[c] - top) / (total == 0.f ? 1.f : total);
}
"""
kernel = cp.RawKernel(CODE, "row_softmax")


def softmax(score):
    x = cp.ascontiguousarray(score, dtype=cp.float32)
    cols = x.shape[-1]
    rows = x.size // cols
    y = cp.empty_like(x)
    kernel((rows,), (64,), (x, y, cp.int32(rows), cp.int32(cols)))
    return y
