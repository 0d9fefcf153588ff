"""Bounds for the gradients of the attentions with relative positions."""

from collections.abc import Callable

import numpy as np
from numpy import ndarray

from attnverify.bounds.error_rules import gamma, rounding_error
from attnverify.bounds.gradients import (
    Grads,
    at_seeing_queries,
    at_seen_keys,
    backward,
    nan_to_inf,
    product_gradient,
    scaled_gradient,
    score_gradient_error,
    shared_gradient,
)
from attnverify.bounds.relative import (
    Learned,
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
) -> ndarray:
    """
    The error of x^T (q + b), q + b rounded to `joined`; or of x^T q + x^T b, one sum over both, or
    two that are rounded to `joined` each, or pair `by_pair`. So many of them may be one sum.
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
        joined_error(q, None, b, P),
        P,
        transposed=True,
        narrow=narrow,
        terms=2 * sums * x.shape[-2],
        size=whole,
        extra=gamma(1, P.joined.u) * parts + 2 * P.joined.eta,
    )


def _of_pairs(x: ndarray, y: ndarray, pairs: int, P: Precision) -> ndarray:
    """What x @ y loses where the products of its pairs are kept and rounded to `joined`."""
    return gamma(1, P.joined.u) * (np.abs(x) @ np.abs(y)) + pairs * P.joined.eta


def _gradient_by_added_row(
    x: ndarray, k: ndarray, E: ndarray, axes: tuple[int, ...], P: Precision
) -> ndarray:
    """
    The error of the gradient by a row that every query is given: sum_i (x k)_i, x k with the error
    E, or (sum_i x_i) k, where sum_i x_i is rounded to `score`, the product to `joined`, and both
    see |x| |k|.
    """
    size = np.abs(x) @ np.abs(k)
    E = E + (gamma(1, P.score.u) + gamma(1, P.joined.u)) * size
    return shared_gradient(x @ k, E, axes, P, size=size)


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
    The errors of the gradients of query, key, value, position, u, v.

    With x = scale dS and t its inverse shift: d(q+u) = x k and d(q+v) = t r are rounded to
    `joined`, and summed for dQ (or one product is summed on top of the other: 2M terms), over batch
    and queries for du and dv; dK = x^T (q+u); dr = t^T (q+v) per batch element, rounded to
    `joined`, then summed.
    """
    at = transformer_xl_terms(query, key, position, u, v)
    mix = transformer_xl_mixture(at, value, visible)
    back = backward(mix, d_output)
    N, M = at.s.shape[-2:]
    to = np.arange(M) - np.arange(N)[:, None] + N - 1
    k, r = at.kT.swapaxes(-1, -2), at.rT.swapaxes(-1, -2)

    def bound(P: Precision) -> Grads:
        E_dS, dV = score_gradient_error(back, transformer_xl_error(at, P), P)
        x, E = scaled_gradient(back, E_dS, at.scale, P)
        t, E_t = (scatter_by_pair(a, to, N + M - 1)[..., :M] for a in (x, E))
        E_u = product_gradient(x, E, k, None, P, narrow=False, terms=2 * M)
        E_v = product_gradient(t, E_t, r, None, P, narrow=False, terms=2 * M)
        dQ = _sum_of_two(x @ k, E_u, t @ r, E_v, P)
        dK = _joined_factor_gradient(x, E, at.q, at.u, P)
        E_r = _joined_factor_gradient(t, E_t, at.q, at.v, P, narrow=False, sums=len(at.q))
        rest = (
            shared_gradient(t.swapaxes(-1, -2) @ (at.q + at.v), E_r, (0,), P),
            _gradient_by_added_row(x, k, E_u, (0, 2), P),
            _gradient_by_added_row(t, r, E_v, (0, 2), P),
        )
        return (at_seeing_queries(mix.rows, dQ), at_seen_keys(mix.rows, nan_to_inf(dK)), dV, *rest)

    return total(bound, precision)


def scatter_by_pair(x: ndarray, to: ndarray, width: int) -> ndarray:
    """y[..., i, to[i, j]] = x[..., i, j]: the adjoint of a table lookup by relative position."""
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
    The errors of the gradients of query, key, value and the three tables.

    With x = scale dS and t = x laid out by relative position: dQ = x k + t a, dK = x^T (q+b),
    da = sum_b t^T q, dc = sum_bi t, db = sum_bi x k; rows of the tables that no pair reads are
    exactly zero.

    Or by way of k + a, whose gradient x q is one for each pair, rounded to `joined`:
    dQ = x (k + a), dK = sum_i x q + x b, da = sum x q.
    """
    at = learned_relative_terms(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    mix = weighted_mean(rows(at.s, visible, at.lost), value)
    back = backward(mix, d_output)
    k = at.kT.swapaxes(-1, -2)
    N, M = at.s.shape[-2:]
    place = (
        gradient_by_read_rows if is_few_keys(at.index, at.q.shape[-1]) else gradient_by_all_rows
    )(at)
    low = len(key_pos_embeddings) // 2 - (M - N if align == "end" else 0) - (N - 1)

    def bound(P: Precision) -> Grads:
        E_dS, dV = score_gradient_error(back, learned_error(at, P), P)
        x, E = scaled_gradient(back, E_dS, at.scale, P)
        E_b = product_gradient(x, E, k, None, P, narrow=False, terms=N + 2 * M)
        ta, E_ta, qt, E_qt, dc = place(x, E, P)
        dQ = _sum_of_two(x @ k, E_b + _of_pairs(x, k, M, P), ta, E_ta, P)
        dK = _joined_factor_gradient(x, E, at.q, at.b, P, by_pair=True)
        da = shared_gradient(qt, E_qt, (0,), P).swapaxes(0, 1)
        db = _gradient_by_added_row(x, k, E_b, (0, 2), P)
        tables = (_placed(da, key_pos_embeddings, low), _placed(dc, key_pos_bias, low))
        return (
            at_seeing_queries(mix.rows, dQ),
            at_seen_keys(mix.rows, nan_to_inf(dK)),
            dV,
            *tables,
            db,
        )

    return total(bound, precision)


OfPlaces = Callable[
    [ndarray, ndarray, Precision], tuple[ndarray, ndarray, ndarray, ndarray, ndarray]
]
"""
x [.. N M] and its error to t a and its error, t^T q for each batch element and its error, and the
error of dc [W H].
"""


def gradient_by_all_rows(at: Learned) -> OfPlaces:
    """t is written out, a row of W = N + M - 1 places for each query."""

    def of(
        x: ndarray, E: ndarray, P: Precision
    ) -> tuple[ndarray, ndarray, ndarray, ndarray, ndarray]:
        t, E_t = (scatter_by_pair(y, at.index, at.table.shape[-2]) for y in (x, E))
        tT, terms = t.swapaxes(-1, -2), t.shape[-1] + x.shape[-1]
        E_ta = product_gradient(t, E_t, at.table, None, P, narrow=False, terms=terms)
        E_qt = product_gradient(
            t, E_t, at.q, None, P, transposed=True, narrow=False, terms=len(x) * x.shape[-2]
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
    The same where M is much smaller than N: only the places that a query reads, and the queries
    that read a place.
    """
    (N, M), W, batch = at.index.shape, at.table.shape[-2], at.q.shape[0]
    reader = np.arange(M) - np.arange(W)[:, None] + N - 1
    reads = (reader >= 0) & (reader < N)
    reader = np.where(reads, reader, 0)
    table, q = at.table[:, at.index], np.where(reads[..., None], at.q[..., reader, :], 0.0)

    def of(
        x: ndarray, E: ndarray, P: Precision
    ) -> tuple[ndarray, ndarray, ndarray, ndarray, ndarray]:
        row, E_row = x[..., None, :], E[..., None, :]
        E_ta = product_gradient(row, E_row, table, None, P, narrow=False, terms=W + M)
        E_ta = E_ta + _of_pairs(row, table, M, P)
        t, E_t = (np.where(reads, y[..., reader, np.arange(M)], 0.0) for y in (x, E))
        E_qt = product_gradient(
            t[..., None], E_t[..., None], q, None, P, transposed=True, narrow=False, terms=batch * N
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


def _placed(E: ndarray, table: ndarray, low: int) -> ndarray:
    whole = np.zeros_like(table)
    whole[low : low + len(E)] = E
    return whole
