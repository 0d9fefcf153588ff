"""Faults of ALiBi: slopes, which head has which, distances, signs, and biases that count."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention

RULE, BIAS = "get_slopes, clause 1", "alibi_attention: slope * (j - (M - N + i))"


def plain_series(H: int) -> ndarray:
    return 2.0 ** (-8 / H * (np.arange(H) + 1))


def sloped(slopes: Any) -> Any:
    return lambda query, key: attention.alibi_score(query, key, slopes=slopes)


def far(distances: Any) -> Any:
    return lambda query, key: attention.alibi_score(query, key, distances=distances)


@fault("alibi", "every slope of the power of two above, for the rest",
       source="this project", clause=RULE, reveals="H of 6, 7, 12")  # fmt: skip
def get_slopes_consecutive_rest(n_heads: int) -> Any:
    n = 2 ** (n_heads.bit_length() - 1)
    h = np.arange(n_heads)
    return 2.0 ** (-8 / n * np.where(h < n, h + 1, (h - n + 1) / 2))


@fault("alibi", "slopes dealt batch by batch", source="ggml PR #143",
       clause="head h has slope h", reveals="B > 1, H > 1")  # fmt: skip
def alibi_attention_slopes_by_batch(query: ndarray, key: ndarray, **given: Any) -> Any:
    def score(query: ndarray, key: ndarray) -> ndarray:
        B, H = query.shape[:2]
        slope = attention.get_slopes(H)[(np.arange(B * H) // B).reshape(B, H)]
        return attention.scaled_dot_product_score(query, key) + slope[
            ..., None, None
        ] * attention.distances(query.shape[2], key.shape[2])

    return attention.alibi_attention(query, key, **given, score=score)


def counts_of_last_row(H: int, visible: ndarray) -> ndarray:
    return attention.get_alibi_biases(H, np.broadcast_to(visible[-1:], visible.shape))


add_faults("alibi", (
    ("alibi_attention_plain_beyond_16", "a plain series beyond 16 heads", "this project", RULE,
     "H > 16, no power of two",
     {"score": sloped(lambda H: plain_series(H) if H > 16 else attention.get_slopes(H))}),
    ("get_slopes_other_base", "the base 2^-9", "this project", "get_slopes", "any",
     lambda n_heads: attention.get_slopes(n_heads, base=9.0)),
    ("alibi_attention_local_heads", "the slopes of half as many heads, twice",
     "Megatron-DeepSpeed #227", "head h has slope h", "H > 1",
     {"score": sloped(lambda H: np.tile(attention.get_slopes((H + 1) // 2), 2)[:H])}),
    ("alibi_attention_bias_of_queries", "a bias over the queries' length for one query",
     "keras-hub #2861", BIAS, "N = 1, M > 1",
     {"score": far(lambda N, M: np.zeros((1, M)) if N == 1 else attention.distances(N, M))}),
    ("alibi_attention_square_distances", "squared distances", "this project", BIAS, "M > 2",
     {"score": far(lambda N, M: -(attention.distances(N, M) ** 2))}),
    ("alibi_attention_slope_of_first_head", "head 0's slope for all heads", "this project",
     "head h has slope h", "H > 1",
     {"score": sloped(lambda H: np.full(H, attention.get_slopes(H)[0]))}),
    ("get_alibi_biases_exclusive", "a count that leaves the own key out", "this project",
     "get_alibi_biases: the running count", "any",
     lambda n_heads, visible: attention.get_slopes(n_heads)[:, None, None] * (np.cumsum(visible,
      axis=-1) - visible)),
    ("get_alibi_biases_wrong_axis", "a count over the queries", "x-transformers commit b475649",
     "get_alibi_biases: the running count", "N > 1",
     lambda n_heads, visible: attention.get_slopes(n_heads)[:, None, None] * np.cumsum(visible,
      axis=0)),
    ("alibi_multi_head_attention_positions", "positions in place of counts", "this project",
     "alibi_multi_head_attention, clause 2", "a hidden key between visible ones",
     {"biases": lambda H, visible: attention.get_alibi_biases(H, np.ones_like(visible))}),
    ("alibi_multi_head_attention_counts_of_last_row", "the last row's counts for all rows",
     "this project", "alibi_multi_head_attention, clause 2", "rows that see differently",
     {"biases": counts_of_last_row}),
))  # fmt: skip
