"""Faults of ALiBi: slopes, which head has which, distances, signs, and biases that count."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients, layers

RULE, BIAS = "get_slopes, clause 1", "alibi_attention: slope * (j - (M - N + i))"


def plain_series(H: int) -> ndarray:
    return 2.0 ** (-8 / H * (np.arange(H) + 1))


def sloped(slopes: Any) -> Any:
    return lambda query, key: attention.alibi_score(query, key, slopes=slopes)


def far(distances: Any) -> Any:
    return lambda query, key: attention.alibi_score(query, key, distances=distances)


@fault(
    "alibi",
    "a plain geometric series of slopes",
    source="mlx #343",
    clause=RULE,
    reveals="H of 3, 5, 6, 12",
)
def get_slopes_plain_series(n_heads: int) -> Any:
    return plain_series(n_heads)


@fault(
    "alibi",
    "a plain geometric series of slopes",
    source="mlx #343",
    clause=RULE,
    reveals="H of 3, 5, 6, 12",
)
def alibi_attention_plain_series(**given: Any) -> Any:
    return attention.alibi_attention(**given, score=sloped(plain_series))


@fault(
    "alibi",
    "a plain geometric series of slopes",
    source="llm-foundry commit fbfdf68f1",
    clause=RULE,
    reveals="H of 3, 5, 6, 12",
)
def get_alibi_biases_plain_series(**given: Any) -> Any:
    return attention.get_alibi_biases(**given, slopes=plain_series)


@fault(
    "alibi",
    "a plain series beyond 16 heads",
    source="this project",
    clause=RULE,
    reveals="H > 16, no power of two",
)
def alibi_attention_plain_beyond_16(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, score=sloped(lambda H: plain_series(H) if H > 16 else attention.get_slopes(H))
    )


@fault("alibi", "slopes that begin at 1", source="this project", clause="get_slopes", reveals="any")
def get_slopes_from_one(n_heads: int) -> Any:
    n = 2 ** (n_heads.bit_length() - 1)
    return attention.get_slopes(n_heads) * 2.0 ** (8 / n)


@fault(
    "alibi",
    "slopes in ascending order",
    source="this project",
    clause="get_slopes",
    reveals="H > 1",
)
def get_slopes_ascending(n_heads: int) -> Any:
    return attention.get_slopes(n_heads)[::-1].copy()


@fault(
    "alibi",
    "every slope of the power of two above, for the rest",
    source="this project",
    clause=RULE,
    reveals="H of 6, 7, 12",
)
def get_slopes_consecutive_rest(n_heads: int) -> Any:
    n = 2 ** (n_heads.bit_length() - 1)
    h = np.arange(n_heads)
    return 2.0 ** (-8 / n * np.where(h < n, h + 1, (h - n + 1) / 2))


@fault("alibi", "the base 2^-9", source="this project", clause="get_slopes", reveals="any")
def get_slopes_other_base(n_heads: int) -> Any:
    return attention.get_slopes(n_heads, base=9.0)


@fault(
    "alibi",
    "slopes dealt batch by batch",
    source="ggml PR #143",
    clause="head h has slope h",
    reveals="B > 1, H > 1",
)
def alibi_attention_slopes_by_batch(query: ndarray, key: ndarray, **given: Any) -> Any:
    def score(query: ndarray, key: ndarray) -> ndarray:
        B, H = query.shape[:2]
        slope = attention.get_slopes(H)[(np.arange(B * H) // B).reshape(B, H)]
        return attention.scaled_dot_product_score(query, key) + slope[
            ..., None, None
        ] * attention.distances(query.shape[2], key.shape[2])

    return attention.alibi_attention(query, key, **given, score=score)


@fault(
    "alibi",
    "the slopes of half as many heads, twice",
    source="Megatron-DeepSpeed #227",
    clause="head h has slope h",
    reveals="H > 1",
)
def alibi_attention_local_heads(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, score=sloped(lambda H: np.tile(attention.get_slopes((H + 1) // 2), 2)[:H])
    )


@fault(
    "alibi",
    "a bias over the queries' length for one query",
    source="keras-hub #2861",
    clause=BIAS,
    reveals="N = 1, M > 1",
)
def alibi_attention_bias_of_queries(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, score=far(lambda N, M: np.zeros((1, M)) if N == 1 else attention.distances(N, M))
    )


@fault(
    "alibi",
    "visible keys counted for distances",
    source="PaddleNLP PR #6495",
    clause="alibi_attention: visible moves none",
    reveals="visible with gaps",
)
def alibi_attention_counted_distances(visible: Any = None, **given: Any) -> Any:
    def score(query: ndarray, key: ndarray) -> ndarray:
        shape = (*query.shape[:3], key.shape[2])
        seen = attention.causal_mask(*shape[2:]) & (
            True if visible is None else np.broadcast_to(visible, shape)
        )
        return attention.scaled_dot_product_score(query, key) + attention.get_slopes(shape[1])[
            :, None, None
        ] * np.cumsum(seen, axis=-1)

    return attention.alibi_attention(visible=visible, **given, score=score)


@fault("alibi", "the bias with the other sign", source="this project", clause=BIAS, reveals="M > 1")
def alibi_attention_other_sign(**given: Any) -> Any:
    return attention.alibi_attention(**given, score=far(lambda N, M: -attention.distances(N, M)))


@fault("alibi", "squared distances", source="this project", clause=BIAS, reveals="M > 2")
def alibi_attention_square_distances(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, score=far(lambda N, M: -(attention.distances(N, M) ** 2))
    )


@fault(
    "alibi",
    "symmetric distances, aligned at the starts",
    source="this project",
    clause=BIAS,
    reveals="N other than M",
)
def alibi_attention_start_distances(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, score=far(lambda N, M: -np.abs(np.arange(M) - np.arange(N)[:, None]))
    )


@fault(
    "alibi",
    "head 0's slope for all heads",
    source="this project",
    clause="head h has slope h",
    reveals="H > 1",
)
def alibi_attention_slope_of_first_head(**given: Any) -> Any:
    return attention.alibi_attention(
        **given, score=sloped(lambda H: np.full(H, attention.get_slopes(H)[0]))
    )


@fault(
    "alibi",
    "positions in place of counts",
    source="labml's ALiBi page",
    clause="get_alibi_biases: the running count",
    reveals="a hidden key before a visible one",
)
def get_alibi_biases_positions(n_heads: int, visible: ndarray) -> Any:
    return attention.get_alibi_biases(n_heads, np.ones_like(visible))


@fault(
    "alibi",
    "a count that leaves the own key out",
    source="this project",
    clause="get_alibi_biases: the running count",
    reveals="any",
)
def get_alibi_biases_exclusive(n_heads: int, visible: ndarray) -> Any:
    return attention.get_slopes(n_heads)[:, None, None] * (np.cumsum(visible, axis=-1) - visible)


@fault(
    "alibi",
    "a count over the queries",
    source="x-transformers commit b475649",
    clause="get_alibi_biases: the running count",
    reveals="N > 1",
)
def get_alibi_biases_wrong_axis(n_heads: int, visible: ndarray) -> Any:
    return attention.get_slopes(n_heads)[:, None, None] * np.cumsum(visible, axis=0)


@fault(
    "alibi",
    "the last row's counts for all rows",
    source="this project",
    clause="alibi_multi_head_attention, clause 2",
    reveals="rows that see differently",
)
def alibi_multi_head_attention_counts_of_last_row(**given: Any) -> Any:
    def biases(H: int, visible: ndarray) -> ndarray:
        return attention.get_alibi_biases(H, np.broadcast_to(visible[-1:], visible.shape))

    return layers.alibi_multi_head_attention(**given, biases=biases)


@fault(
    "alibi",
    "positions in place of counts",
    source="this project",
    clause="alibi_multi_head_attention, clause 2",
    reveals="a hidden key between visible ones",
)
def alibi_multi_head_attention_positions(**given: Any) -> Any:
    return layers.alibi_multi_head_attention(
        **given, biases=lambda H, visible: attention.get_alibi_biases(H, np.ones_like(visible))
    )


@fault(
    "alibi",
    "a backward pass without the bias",
    source="this project",
    clause="alibi_attention_grad",
    reveals="M > 1",
)
def alibi_attention_grad_without_bias(**given: Any) -> Any:
    return gradients.alibi_attention_grad(**given, slopes=lambda H: np.zeros(H))


@fault(
    "alibi",
    "a backward pass with a plain series of slopes",
    source="mlx #343",
    clause=RULE,
    reveals="H of 3, 5, 6, 12",
)
def alibi_attention_grad_plain_series(**given: Any) -> Any:
    return gradients.alibi_attention_grad(**given, slopes=plain_series)
