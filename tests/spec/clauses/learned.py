"""Clauses of the learned relative score and attention."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
SCORE, ATTENTION = "learned_relative_score", "learned_relative_attention"
P = 6
TABLES = ("key_pos_embeddings", "key_pos_bias")


def terms(N: int, M: int, align: str = "end") -> Inputs:
    names = ("query", "key", *TABLES, "query_pos_bias")
    shapes = ((2, 2, N, 4), (2, 2, M, 4), (2 * P, 2, 4), (2 * P, 2), (2, 4))
    return dict(zip(names, normals(*shapes), strict=True)) | {"align": align}


def content(query: ndarray, key: ndarray, query_pos_bias: ndarray, **_: Any) -> ndarray:
    return (query + query_pos_bias[:, None]) @ key.swapaxes(-1, -2)


def bias_in_the_positions(query: ndarray, query_pos_bias: ndarray, **_: Any) -> Inputs:
    """Twin: the query with its bias in both scores."""
    return {"query": query + query_pos_bias[:, None], "query_pos_bias": 0 * query_pos_bias}


@clause(
    SCORE,
    1,
    false=[
        given(SCORE, bias_in_the_positions),
        given(SCORE, lambda query_pos_bias, **_: {"query_pos_bias": 0 * query_pos_bias}),
        given(SCORE, lambda key_pos_bias, **_: {"key_pos_bias": 0 * key_pos_bias}),
        given(SCORE, lambda key_pos_embeddings, **_: {"key_pos_embeddings": -key_pos_embeddings}),
    ],
)
def the_content_alone_has_the_bias_of_the_query(score: Function) -> None:
    x = terms(1, 1)
    R, S = x["key_pos_embeddings"][P], x["key_pos_bias"][P]
    position = np.einsum("bhnd,hd->bhn", x["query"], R)[..., None] + S[:, None, None]
    assert close(score(**x), (content(**x) + position) / 2)


def numbers_of_rows(N: int, M: int, align: str) -> Inputs:
    """A call whose score is the number of the row that each pair reads, less P."""
    x = {"query": np.zeros((1, 1, N, 1)), "key": np.zeros((1, 1, M, 1)), "align": align}
    tables = np.zeros((2 * P, 1, 1)), np.arange(-P, P, dtype=float)[:, None]
    return x | dict(zip(TABLES, tables, strict=True)) | {"query_pos_bias": np.zeros((1, 1))}


SIZES = ((1, 1), (1, 6), (6, 1), (4, 4), (3, 5), (5, 3), (6, 6))


def always(align: str) -> Function:
    return given(SCORE, lambda **_: {"align": align})


def exchanged(align: str, **_: Any) -> Inputs:
    return {"align": {"end": "start", "start": "end"}[align]}


@clause(SCORE, 2, false=[always("end"), always("start"), given(SCORE, exchanged)])
def the_last_or_the_first_of_queries_and_keys_are_aligned(score: Function) -> None:
    for N, M in SIZES:
        ends, starts = (score(**numbers_of_rows(N, M, align))[0, 0] for align in ("end", "start"))
        assert ends[-1, -1] == 0 and starts[0, 0] == 0
        assert np.array_equal(ends, starts) == (N == M)
    x = terms(3, 5)
    front = x | {"key": x["key"][:, :, 2:]}
    assert close(score(**x)[..., 2:], score(**front))  # a memory in front changes no score


def mirrored(found: ndarray, **_: Any) -> ndarray:
    return -found


@clause(
    SCORE,
    3,
    false=[
        given(SCORE, lambda key_pos_bias, **_: {"key_pos_bias": key_pos_bias[::-1]}),
        given(SCORE, lambda key_pos_bias, **_: {"key_pos_bias": np.roll(key_pos_bias, 1)}),
        answering(SCORE, mirrored),
    ],
)
def rows_below_p_are_of_the_past_and_rows_above_of_the_future(score: Function) -> None:
    for N, M in SIZES:
        i, j = np.arange(N)[:, None], np.arange(M)
        found = score(**numbers_of_rows(N, M, "end"))[0, 0]
        assert np.array_equal(found, j - (M - N + i))
        assert np.array_equal(score(**numbers_of_rows(N, M, "start"))[0, 0], j - i)


def enlarged(reading: Function) -> Function:
    """Twin: tables that go on beyond P, by the rows that ``reading`` chooses."""

    def score(**x: Any) -> ndarray:
        rows = reading(np.arange(-2 * P, 2 * P) + P)
        tables = {name: x[name][rows] for name in TABLES}
        return spec.learned_relative_score(**x | tables)

    return score


@clause(
    SCORE,
    4,
    false=[
        enlarged(lambda rows: np.clip(rows, 0, 2 * P - 1)),
        enlarged(lambda rows: rows % (2 * P)),
    ],
)
def a_sequence_beyond_the_tables_is_refused(score: Function) -> None:
    for align in ("end", "start"):
        for N, M in ((P + 1, P), (P, P + 1), (P + 1, 1), (1, P + 1)):
            assert refuses(score, "key_pos_embeddings: wanted", **terms(N, M, align))
        assert np.isfinite(score(**terms(P, P, align))).all()


def positions_not_scaled(s: ndarray, query: ndarray, **x: Any) -> ndarray:
    D = query.shape[-1]
    alone = content(query, x["key"], x["query_pos_bias"]) / np.sqrt(D)
    return alone + (s - alone) * np.sqrt(D)


@clause(
    SCORE,
    5,
    false=[
        answering(SCORE, positions_not_scaled),
        given(SCORE, lambda key_pos_bias, **_: {"key_pos_bias": 2 * key_pos_bias}),
        answering(SCORE, lambda s, **_: 2 * s),
    ],
)
def the_scale_is_on_the_sum_of_all_terms(score: Function) -> None:
    x = terms(3, 5)
    silent = {name: 0 * x[name] for name in (*TABLES, "query_pos_bias")}
    for name, wanted in (
        ("key_pos_bias", 2.0 / 2),
        ("key_pos_embeddings", x["query"].sum(axis=-1)[..., None] / 2),
        ("query_pos_bias", x["key"].sum(axis=-1)[..., None, :] / 2),
    ):
        one = {name: np.full_like(x[name], 2.0 if name == "key_pos_bias" else 1.0)}
        products = x["query"] @ x["key"].swapaxes(-1, -2) / 2
        assert close(score(**x | silent | one), products + wanted)


def unread_with_something(name: str, places: tuple[int, ...]) -> Function:
    def change(found: Any, **_: Any) -> Any:
        return (*(np.where(x == 0, 1e-30, x) if at in places else x for at, x in enumerate(found)),)

    return answering(name, change)


def read_rows(visible: ndarray, align: str) -> list[int]:
    N, M = visible.shape
    first = P - (M - N if align == "end" else 0)
    return np.unique([first + j - i for i, j in np.argwhere(visible)]).tolist()


def rows_with_numbers(table: ndarray) -> list[int]:
    return np.flatnonzero(table.reshape(2 * P, -1).any(axis=1)).tolist()


@clause(
    f"{SCORE}_grad",
    1,
    false=[
        unread_with_something(f"{SCORE}_grad", (2,)),
        unread_with_something(f"{SCORE}_grad", (3,)),
        given(f"{SCORE}_grad", lambda **_: {"align": "end"}),
    ],
)
def a_row_that_no_pair_reads_has_a_gradient_of_zero(gradient: Function) -> None:
    for align in ("end", "start"):
        x, d_output = terms(3, 5, align), normals((2, 2, 3, 5), seed=1)[0]
        found = gradient(d_output=d_output, **x)
        for by, name in zip(found, x, strict=False):
            assert close(by, derivative(SCORE, x, name, d_output))
        for table in found[2:4]:
            assert rows_with_numbers(table) == read_rows(np.ones((3, 5), bool), align)


def with_values(N: int, M: int, align: str = "end") -> Inputs:
    return terms(N, M, align) | {"value": normals((2, 2, M, 3), seed=1)[0]}


def causal_too(query: ndarray, key: ndarray, visible: Any = None, **_: Any) -> Inputs:
    causal = spec.causal_mask(query.shape[2], key.shape[2])
    return {"visible": causal if visible is None else causal & visible}


@clause(ATTENTION, 1, false=given(ATTENTION, causal_too))
def every_row_sees_every_key_on_either_side(attention: Function) -> None:
    for align in ("end", "start"):
        x = with_values(3, 5, align)
        weights = spec.softmax(spec.learned_relative_score(**terms(3, 5, align)))
        assert close(attention(**x), weights @ x["value"])


ROWS = np.eye(3, 5, dtype=bool)  # reads row P alone, aligned at the start


def infected(found: ndarray, **x: Any) -> ndarray:
    """Twin: hidden pairs take part with a weight of 0."""
    return found + 0 * x["key_pos_embeddings"].sum() + 0 * x["key_pos_bias"].sum()


@clause(ATTENTION, 2, false=answering(ATTENTION, infected))
def a_row_that_hidden_pairs_alone_read_is_absent(attention: Function) -> None:
    x = with_values(3, 5, "start")
    wanted = attention(**x, visible=ROWS)
    for number in (np.nan, 1e300):
        filled = {name: np.full_like(x[name], number) for name in TABLES}
        for name in TABLES:
            filled[name][P] = x[name][P]
        assert np.array_equal(attention(**x | filled, visible=ROWS), wanted)


@clause(
    f"{ATTENTION}_grad",
    1,
    false=[
        unread_with_something(f"{ATTENTION}_grad", (3,)),
        unread_with_something(f"{ATTENTION}_grad", (4,)),
        given(f"{ATTENTION}_grad", lambda **_: {"visible": None}),
    ],
)
def sums_of_the_tables_are_over_visible_pairs(gradient: Function) -> None:
    visible = ROWS | np.eye(3, 5, 2, dtype=bool)
    x = with_values(3, 5, "start") | {"visible": visible}
    d_output = normals((2, 2, 3, 3), seed=2)[0]
    found = gradient(d_output=d_output, **x)
    order = ("query", "key", "value", *TABLES, "query_pos_bias")
    for by, name in zip(found, order, strict=True):
        assert close(by, derivative(ATTENTION, x, name, d_output))
    for table in found[3:5]:
        assert rows_with_numbers(table) == read_rows(visible, "start") == [P, P + 2]
