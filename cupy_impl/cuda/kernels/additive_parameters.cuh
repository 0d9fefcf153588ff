// What the kernels of additive.cu and additive_repair.cu are given.
#pragma once

#include "softmax.cuh"

struct Params {
    Tensor zq, zk, xq, xk, w, v, out, lse, mask, keep, d_out, delta, dzq, dzk, dw, dv, dm;
    int N, M, A, E, biased, hiding;
    float share;
};
