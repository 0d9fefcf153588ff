"""CUDA attention, a thread for each key (kind of 1bit-MONSTER #393)."""

import cupy as cp

FEATURES = {"gradient": False, "mask": False, "float mask": False, "dropout": False}
CODE = r"""
extern "C" __global__ void attend(const float* q, const float* k, const float* v, float* out,
                                  int N, int M, int D, int E, float scale) {
    extern __shared__ float staged[];
    __shared__ float p[32];
    int row = blockIdx.x, z = blockIdx.y, t = threadIdx.x;
    q += ((long long)z * N + row) * D;
    out += ((long long)z * N + row) * E;
    float* mine = staged + t * D;
    float top = -3.402823466e+38f, total = 0.f;
    for (int start = 0; start < M; start += 32) {
        int j = start + t;
        float s = -3.402823466e+38f;
        if (j < M) {
            for (int d = 0; d < D; ++d) mine[d] = k[((long long)z * M + j) * D + d];
        }
        __syncthreads();
        if (j < M) {
            s = 0.f;
            for (int d = 0; d < D; ++d) s += q[d] * mine[d];
            s *= scale;
        }
        float bigger = s;
        for (int o = 16; o > 0; o /= 2)
            bigger = fmaxf(bigger, __shfl_xor_sync(0xffffffff, bigger, o));
        bigger = fmaxf(bigger, top);
        float fade = expf(top - bigger), mass = j < M ? expf(s - bigger) : 0.f;
        p[t] = mass;
        for (int o = 16; o > 0; o /= 2) mass += __shfl_xor_sync(0xffffffff, mass, o);
        total = total * fade + mass;
        __syncthreads();
        for (int e = t; e < E; e += 32) {
            float acc = out[e] * fade;
            for (int i = 0; i < 32 && start + i < M; ++i)
                acc += p[i] * v[((long long)z * M + start + i) * E + e];
            out[e] = acc;
        }
        top = bigger;
        __syncthreads();
    }
    for (int e = t; e < E; e += 32) out[e] /= total;
}
"""
kernel = cp.RawKernel(CODE, "attend")


def scaled_dot_product_attention(query, key, value):
    q, k, v = (cp.ascontiguousarray(x, dtype=cp.float32) for x in (query, key, value))
    (b, h, n, d), m, e = q.shape, k.shape[2], v.shape[3]
    out = cp.zeros((b, h, n, e), cp.float32)
    sizes = tuple(cp.int32(size) for size in (n, m, d, e))
    kernel((n, b * h), (32,), (q, k, v, out, *sizes, cp.float32(d**-0.5)), shared_mem=4 * 32 * d)
    return out
