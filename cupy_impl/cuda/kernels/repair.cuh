// What only some rows see is kept from the others, after a forward kernel that does not look: a weight of 0 times a value that is no number
// is NaN, so that such a value reaches every row of the tile that meets it.
//
// A warp reads the output of its 16 rows and goes on at once where it is finite. A row where it is not is computed again, key by key, from
// the scores and their log-sum-exp; an element is written where it sees none but finite values, and everything else is left as it is. The
// weights are divided by their sum once more: the log-sum-exp of large scores is rounded by more than a bound allows.
#pragma once

#include "softmax.cuh"

DEVICE float over_warp(float x)
{
#pragma unroll
    for (int other = 1; other < LANES; other *= 2) x += shuffle_xor(x, other);
    return x;
}

// A matrix of outputs and one of values, a row and the columns of each lane.
struct Row {
    Matrix<Element> out, values;
    int i, E;

    METHOD bool is_lost(int e) const { return e < E && !finite(widen(out.read(i, e))); }

    METHOD bool is_lost() const
    {
        bool lost = false;
        for (int e = lane(); e < E; e += LANES) lost |= is_lost(e);
        return warp_or(lost);
    }

    // `score(j)` is the same in all lanes, of a pair that may be hidden.
    template <class Score> METHOD void repair(const Pairs& pairs, float lse, Score score) const
    {
        float sum[WIDTH / LANES] = {}, norm = 0;
        bool met[WIDTH / LANES] = {};
        for (int j = 0; j < pairs.M; j++) {
            float s = score(j);
            if (!pairs(s, i, j)) continue;
            const float power = exponential<Element>(s - lse), weight = pairs.kept(i, j) ? power * pairs.share : 0;
            norm += power;
#pragma unroll
            for (int c = 0; c < WIDTH / LANES; c++) {
                const int e = lane() + c * LANES;
                const float x = e < E ? widen(values.read(j, e)) : 0;
                if (finite(x))
                    sum[c] += weight * x;
                else
                    met[c] = true;
            }
        }
#pragma unroll
        for (int c = 0; c < WIDTH / LANES; c++) {
            const int e = lane() + c * LANES;
            if (is_lost(e) && !met[c]) out.write(i, e, narrow<Element>(norm > 0 ? sum[c] / norm : sum[c]));
        }
    }
};
