"""A user's CUDA C++, by CuPy: a softmax with a block for each row."""

import cupy

PRECISION = "fused"
DTYPES = ("float32",)

SOURCE = r"""
extern "C" __global__ void softmax(const float* score, const bool* sees, float* weights, int M)
{
    __shared__ float shared[64];
    long long row = (long long)blockIdx.x * M;
    float most = __int_as_float(0xff800000), sum = 0;
    for (int j = threadIdx.x; j < M; j += blockDim.x)
        if (sees[row + j]) most = fmaxf(most, score[row + j]);
    shared[threadIdx.x] = most;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    most = shared[0];
    __syncthreads();
    for (int j = threadIdx.x; j < M; j += blockDim.x)
        if (sees[row + j]) sum += expf(score[row + j] - most);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    for (int j = threadIdx.x; j < M; j += blockDim.x)
        weights[row + j] = sees[row + j] ? expf(score[row + j] - most) / shared[0] : 0.0f;
}
"""
KERNEL = cupy.RawKernel(SOURCE, "softmax")


def softmax(score, mask=None):
    if score.dtype != cupy.float32:
        raise NotImplementedError("takes float32 alone")
    sees = score != -cupy.inf
    if mask is not None and mask.dtype == bool:
        sees = sees & mask
    elif mask is not None:
        sees, score = sees & (mask != -cupy.inf), cupy.where(sees, score, 0) + mask
    score, sees = cupy.ascontiguousarray(score), cupy.ascontiguousarray(sees)
    weights = cupy.empty_like(score)
    M = score.shape[-1]
    if score.size:
        KERNEL((score.size // M,), (64,), (score, sees, weights, cupy.int32(M)))
    return weights
