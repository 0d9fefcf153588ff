"""Clauses of sinusoidal positions and of Transformer-XL's score and attention."""

import math
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
SCORE, ATTENTION = "transformer_xl_score", "transformer_xl_attention"


@clause(
    "sinusoidal_positions",
    1,
    false=[
        answering("sinusoidal_positions", lambda r, **_: r[::-1]),
        answering("sinusoidal_positions", lambda r, **_: np.roll(r, 1, axis=0)),
    ],
)
def the_farthest_distance_comes_first(positions: Function) -> None:
    found = positions(M=7, F=6)
    for c, f in np.ndindex(7, 3):
        angle = (6 - c) / 10000 ** (2 * f / 6)
        assert close(found[c, [f, 3 + f]], [math.sin(angle), math.cos(angle)])
    assert found[-1].tolist() == [0, 0, 0, 1, 1, 1]


def alternating(r: ndarray, F: int, **_: Any) -> ndarray:
    return r.reshape(len(r), 2, F // 2).swapaxes(1, 2).reshape(len(r), F)


def cut(M: int, F: int) -> ndarray:
    return spec.sinusoidal_positions(M, F + F % 2)[:, :F]


@clause("sinusoidal_positions", 2, false=[answering("sinusoidal_positions", alternating), cut])
def all_sines_come_before_all_cosines(positions: Function) -> None:
    last_but_one = positions(M=2, F=6)[0]
    angles = 10000.0 ** -(np.arange(3) / 3)
    assert close(last_but_one, [*np.sin(angles), *np.cos(angles)])
    assert all(refuses(positions, "F: wanted an even width", M=2, F=odd) for odd in (1, 7))


def terms(N: int, M: int) -> Inputs:
    names = ("query", "key", "position", "u", "v")
    shapes = ((2, 2, N, 4), (2, 2, M, 4), (2, M, 4), (2, 4), (2, 4))
    return dict(zip(names, normals(*shapes), strict=True))


def positions_alone(N: int, M: int) -> Inputs:
    """A call whose score is that of the row of positions, which counts the distances."""
    x = {"query": np.ones((1, 1, N, 1)), "key": np.zeros((1, 1, M, 1))}
    distances = np.arange(M - 1.0, -1.0, -1.0)[None, :, None]
    return x | {"position": distances, "u": np.zeros((1, 1)), "v": np.zeros((1, 1))}


SIZES = ((1, 1), (1, 5), (3, 3), (3, 5), (5, 3), (6, 2))


@clause(
    SCORE,
    1,
    false=[
        given(SCORE, lambda position, **_: {"position": position[:, ::-1]}),
        given(SCORE, lambda position, **_: {"position": np.roll(position, 1, axis=1)}),
    ],
)
def the_last_query_reads_row_c_at_the_distance_of_row_c(score: Function) -> None:
    for N, M in SIZES:
        x = positions_alone(N, M)
        assert score(**x)[0, 0, -1].tolist() == [M - 1 - c for c in range(M)]
        x["position"] = spec.sinusoidal_positions(M, 2)[None, :, 1:]  # cosines
        assert close(score(**x)[0, 0, -1], np.cos(np.arange(M - 1, -1, -1)))


def unshifted(query: ndarray, key: ndarray, position: ndarray, u: ndarray, v: ndarray) -> ndarray:
    """Twin: every query reads the rows as the last one does."""
    content = (query + u[:, None]) @ key.swapaxes(-1, -2)
    distance = (query + v[:, None]) @ position.swapaxes(-1, -2)
    return (content + distance) / np.sqrt(query.shape[-1])


def aligned_at_the_start(query: ndarray, key: ndarray, **_: Any) -> Inputs:
    """Twin: with more keys than queries these stand at the first keys."""
    N, M = query.shape[2], key.shape[2]
    missing = np.zeros((*query.shape[:2], max(0, M - N), query.shape[3]))
    return {"query": np.concatenate([query, missing], axis=2)}


@clause(
    SCORE,
    2,
    false=[
        unshifted,
        lambda **x: spec.transformer_xl_score(**x | aligned_at_the_start(**x))[
            :, :, : x["query"].shape[2]
        ],
    ],
)
def each_key_has_its_distance_from_the_query(score: Function) -> None:
    for N, M in SIZES:
        found = score(**positions_alone(N, M))[0, 0]
        for i, j in np.argwhere(spec.causal_mask(N, M)):
            assert found[i, j] == (M - N + i) - j


def nothing_beyond(s: ndarray, query: ndarray, key: ndarray, u: ndarray, **_: Any) -> ndarray:
    content = (query + u[:, None]) @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return np.where(spec.causal_mask(*s.shape[-2:]), s, content)


@clause(
    SCORE,
    3,
    false=[
        answering(SCORE, nothing_beyond),
        answering(SCORE, lambda s, **_: np.where(spec.causal_mask(*s.shape[-2:]), s, -np.inf)),
    ],
)
def beyond_stand_the_numbers_of_other_queries(score: Function) -> None:
    for N, M in SIZES:
        x = terms(N, M)
        row_numbers = (x["query"] + x["v"][:, None]) @ x["position"].swapaxes(-1, -2)
        content = (x["query"] + x["u"][:, None]) @ x["key"].swapaxes(-1, -2)
        assert close(score(**x), (content + spec.rel_shift(row_numbers)) / 2)
    two, six = positions_alone(2, 2), positions_alone(6, 2)
    assert score(**two)[0, 0, 0].tolist() == [0.0, 0.0]  # own last distance, then the zero
    six["query"] = np.arange(6.0).reshape(1, 1, 6, 1)
    assert score(**six)[0, 0, 0].tolist() == [0.0, 2.0]  # of query 2


def the_pairs_beyond_are_hidden(attention: Function) -> None:
    x = terms(3, 3) | {"value": normals((2, 2, 3, 3), seed=1)[0]}
    seen = spec.softmax(spec.transformer_xl_score(**terms(3, 3)), spec.causal_mask(3, 3))
    assert close(attention(**x), seen @ x["value"])


def uncausal(value: ndarray, visible: Any = None, **x: Any) -> ndarray:
    """Twin: wrapped numbers take weight."""
    return spec.softmax(spec.transformer_xl_score(**x), visible) @ value


clause(SCORE, 3, by=ATTENTION, false=uncausal)(the_pairs_beyond_are_hidden)


def content_scaled_alone(s: ndarray, **x: Any) -> ndarray:
    content = spec.transformer_xl_score(**x | {"position": 0 * x["position"]})
    return content + (s - content) * np.sqrt(x["query"].shape[-1])


def positions_scaled_alone(s: ndarray, **x: Any) -> ndarray:
    content = spec.transformer_xl_score(**x | {"position": 0 * x["position"]})
    return s - content + content * np.sqrt(x["query"].shape[-1])


@clause(
    SCORE,
    4,
    false=[
        given(SCORE, lambda u, v, **_: {"u": v, "v": u}),
        given(SCORE, lambda u, **_: {"v": u}),
        given(SCORE, lambda v, **_: {"u": v}),
        answering(SCORE, content_scaled_alone),
        answering(SCORE, positions_scaled_alone),
    ],
)
def u_belongs_to_the_content_and_v_to_the_position(score: Function) -> None:
    x = terms(3, 5)
    still = x | {"query": 0 * x["query"]}
    by_u = x["u"][:, None] @ x["key"].swapaxes(-1, -2) / 2
    by_v = x["v"][:, None] @ x["position"].swapaxes(-1, -2) / 2
    assert close(score(**still)[:, :, -1:], by_u + by_v)
    assert close(score(**x)[:, :, -1], unshifted(**x)[:, :, -1])


def causal_gradient(d_output: ndarray, **_: Any) -> Inputs:
    return {"d_output": np.where(spec.causal_mask(*d_output.shape[-2:]), d_output, 0.0)}


@clause(f"{SCORE}_grad", 1, false=given(f"{SCORE}_grad", causal_gradient))
def all_pairs_take_part_in_the_gradient(gradient: Function) -> None:
    for N, M in ((3, 3), (2, 4), (5, 2)):
        x, d_output = terms(N, M), normals((2, 2, N, M), seed=1)[0]
        found = gradient(d_output=d_output, **x)
        for by, name in zip(found, x, strict=True):
            assert close(by, derivative(SCORE, x, name, d_output))


def with_values(N: int, M: int) -> Inputs:
    return terms(N, M) | {"value": normals((2, 2, M, 3), seed=1)[0]}


def aligned_at_the_starts(value: ndarray, visible: Any = None, **x: Any) -> ndarray:
    score = spec.transformer_xl_score(**x)
    causal = np.tri(*score.shape[-2:], dtype=bool)
    return spec.softmax(score, causal & (True if visible is None else visible)) @ value


SOME = np.random.default_rng(1).random((5, 7)) < 0.6


@clause(
    ATTENTION,
    1,
    false=[
        uncausal,
        aligned_at_the_starts,
        given(ATTENTION, lambda **_: {"visible": None}),
        given(
            ATTENTION, lambda visible=None, **_: {"visible": None if visible is None else ~visible}
        ),
    ],
)
def a_key_is_seen_where_the_causal_mask_and_visible_show_it(attention: Function) -> None:
    x = with_values(5, 7)
    score = spec.transformer_xl_score(**terms(5, 7))
    for visible in (None, SOME, SOME[:1], SOME[:, :1]):
        both = spec.causal_mask(5, 7) & (True if visible is None else visible)
        assert close(attention(**x, visible=visible), spec.softmax(score, both) @ x["value"])


def of_all_where_none_is_seen(found: ndarray, value: ndarray, **_: Any) -> ndarray:
    none = ~spec.causal_mask(found.shape[2], value.shape[2]).any(axis=1, keepdims=True)
    return np.where(none, value.mean(axis=2, keepdims=True), found)


@clause(
    ATTENTION, 2, false=[answering(ATTENTION, of_all_where_none_is_seen), aligned_at_the_starts]
)
def queries_before_the_first_key_give_zero(attention: Function) -> None:
    found = attention(**with_values(5, 3))
    assert not found[:, :, :2].any() and found[:, :, 2:].all()


def unread_row_with_something(found: Any, **_: Any) -> Any:
    rows = np.where(found[3] == 0, 1e-30, found[3])
    return *found[:3], rows, *found[4:]


@clause(
    f"{ATTENTION}_grad",
    1,
    false=[
        given(f"{ATTENTION}_grad", lambda **_: {"visible": None}),
        answering(f"{ATTENTION}_grad", unread_row_with_something),
    ],
)
def sums_are_over_visible_pairs_and_an_unread_row_gets_zero(gradient: Function) -> None:
    x = with_values(3, 5) | {"visible": np.arange(5) > 2}
    d_output = normals((2, 2, 3, 3), seed=2)[0]
    found = gradient(d_output=d_output, **x)
    order = ("query", "key", "value", "position", "u", "v")
    for by, name in zip(found, order, strict=True):
        assert close(by, derivative(ATTENTION, x, name, d_output))
    read = np.unique([2 - i + j for i, j in np.argwhere(spec.causal_mask(3, 5) & x["visible"])])
    assert np.flatnonzero(found[3].any(axis=(0, 2))).tolist() == read.tolist() == [3, 4]


def means_over_the_batch(found: Any, d_output: ndarray, **_: Any) -> Any:
    return *found[:3], *(x / len(d_output) for x in found[3:])


@clause(f"{ATTENTION}_grad", 2, false=answering(f"{ATTENTION}_grad", means_over_the_batch))
def what_the_batch_shares_has_the_sum_of_its_gradients(gradient: Function) -> None:
    x, d_output = with_values(3, 5), normals((2, 2, 3, 3), seed=2)[0]
    whole = gradient(d_output=d_output, **x)
    entries = [
        gradient(
            d_output=d_output[b : b + 1],
            **x | {name: x[name][b : b + 1] for name in ("query", "key", "value")},
        )
        for b in range(2)
    ]
    for place in (3, 4, 5):
        assert close(whole[place], entries[0][place] + entries[1][place])
