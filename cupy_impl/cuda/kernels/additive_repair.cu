// Rows of additive.cu's output that a value reached which they do not see, computed again: see repair.cuh.

#include "repair.cuh"
#include "additive_parameters.cuh"

KERNEL(additive_repair)
{
    const int b = block_head(), first = block_rows() * OWN + ROWS * warp();
    const Pairs pairs = pairs_of(p.mask, p.biased, p.keep, b, 0, p.N, p.M, p.share);
    const Matrix<float> queries = matrix<float>(p.zq, b, 0), keys = matrix<float>(p.zk, b, 0), weights = matrix<float>(p.w, 0, 0);
    const Matrix<float> lses = matrix<float>(p.lse, b, 0);
    for (int i = first; i < first + ROWS && i < p.N; i++) {
        const Row row{matrix<Element>(p.out, b, 0), matrix<Element>(p.v, b, 0), i, p.E};
        if (!row.is_lost()) continue;
        row.repair(pairs, lses.read(i, 0), [&](int j) {
            float s = 0;
            for (int a = lane(); a < p.A; a += LANES) {
                const float z = queries.read(i, a) + keys.read(j, a);
                s += weights.read(0, a) * (1 - 2 * reciprocal(1 + exponential<float>(2 * (z > 20 ? 20 : z))));
            }
            return over_warp(s);
        });
    }
}
