// What the kernels of attention.cu and repair.cu are given.
#pragma once

#include "softmax.cuh"

struct Params {
    Tensor q, k, v, out, lse, mask, keep, slopes, u, w, r, s, d_out, delta, dq, dk, dv, dm, du, dw, dr, ds;
    int H, N, M, D, E, rows, first, causal, biased, hiding;
    float scale, share;
};

DEVICE Pairs pairs_of(const Params& p, int b, int h)
{
    Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, h, p.N, p.M, p.share);
    pairs.causal = p.causal, pairs.scale = p.scale;
    if (p.slopes.data) pairs.slope = matrix<float>(p.slopes, 0, h).read(0, 0);
    return pairs;
}
