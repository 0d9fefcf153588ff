"""
Bounds for relative positions: sinusoids, Transformer-XL scores, learned relative scores, and their
attentions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import log

import numpy as np
from numpy import ndarray

from attnverify.bounds.attention import attended
from attnverify.bounds.error_rules import (
    dot_error,
    gamma,
    rounding_error,
    start_error,
    with_overflow,
)
from attnverify.bounds.scores import (
    Addends,
    factor_error,
    products,
    scaled_underflow,
    score_bound,
    summed_score_error,
)
from attnverify.bounds.softmax_rows import Precisions, causal, finite, rows, total
from attnverify.bounds.weighted_mean import WeightedMean, weighted_mean
from attnverify.precision import Precision

Error = ndarray | None  # an absolute error bound; None: exact


def sinusoids(M: int, F: int) -> tuple[ndarray, ndarray, ndarray]:
    """
    Compute exponents 2k/F, angles and values [M F] for the distances M-1 ... 0, sines then cosines.
    """
    exponent = np.arange(0, F, 2) / F
    angle = np.arange(M - 1, -1, -1.0)[:, None] * 10000.0**-exponent
    return exponent, angle, np.concatenate([np.sin(angle), np.cos(angle)], -1)


def sinusoid_error(M: int, F: int, P: Precision) -> ndarray:
    """
    Bound the error of sin and cos of x = distance / 10000^(2k/F), before they are stored, all
    computed in `acc`.

    The exponent of exp(-2k/F log 10000) is of size e = (2k/F) log 10000 and takes three roundings
    (constant, quotient, product), so the frequency errs by exp(g(3, u) e) - 1, by exp_ulps ulps of
    exp or pow, and by two more roundings (a reciprocal, the store); the product with the distance
    is one more, the distance itself none up to 2^p. Then

        E_x = |x| r,    |sin(x + e) - sin x| <= min(2, |cos x| E_x + E_x^2 / 2),    + sin_ulps ulps
        of the function
    """
    exponent, angle, values = sinusoids(M, F)
    u = P.acc.u
    frequency = np.expm1(gamma(3, u) * exponent * log(10000)) + gamma(2, u) + 2 * P.exp_ulps * u
    Ex = (
        angle * ((1 + frequency) * (1 + gamma(1 + (2**P.acc.p < M), u)) - 1)
        + P.acc.eta * np.arange(M - 1, -1, -1.0)[:, None]
    )
    slope = np.concatenate([np.abs(np.cos(angle)), np.abs(np.sin(angle))], -1)
    Ex = np.concatenate([Ex, Ex], -1)
    return (
        np.minimum(2.0, slope * Ex + Ex * Ex / 2) + 2 * P.sin_ulps * u * np.abs(values) + P.acc.eta
    )


def sinusoidal_positions(M: int, F: int, *, precision: Precisions) -> ndarray:
    """Compute `sinusoid_error`, stored."""
    values = sinusoids(M, F)[2]
    return total(lambda P: rounding_error(values, sinusoid_error(M, F, P), P.storage), precision)


def rel_shifted(x: ndarray) -> ndarray:
    """Transformer-XL's shift: a zero column in front, reshape, drop the head."""
    N, M = x.shape[-2:]
    padded = np.concatenate([np.zeros((*x.shape[:-1], 1)), x], -1)
    return padded.reshape(*x.shape[:-2], N * (M + 1))[..., N:].reshape(x.shape)


@dataclass(frozen=True)
class TransformerXL:
    """
    The Transformer-XL score in float64: q.k, u.k, shift(q.r), shift(v.r), their sum and its scale.
    """

    q: ndarray
    kT: ndarray
    rT: ndarray
    u: ndarray
    v: ndarray
    parts: Addends
    scale: float
    s: ndarray
    lost: ndarray | None


def transformer_xl_terms(
    query: ndarray, key: ndarray, position: ndarray, u: ndarray, v: ndarray
) -> TransformerXL:
    """Compute all ((q+u).k + shift((q+v).r)) / sqrt(D); u and v are [H D]."""
    at = products(query, key)
    r, bad = finite(position)
    rT, u, v = r.swapaxes(-1, -2), u[:, None], v[:, None]
    qr, vr = at.q @ rT, v @ rT
    places = rel_shifted(qr), rel_shifted(np.broadcast_to(vr, qr.shape[1:]))
    s = ((at.q + u) @ at.kT + rel_shifted((at.q + v) @ rT)) * at.scale
    lost = at.lost
    if bad is not None:
        row = np.any(bad, axis=-1, keepdims=True).swapaxes(-1, -2)
        hit = rel_shifted(np.broadcast_to(row, qr.shape)) > 0
        lost = hit if lost is None else lost | hit
    parts = Addends((at.raw, np.broadcast_to(u @ at.kT, at.raw.shape), *places))
    return TransformerXL(at.q, at.kT, rT, u, v, parts, at.scale, s, lost)


def joined_error(a: ndarray, Ea: ndarray | None, b: ndarray, P: Precision) -> ndarray:
    """Bound the error of a + b, rounded to `joined`; b is exact."""
    return rounding_error(a + b, Ea, P.joined)


def transformer_xl_error(
    at: TransformerXL, P: Precision, Eq: Error = None, Ek: Error = None, Er: Error = None
) -> ndarray:
    """
    (q+u).k + shift((q+v).r): q + u and q + v rounded to `joined`, the error of the second product
    moved by rel_shift exactly like its value; then `summed_score_error`.

    A product split as q.k + u.k sums the same terms apart, and a product may be summed on top of
    another: |q| + |u| stands for |q + u| in the errors of sums and operands, and each of the terms
    passes the additions of all four products, 4D.
    """
    content, place = (
        _joined_product(at, Eq, b, xT, Ex, P)
        for b, xT, Ex in ((at.u, at.kT, Ek), (at.v, at.rT, Er))
    )
    return summed_score_error(at.parts, content + rel_shifted(place), at.scale, P)


def _joined_product(
    at: TransformerXL, Eq: Error, b: ndarray, xT: ndarray, Ex: Error, P: Precision
) -> ndarray:
    whole = np.abs(at.q) + np.abs(b)
    Ey, Ex = (
        factor_error(x, E, at.scale, P)
        for x, E in ((whole, joined_error(at.q, Eq, b, P)), (xT, Ex))
    )
    terms = 4 * at.q.shape[-1]
    return dot_error(whole, Ey, xT, Ex, P, terms) + scaled_underflow(terms, at.scale, P)


def transformer_xl_score(
    query: ndarray,
    key: ndarray,
    position: ndarray,
    u: ndarray,
    v: ndarray,
    *,
    precision: Precisions,
) -> ndarray:
    """Compute `transformer_xl_error`, stored."""
    at = transformer_xl_terms(query, key, position, u, v)
    return score_bound(at.s, at.lost, lambda P: transformer_xl_error(at, P), precision)


def transformer_xl_mixture(
    at: TransformerXL,
    value: ndarray,
    visible: ndarray | None,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> WeightedMean:
    """Compute the rows under the causal mask, and the mean of the values."""
    N, M = at.s.shape[-2:]
    return weighted_mean(rows(at.s, causal(N, M, visible), at.lost), value, keep, p)


def transformer_xl_attention(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    position: ndarray,
    u: ndarray,
    v: ndarray,
    visible: ndarray | None = None,
    *,
    precision: Precisions,
) -> ndarray:
    """
    Compute `transformer_xl_error`, then `mixture_error` over the keys that the causal mask and
    `visible` leave.
    """
    at = transformer_xl_terms(query, key, position, u, v)
    return attended(
        transformer_xl_mixture(at, value, visible), lambda P: transformer_xl_error(at, P), precision
    )


Product = Callable[[ndarray, Error, ndarray, Error], ndarray]


def matmul_without_error(a: ndarray, Ea: Error, b: ndarray, Eb: Error) -> ndarray:
    """Compute a @ b, without its error."""
    return a @ b


@dataclass(frozen=True)
class Learned:
    """
    The learned relative score in float64: q.k, b.k, q.a, c with the tables spread over [H N M],
    their sum and its scale.
    """

    q: ndarray
    kT: ndarray
    b: ndarray
    table: ndarray
    index: ndarray
    qk: ndarray
    bk: ndarray
    qa: ndarray
    c: ndarray
    scale: float
    s: ndarray
    lost: ndarray | None

    @cached_property
    def parts(self) -> Addends:
        return Addends((self.qk, self.bk, self.qa, self.c))

    @cached_property
    def sizes(self) -> tuple[ndarray, ...]:
        """|q|, |k|, |a| and |q| + |b|."""
        q, k, a = (np.abs(x) for x in (self.q, self.kT, self.table.swapaxes(-1, -2)))
        return q, k, a, q + np.abs(self.b)

    @cached_property
    def joined_size(self) -> ndarray:
        """(|q| + |b|) |k| + |q| |a|"""
        q, k, a, whole = self.sizes
        of_table = product_with_rows(matmul_without_error, q, None, a, None, self.index)
        return np.asarray(whole @ k + of_table)

    @cached_property
    def joined_count(self) -> ndarray:
        """Sum |q| and |k| over the width."""
        q, k, _, _ = self.sizes
        return np.asarray(q.sum(-1)[..., :, None] + k.sum(-2)[..., None, :])

    @cached_property
    def largest_joined(self) -> ndarray:
        """Bound the largest of q + b, and of k + a."""
        _, k, a, whole = self.sizes
        with_table = k.max(-2)[..., None, :] + a.max(-2)[:, self.index]
        return np.maximum(whole.max(-1)[..., None], with_table)


def learned_relative_terms(
    query: ndarray,
    key: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
) -> Learned:
    """
    Compute all ((q+b).k + q.a + c) / sqrt(D), a and c read at P + (j - i) - (M - N if align is
    "end").
    """
    at = products(query, key)
    N, M = at.raw.shape[-2:]
    index = (
        np.arange(M)
        - np.arange(N)[:, None]
        + len(key_pos_embeddings) // 2
        - (M - N if align == "end" else 0)
    )
    low = int(index.min())
    rows_read = slice(low, low + N + M - 1)
    (a, bad_a), (c, bad_c) = (
        finite(table[rows_read].swapaxes(0, 1)) for table in (key_pos_embeddings, key_pos_bias)
    )
    index = index - low
    b = query_pos_bias[:, None]
    qa, c = (
        product_with_rows(matmul_without_error, at.q, None, a.swapaxes(-1, -2), None, index),
        c[:, index],
    )
    bk, lost = b @ at.kT, at.lost
    for bad in (None if bad_a is None else np.asarray(bad_a.any(axis=-1)), bad_c):
        if bad is not None:
            hit = np.broadcast_to(bad[:, index], at.raw.shape)
            lost = hit if lost is None else lost | hit
    s = (at.raw + bk + qa + c) * at.scale
    return Learned(at.q, at.kT, b, a, index, at.raw, bk, qa, c, at.scale, s, lost)


def is_few_keys(index: ndarray, D: int) -> bool:
    """
    Tell whether the rows that each query reads, written out, are much smaller than a product with
    all rows.
    """
    N, M = index.shape
    return 4 * M * D < N + M - 1


def product_with_rows(
    product: Product, q: ndarray, Eq: Error, a: ndarray, Ea: Error, index: ndarray
) -> ndarray:
    """
    Compute product(q, Eq, a, Ea) of queries and the table's rows [H D W], for the rows that each
    query reads.
    """
    if not is_few_keys(index, q.shape[-1]):
        whole = product(q, Eq, a, Ea)  # with all rows: taken from it [..., i, index[i, j]]
        return whole[..., np.arange(len(index))[:, None], index]
    row, E_row = q[..., None, :], None if Eq is None else Eq[..., None, :]
    read, E_read = (None if x is None else np.moveaxis(x[..., index], 1, 2) for x in (a, Ea))
    assert read is not None
    return np.asarray(product(row, E_row, read, E_read)[..., 0, :])


def learned_error(at: Learned, P: Precision, Eq: Error = None, Ek: Error = None) -> ndarray:
    """
    Bound all algebraic forms: (q+b).k + (q.a + c), q.(k+a) + (b.k + c), q.k + b.k + q.a + c.

    The sums, and the operand format, see (|q|+|b|)|k| + |q||a| in each, and 3D terms, since one
    product may be summed on top of another, and all on top of c: acc(3D + 1) |c|. q + b or k + a is
    rounded to `joined`, at most g(1, u) ((|q|+|b|)|k| + |q||a|) together; the rest is
    `summed_score_error`. Every number that a form keeps must fit its format.
    """
    D, (q, k, a, whole) = at.q.shape[-1], at.sizes
    sharp = (
        P.joined.p <= P.storage.p
    )  # else an operand format rounds the sums even of what storage holds exactly
    E_whole, E_q, E_k, E_a = (
        factor_error(x, E, at.scale, P, stored=sharp)
        for x, E in ((whole, Eq), (q, Eq), (k, Ek), (a, None))
    )
    joined = gamma(1, P.joined.u) * at.joined_size + P.joined.eta * at.joined_count
    terms = 3 * D + 1
    table_product = partial(dot_error, precision=P, n=terms)
    E = (
        joined
        + dot_error(whole, E_whole, k, E_k, P, terms)
        + product_with_rows(table_product, q, E_q, a, E_a, at.index)
        + start_error(np.abs(at.c), terms, P)
        + scaled_underflow(2 * terms, at.scale, P)
    )
    E = with_overflow(E, at.largest_joined, P.joined)
    return summed_score_error(at.parts, E, at.scale, P)


def learned_relative_score(
    query: ndarray,
    key: ndarray,
    key_pos_embeddings: ndarray,
    key_pos_bias: ndarray,
    query_pos_bias: ndarray,
    align: str,
    *,
    precision: Precisions,
) -> ndarray:
    """Compute `learned_error`, stored."""
    at = learned_relative_terms(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    return score_bound(at.s, at.lost, lambda P: learned_error(at, P), precision)


def learned_relative_attention(
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
) -> ndarray:
    """Compute `learned_error`, then `mixture_error`."""
    at = learned_relative_terms(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align)
    return attended(
        weighted_mean(rows(at.s, visible, at.lost), value),
        lambda P: learned_error(at, P),
        precision,
    )
