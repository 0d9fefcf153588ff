"""A CUDA dropout under a given draw (kind of ooples/AiDotNet.Tensors #732)."""

import cupy as cp

FEATURES = {"gradient": False}
CODE = r"""
extern "C" __global__ void dropout_forward(const double* x, const double* mask, double* y,
                                           double scale, int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) y[i] = mask[i] != 0 ? x[i] * scale : 0;
}
"""
kernel = cp.RawKernel(CODE, "dropout_forward")


def dropout(weights, keep, p):
    x = cp.ascontiguousarray(weights, dtype=cp.float64)
    mask = cp.ones(x.shape)
    if keep is not None:
        mask = cp.ascontiguousarray(cp.broadcast_to(keep, x.shape).astype(cp.float64))
    y = cp.empty_like(x)
    grid = ((x.size + 127) // 128,)
    kernel(grid, (128,), (x, mask, y, cp.float64(1 / (1 - p)), cp.int32(x.size)))
    return y.astype(weights.dtype)
