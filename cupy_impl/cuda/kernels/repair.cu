// Rows of attention.cu's output that a value reached which they do not see, computed again: see repair.cuh.

#include "repair.cuh"
#include "parameters.cuh"

// A query and a bias of its head, in the dtype of both.
struct Asking {
    Matrix<Element> query, bias;
    bool biased;

    METHOD float operator()(int i, int d) const
    {
        const float x = widen(query.read(i, d));
        return biased ? widen(narrow<Element>(x + widen(bias.read(0, d)))) : x;
    }
};

DEVICE Asking asking(const Matrix<Element>& query, const Tensor& bias, int h)
{
    Asking made{query, {}, bias.data != nullptr};
    if (made.biased) made.bias = matrix<Element>(bias, 0, h);
    return made;
}

KERNEL(repair)
{
    const int b = block_head() / p.H, h = block_head() % p.H, first = last_block_rows() * OWN + ROWS * warp();
    const Pairs pairs = pairs_of(p, b, h);
    const Matrix<Element> queries = matrix<Element>(p.q, b, h), keys = matrix<Element>(p.k, b, h);
    const Asking content = asking(queries, p.u, h), position = asking(queries, p.w, h);
    const Matrix<float> lses = matrix<float>(p.lse, b, h);
    for (int i = first; i < first + ROWS && i < p.N; i++) {
        const Row row{matrix<Element>(p.out, b, h), matrix<Element>(p.v, b, h), i, p.E};
        if (!row.is_lost()) continue;
        row.repair(pairs, lses.read(i, 0), [&](int j) {
            const int x = p.first - i + j;
            const bool read = RELATIVE && x >= 0 && x < p.rows;
            float s = 0;
            for (int d = lane(); d < p.D; d += LANES) {
                s += content(i, d) * widen(keys.read(j, d));
                if (read) s += position(i, d) * widen(matrix<Element>(p.r, 0, h).read(x, d));
            }
            s = over_warp(s);
            return read && p.s.data ? s + widen(matrix<Element>(p.s, 0, h).read(x, 0)) : s;
        });
    }
}
