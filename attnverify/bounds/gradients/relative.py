"""Bounds for the gradients of the scores and attentions with relative positions."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error
from attnverify.bounds.gradients.steps import (
    Grads,
    attention_gradients,
    backward,
    given_gradient,
    product_gradient,
    shared_gradient,
)
from attnverify.bounds.relative import (
    Learned,
    TransformerXL,
    is_few_keys,
    joined_error,
    learned_error,
    learned_relative_terms,
    transformer_xl_error,
    transformer_xl_mixture,
    transformer_xl_terms,
)
from attnverify.bounds.softmax_rows import Precisions, rows, total
from attnverify.bounds.weighted_mean import weighted_mean
from attnverify.precision import Precision


def _sum_of_two(first: ndarray, E1: ndarray, second: ndarray, E2: ndarray, P: Precision) -> ndarray:
    return rounding_error(first + second, E1 + E2, P.storage)


def _joined_factor_gradient(
    x: ndarray,
    E: ndarray,
    q: ndarray,
    b: ndarray,
    P: Precision,
    *,
    narrow: bool = True,
    sums: int = 1,
    by_pair: bool = False,
    Eq: ndarray | None = None,
    scale: float,
) -> ndarray:
    """
    Bound the error of x^T (q + b), q + b rounded to `joined`; or of x^T q + x^T b, one sum over
    both, or two that are rounded to `joined` each, or pair `by_pair`. So many of them may be one
    sum.
    """
    xT, whole = x.swapaxes(-1, -2), np.abs(q) + np.abs(b)
    if by_pair:
        parts = np.abs(xT) @ whole
    else:
        parts = np.abs(xT @ q) + np.abs(xT @ np.broadcast_to(b, q.shape))
    return product_gradient(
        x,
        E,
        q + b,
        joined_error(q, Eq, b, P),
        P,
        transposed=True,
        narrow=narrow,
        terms=2 * sums * x.shape[-2],
        size=whole,
        extra=gamma(1, P.joined.u) * parts + 2 * P.joined.eta,
        scale=scale,
    )


def _of_pairs(x: ndarray, y: ndarray, pairs: int, P: Precision) -> ndarray:
    """Bound what x @ y loses where the products of its pairs are kept and rounded to `joined`."""
    return gamma(1, P.joined.u) * (np.abs(x) @ np.abs(y)) + pairs * P.joined.eta


def _gradient_by_added_row(
    x: ndarray, k: ndarray, E: ndarray, axes: tuple[int, ...], P: Precision, scale: float
) -> ndarray:
    """
    Bound the error of the gradient by a row that every query is given: sum_i (x k)_i, x k with the
    error E, or (sum_i x_i) k, where sum_i x_i is rounded to `score`, the product to `joined`, and
    both see |x| |k|.
    """
    size = np.abs(x) @ np.abs(k)
    E = E + (gamma(1, P.score.u) + gamma(1, P.joined.u)) * size
    return shared_gradient(x @ k, E, axes, P, size=size, scale=scale)


def transformer_xl_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    position: ndarray,
    u: ndarray,
    v: ndarray,
    visible: ndarray | None = None,
    *,
    precision: Precisions,
) -> Grads:
    """
    Bound the errors of the gradients of query, key, value, position, u, v.

    By `attention_gradients`, of `transformer_xl_gradients`.
    """
    at = transformer_xl_terms(query, key, position, u, v)
    back = backward(transformer_xl_mixture(at, value, visible), d_output)

    def gradients(x: ndarray, E: ndarray, P: Precision) -> Grads:
        return transformer_xl_gradients(at, x, E, read_without_shift(x), read_without_shift(E), P)

    Es, own = partial(transformer_xl_error, at), (at.scale, gradients)
    return total(lambda P: attention_gradients(back, Es(P), *own, P), precision)


def read_without_shift(x: ndarray) -> ndarray:
    """Lay out by place what pairs [N M] that see each other read there, shifted: [N M]."""
    N, M = x.shape[-2:]
    to = np.arange(M) - np.arange(N)[:, None] + N - 1
    return scatter_by_pair(x, to, N + M - 1)[..., :M]


def transformer_xl_gradients(
    at: TransformerXL,
    x: ndarray,
    E: ndarray,
    t: ndarray,
    E_t: ndarray,
    P: Precision,
    Eq: ndarray | None = None,
    Ek: ndarray | None = None,
    Er: ndarray | None = None,
) -> Grads:
    """
    Bound the errors of dQ, dK, dr, du, dv for x = scale dS and t, the same before the shift; Eq, Ek
    and Er are those of query, key and position.

    d(q+u) = x k and d(q+v) = t r are rounded to `joined`, and summed for dQ (or one product is
    summed on top of the other: 2M terms), over batch and queries for du and dv; dK = x^T (q+u);
    dr = t^T (q+v) per batch element, rounded to `joined`, then summed.
    """
    k, r, M = at.kT.swapaxes(-1, -2), at.rT.swapaxes(-1, -2), x.shape[-1]
    E_u = product_gradient(x, E, k, Ek, P, narrow=False, terms=2 * M, scale=at.scale)
    E_v = product_gradient(t, E_t, r, Er, P, narrow=False, terms=2 * M, scale=at.scale)
    dQ = _sum_of_two(x @ k, E_u, t @ r, E_v, P)
    dK = _joined_factor_gradient(x, E, at.q, at.u, P, Eq=Eq, scale=at.scale)
    E_r = _joined_factor_gradient(
        t, E_t, at.q, at.v, P, narrow=False, sums=len(at.q), Eq=Eq, scale=at.scale
    )
    return (
        dQ,
        dK,
        shared_gradient(t.swapaxes(-1, -2) @ (at.q + at.v), E_r, (0,), P, scale=at.scale),
        _gradient_by_added_row(x, k, E_u, (0, 2), P, at.scale),
        _gradient_by_added_row(t, r, E_v, (0, 2), P, at.scale),
    )


def transformer_xl_score_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    position: ndarray,
    u: ndarray,
    v: ndarray,
    *,
    precision: Precisions,
) -> Grads:
    """Compute `transformer_xl_gradients` of an exact dS, which wraps around as rel_shift does."""
    at = transformer_xl_terms(query, key, position, u, v)

    def bound(P: Precision) -> Grads:
        x, E = given_gradient(d_output, at.scale, P)
        return transformer_xl_gradients(at, x, E, before_rel_shift(x), before_rel_shift(E), P)

    return total(bound, precision)


def before_rel_shift(y: ndarray) -> ndarray:
    """
    Compute the adjoint of rel_shift: each number back where it was read, zero where nothing was.
    """
    N, M = y.shape[-2:]
    x = np.zeros((*y.shape[:-2], N * (M + 1)))
    x[..., N:] = y.reshape(*y.shape[:-2], N * M)
    return x.reshape(*y.shape[:-2], N, M + 1)[..., 1:]


def scatter_by_pair(x: ndarray, to: ndarray, width: int) -> ndarray:
    """
    Compute y[..., i, to[i, j]] = x[..., i, j]: the adjoint of a table lookup by relative position.
    """
    y = np.zeros((*x.shape[:-1], width))
    y[..., np.arange(x.shape[-2])[:, None], to] = x
    return y


def learned_relative_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
    visible: ndarray | None = None,
    *,
    precision: Precisions,
) -> Grads:
    """
    Bound the errors of the gradients of query, key, value and the three tables.

    By `attention_gradients`, of `in_whole_tables`.
    """
    at = learned_relative_terms(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    back = backward(weighted_mean(rows(at.s, visible, at.lost), value), d_output)
    own = at.scale, in_whole_tables(at, key_pos_embeddings, key_pos_bias, align)
    return total(lambda P: attention_gradients(back, learned_error(at, P), *own, P), precision)


def in_whole_tables(
    at: Learned, key_pos_embeddings: ndarray, key_pos_bias: ndarray, align: str
) -> Callable[[ndarray, ndarray, Precision], Grads]:
    """Compute `learned_gradients`; rows of the tables that no pair reads are exactly zero."""
    place, low = places_of(at), first_place(key_pos_embeddings, at.s.shape, align)

    def gradients(x: ndarray, E: ndarray, P: Precision) -> Grads:
        dQ, dK, da, dc, db = learned_gradients(at, x, E, place, P)
        tables = place_rows(da, key_pos_embeddings, low), place_rows(dc, key_pos_bias, low)
        return (dQ, dK, *tables, db)

    return gradients


def learned_gradients(
    at: Learned,
    x: ndarray,
    E: ndarray,
    place: "OfPlaces",
    P: Precision,
    Eq: ndarray | None = None,
    Ek: ndarray | None = None,
) -> Grads:
    """
    Bound the errors of dQ, dK, da, dc, db for x = scale dS, the tables' by the rows that are read;
    Eq and Ek are those of query and key.

    With t = x laid out by relative position: dQ = x k + t a, dK = x^T (q+b), da = sum_b t^T q,
    dc = sum_bi t, db = sum_bi x k. Or by way of k + a, whose gradient x q is one for each pair,
    rounded to `joined`: dQ = x (k + a), dK = sum_i x q + x b, da = sum x q.
    """
    k, (N, M) = at.kT.swapaxes(-1, -2), at.s.shape[-2:]
    E_b = product_gradient(x, E, k, Ek, P, narrow=False, terms=N + 2 * M, scale=at.scale)
    ta, E_ta, qt, E_qt, dc = place(x, E, P, Eq)
    dQ = _sum_of_two(x @ k, E_b + _of_pairs(x, k, M, P), ta, E_ta, P)
    dK = _joined_factor_gradient(x, E, at.q, at.b, P, by_pair=True, Eq=Eq, scale=at.scale)
    da = shared_gradient(qt, E_qt, (0,), P, scale=at.scale).swapaxes(0, 1)
    return dQ, dK, da, dc, _gradient_by_added_row(x, k, E_b, (0, 2), P, at.scale)


def learned_relative_score_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
    *,
    precision: Precisions,
) -> Grads:
    """Compute `learned_gradients` of an exact dS."""
    at = learned_relative_terms(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    gradients = in_whole_tables(at, key_pos_embeddings, key_pos_bias, align)
    return total(lambda P: gradients(*given_gradient(d_output, at.scale, P), P), precision)


def places_of(at: Learned) -> "OfPlaces":
    """Compute the gradients by the table's rows, the way that is cheaper."""
    few = is_few_keys(at.index, at.q.shape[-1])
    return (gradient_by_read_rows if few else gradient_by_all_rows)(at)


def first_place(table: ndarray, shape: tuple[int, ...], align: str) -> int:
    """Compute the first row of the tables that some pair reads."""
    N, M = shape[-2:]
    return len(table) // 2 - (M - N if align == "end" else 0) - (N - 1)


OfPlaces = Callable[
    [ndarray, ndarray, Precision, ndarray | None],
    tuple[ndarray, ndarray, ndarray, ndarray, ndarray],
]
"""
x [.. N M], its error, and that of the queries, to t a and its error, t^T q for each batch element
and its error, and the
error of dc [W H].
"""


def gradient_by_all_rows(at: Learned) -> OfPlaces:
    """t is written out, a row of W = N + M - 1 places for each query."""

    def of(
        x: ndarray, E: ndarray, P: Precision, Eq: ndarray | None = None
    ) -> tuple[ndarray, ndarray, ndarray, ndarray, ndarray]:
        t, E_t = (scatter_by_pair(y, at.index, at.table.shape[-2]) for y in (x, E))
        tT, terms = t.swapaxes(-1, -2), t.shape[-1] + x.shape[-1]
        E_ta = product_gradient(
            t, E_t, at.table, None, P, narrow=False, terms=terms, scale=at.scale
        )
        terms = len(x) * x.shape[-2]
        E_qt = product_gradient(
            t, E_t, at.q, Eq, P, transposed=True, narrow=False, terms=terms, scale=at.scale
        )
        return (
            t @ at.table,
            E_ta + _of_pairs(t, at.table, x.shape[-1], P),
            tT @ at.q,
            E_qt + _of_pairs(tT, at.q, x.shape[-2], P),
            shared_gradient(t, E_t, (0, 2), P).T,
        )

    return of


def gradient_by_read_rows(at: Learned) -> OfPlaces:
    """
    Compute the same where M is much smaller than N: only the places that a query reads, and the
    queries that read a place.
    """
    (N, M), W, batch = at.index.shape, at.table.shape[-2], at.q.shape[0]
    reader = np.arange(M) - np.arange(W)[:, None] + N - 1
    reads = (reader >= 0) & (reader < N)
    reader = np.where(reads, reader, 0)
    table, q = at.table[:, at.index], np.where(reads[..., None], at.q[..., reader, :], 0.0)

    def of(
        x: ndarray, E: ndarray, P: Precision, Eq: ndarray | None = None
    ) -> tuple[ndarray, ndarray, ndarray, ndarray, ndarray]:
        row, E_row = x[..., None, :], E[..., None, :]
        E_ta = product_gradient(
            row, E_row, table, None, P, narrow=False, terms=W + M, scale=at.scale
        )
        E_ta = E_ta + _of_pairs(row, table, M, P)
        t, E_t = (np.where(reads, y[..., reader, np.arange(M)], 0.0) for y in (x, E))
        E_q = None if Eq is None else np.where(reads[..., None], Eq[..., reader, :], 0.0)
        t3, E_t3 = t[..., None], E_t[..., None]
        E_qt = product_gradient(
            t3, E_t3, q, E_q, P, transposed=True, narrow=False, terms=batch * N, scale=at.scale
        )
        E_qt = E_qt + _of_pairs(t[..., None, :], q, N, P)
        dc = shared_gradient(t, E_t, (0, 3), P, terms=batch * N).T
        return (
            (row @ table)[..., 0, :],
            E_ta[..., 0, :],
            (t[..., None, :] @ q)[..., 0, :],
            E_qt[..., 0, :],
            dc,
        )

    return of


def place_rows(E: ndarray, table: ndarray, low: int) -> ndarray:
    """Give the bound of a whole table: zero but in the rows that are read."""
    whole = np.zeros_like(table)
    whole[low : low + len(E)] = E
    return whole
