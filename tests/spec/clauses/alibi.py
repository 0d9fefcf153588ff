"""Clauses of ALiBi."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
BIASES, ATTENTION = "get_alibi_biases", "alibi_attention"


def one_series(n_heads: int) -> ndarray:
    return 2.0 ** (-8 * np.arange(1, n_heads + 1) / n_heads)


def completed(n: int, n_heads: int, first: int) -> ndarray:
    """Twin: n slopes and every other one of 2n, from this one on."""
    return np.concatenate([one_series(n), one_series(2 * n)[first::2]])[:n_heads]


def of_the_closest_power(n_heads: int) -> ndarray:
    n = 2 ** round(np.log2(n_heads))
    return completed(n, n_heads, 0)


def of_those_that_are_there(n_heads: int) -> ndarray:
    return completed(2 ** (n_heads.bit_length() - 1), n_heads, 1)


@clause("get_slopes", 1, false=[one_series, of_the_closest_power, of_those_that_are_there])
def slopes_are_those_of_the_power_below_and_new_ones_of_the_power_above(slopes: Function) -> None:
    for H in range(1, 34):
        found, n = slopes(n_heads=H), max(2**k for k in range(6) if 2**k <= H)
        assert close(found[:n], one_series(n))
        missing = [m for m in one_series(2 * n) if not np.isclose(m, one_series(n)).any()]
        assert close([1.0, *found[n:]], [1.0, *missing[: H - n]]) and len(found) == H


@clause("get_slopes", 2, false=answering("get_slopes", lambda m, **_: np.sort(m)[::-1]))
def slopes_of_three_heads_rise(slopes: Function) -> None:
    assert slopes(n_heads=3).tolist() == [2**-4, 2**-8, 2**-2]


SOME = np.random.default_rng(1).random((5, 7)) < 0.6


def by_position(n_heads: int, visible: ndarray) -> ndarray:
    """Twin: the places of the keys, seen or not."""
    N, M = visible.shape
    return spec.get_slopes(n_heads)[:, None, None] * np.ones((N, 1)) * np.arange(M)


@clause(
    BIASES,
    1,
    false=[
        answering(BIASES, lambda b, **_: -b),
        answering(BIASES, lambda b, **_: b[..., ::-1]),
        by_position,
        answering(BIASES, lambda b, **_: 2 * b),
    ],
)
def a_bias_grows_at_every_visible_key_and_nowhere_else(biases: Function) -> None:
    slopes = spec.get_slopes(3)[:, None, None]
    steps = np.diff(biases(n_heads=3, visible=SOME), axis=-1, prepend=0.0)
    assert close(steps, slopes * SOME)
    for N, M in ((4, 4), (3, 5), (5, 3)):
        causal = spec.causal_mask(N, M)
        i, j = np.arange(N)[:, None], np.arange(M)
        rest = biases(n_heads=3, visible=causal) - slopes * (j - (M - N + i))
        assert all(
            np.ptp(rest[:, i, causal[i]], axis=1).max() == 0 for i in range(max(0, N - M), N)
        )


@clause(
    BIASES,
    2,
    false=[
        by_position,
        answering(BIASES, lambda b, visible, **_: np.where(np.tri(*visible.shape), b, 0.0)),
    ],
)
def the_count_is_of_visible_keys(biases: Function) -> None:
    visible = np.array([[True, False, False, True], [True, True, True, True]])
    found = biases(n_heads=1, visible=visible)[0] / spec.get_slopes(1)
    assert found.tolist() == [[1, 1, 1, 2], [1, 2, 3, 4]]  # nearer; grows behind the query
    score = np.where(spec.causal_mask(7, 7), 0.0, -np.inf)
    hidden = np.arange(7) != 3
    counted = spec.softmax(
        score + biases(n_heads=1, visible=spec.causal_mask(7, 7) & hidden), hidden
    )
    apart = np.zeros((1, 1, 7, 1)), np.zeros((1, 1, 7, 1)), np.eye(7)[None, None]
    assert not close(spec.alibi_attention(*apart, hidden)[0, 0], counted[0], within=1e-4)


def draw(N: int, M: int) -> Inputs:
    names = ("query", "key", "value")
    return dict(zip(names, normals((2, 3, N, 4), (2, 3, M, 4), (2, 3, M, 3)), strict=True))


def attending(penalty: Function, causal: Function = spec.causal_mask) -> Function:
    """Twin: attention with another penalty, [H N M] of slopes and distances, or other rows."""

    def attention(query: ndarray, key: ndarray, value: ndarray, visible: Any = None) -> ndarray:
        N, M = query.shape[2], key.shape[2]
        distance = M - N + np.arange(N)[:, None] - np.arange(M)
        slopes = spec.get_slopes(query.shape[1])[:, None, None]
        seen = causal(N, M) & (True if visible is None else visible)
        score = spec.scaled_dot_product_score(query, key) - penalty(slopes, distance)
        return spec.softmax(score, seen) @ value

    return attention


@clause(
    ATTENTION,
    1,
    false=[
        attending(lambda m, d: -m * d),
        attending(lambda m, d: m * d / 2),  # before the division by the root of 4
        attending(lambda m, d: m * (d + (d > 0))),
        attending(lambda m, d: m * np.maximum(d - 1, 0)),
        attending(lambda m, d: 0 * m * d),
    ],
)
def weights_fall_by_the_slope_at_every_step_from_the_diagonal(attention: Function) -> None:
    same = {"query": np.ones((1, 3, 5, 4)), "key": np.ones((1, 3, 7, 4))}
    value = np.broadcast_to(np.eye(7), (1, 3, 7, 7)).copy()
    weights = attention(**same, value=value)[0]
    slopes = spec.get_slopes(3)
    for h, i, j in np.argwhere(weights > 0):
        distance = 2 + i - j
        ratio = weights[h, i, 2 + i] / weights[h, i, j]
        assert distance >= 0 and close(np.log(ratio), slopes[h] * distance)
    assert (weights > 0).sum() == 3 * spec.causal_mask(5, 7).sum()


def starts_aligned(N: int, M: int) -> ndarray:
    return np.tri(N, M, dtype=bool)


@clause(
    ATTENTION,
    2,
    false=[
        attending(lambda m, d: m * d, starts_aligned),
        attending(lambda m, d: m * d, lambda N, M: np.ones((N, M), bool)),
    ],
)
def the_last_query_stands_at_the_last_key(attention: Function) -> None:
    x = draw(5, 7)
    last = x | {"query": x["query"][:, :, -1:]}
    assert close(attention(**x)[:, :, -1:], attention(**last))
    first = {name: x[name][:, :, :3] for name in ("key", "value")}
    assert close(attention(**x)[:, :, :1], attention(**first, query=x["query"][:, :, :1]))


def by_counts(query: ndarray, key: ndarray, value: ndarray, visible: Any = None) -> ndarray:
    """Twin: a hidden key counts for no position."""
    seen = spec.causal_mask(query.shape[2], key.shape[2]) & visible
    biases = spec.get_alibi_biases(query.shape[1], seen)
    return spec.softmax(spec.scaled_dot_product_score(query, key) + biases, seen) @ value


@clause(ATTENTION, 3, false=[by_counts, given(ATTENTION, lambda **_: {"visible": None})])
def a_hidden_key_still_counts_as_a_position(attention: Function) -> None:
    x, visible = draw(7, 7), np.arange(7) != 3
    weights = attending(lambda m, d: m * d)(**x, visible=visible)
    assert close(attention(**x, visible=visible), weights)
    x["key"][:, :, 3], x["value"][:, :, 3] = np.nan, np.nan
    assert close(attention(**x, visible=visible), weights)


def mean_where_none_is_seen(found: ndarray, value: ndarray, **_: Any) -> ndarray:
    none = ~spec.causal_mask(found.shape[2], value.shape[2]).any(axis=1, keepdims=True)
    return np.where(none, value.mean(axis=2, keepdims=True), found)


@clause(
    ATTENTION,
    4,
    false=[
        answering(ATTENTION, mean_where_none_is_seen),
        attending(lambda m, d: m * d, starts_aligned),
    ],
)
def queries_in_front_of_the_first_key_give_zero(attention: Function) -> None:
    found = attention(**draw(5, 3))
    assert not found[:, :, :2].any() and found[:, :, 2:].all()


def without_biases(d_output: ndarray, **x: Any) -> Any:
    mask = spec.causal_mask(x["query"].shape[2], x["key"].shape[2])
    return spec.scaled_dot_product_attention_grad(d_output, **x, mask=mask)


@clause(
    f"{ATTENTION}_grad",
    1,
    false=[
        without_biases,
        answering(f"{ATTENTION}_grad", lambda found, **_: (*found, spec.get_slopes(3))),
    ],
)
def the_slopes_have_no_gradient(gradient: Function) -> None:
    for N, M in ((3, 5), (5, 3)):
        x, d_output = draw(N, M), normals((2, 3, N, 3), seed=2)[0]
        found = gradient(d_output=d_output, **x)
        assert len(found) == 3
        for by, name in zip(found, x, strict=True):
            assert close(by, derivative(ATTENTION, x, name, d_output))
