"""The scores of each attention, rounded as the style says; -inf where a key is hidden."""

from math import sqrt

import numpy as np
from numpy import ndarray

from tests.rounding_variants.arithmetic import Machine, T


def dot_scores(at: Machine, query: ndarray, key: ndarray) -> ndarray:
    q, k = at.read(query), at.read(key)
    D = q.shape[-1]
    return at.scaled(at.score(at.product(at.prescaled(q, D), T(at.prescaled(k, D)))), D)


def with_mask(at: Machine, s: ndarray, mask: ndarray | None) -> ndarray:
    if mask is None:
        return s
    if mask.dtype == bool:
        return np.where(mask, s, -np.inf).astype(at.acc)
    return np.where(mask > -np.inf, at.score(s + at.read(mask)), -np.inf).astype(at.acc)


def causal(s: ndarray, visible: ndarray | None) -> ndarray:
    N, M = s.shape[-2:]
    seen = np.tri(N, M, M - N, dtype=bool)
    return np.where(seen if visible is None else seen & visible, s, -np.inf).astype(s.dtype)


def sdpa_scores(at: Machine, query: ndarray, key: ndarray, mask: ndarray | None = None) -> ndarray:
    return with_mask(at, dot_scores(at, query, key), mask)


def additive_parts(at: Machine, query, key, w_query, w_key, w_score):  # type: ignore[no-untyped-def]
    zq, zk = (
        at.score(at.product(at.read(x), at.read(w).T)) for x, w in ((query, w_query), (key, w_key))
    )
    t = at.score(np.tanh(at.score(zq[..., :, None, :] + zk[..., None, :, :])))
    return t, at.score(at.product(t, at.read(w_score)[:, None])[..., 0])


def additive_scores(at: Machine, query, key, w_query, w_key, w_score, mask=None) -> ndarray:  # type: ignore[no-untyped-def]
    return with_mask(at, additive_parts(at, query, key, w_query, w_key, w_score)[1], mask)


def slopes(at: Machine, H: int) -> ndarray:
    n = 1 << (H.bit_length() - 1)
    steps = [at.acc(2.0 ** (-8 / n))] * n
    first = np.cumprod(np.array(steps, at.acc), dtype=at.acc)
    start = at.acc(2.0 ** (-4 / n))
    rest = np.power(start, np.arange(1, 1 + 2 * (H - n), 2).astype(at.acc), dtype=at.acc)
    return np.concatenate([first, rest])


def alibi_scores(
    at: Machine, query: ndarray, key: ndarray, visible: ndarray | None = None
) -> ndarray:
    s = dot_scores(at, query, key)
    H, N, M = s.shape[-3:]
    distance = (np.arange(M) - (np.arange(N)[:, None] + M - N)).astype(at.acc)
    return causal(at.score(s + slopes(at, H)[:, None, None] * distance), visible)


def rel_shift(x: ndarray) -> ndarray:
    N, M = x.shape[-2:]
    padded = np.concatenate([np.zeros_like(x[..., :1]), x], -1).reshape(*x.shape[:-2], N * (M + 1))
    return padded[..., N:].reshape(x.shape)


def txl_all_scores(at: Machine, query, key, position, u, v) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, r, u, v = (at.read(x) for x in (query, key, position, u, v))
    content = at.score(at.product(at.join(q + u[:, None]), T(k)))
    place = at.score(at.product(at.join(q + v[:, None]), T(r)))
    s = at.score(content + rel_shift(place))
    return (
        at.score(s / at.acc(sqrt(q.shape[-1])))
        if at.style.fold
        else at.score(s * at.acc(1 / sqrt(q.shape[-1])))
    )


def txl_scores(at: Machine, query, key, position, u, v, visible=None) -> ndarray:  # type: ignore[no-untyped-def]
    return causal(txl_all_scores(at, query, key, position, u, v), visible)


def table_index(N: int, M: int, rows: int, align: str) -> ndarray:
    return rows // 2 + np.arange(M) - np.arange(N)[:, None] - (M - N if align == "end" else 0)


def learned_all_scores(
    at: Machine, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align
) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, a, c, b = (
        at.read(x) for x in (query, key, key_pos_embeddings, key_pos_bias, query_pos_bias)
    )
    index = table_index(q.shape[-2], k.shape[-2], len(a), align)
    a, c = a[index].transpose(2, 0, 1, 3), c[index].transpose(2, 0, 1)
    if at.style.fold:  # q.(k + a) + (b.k + c)
        first = at.score((q[..., :, None, :] * at.join(k[:, :, None] + a)).sum(-1))
        second = at.score(at.score(at.product(b[:, None], T(k))) + c)
    else:  # (q + b).k + (q.a + c)
        first = at.score(at.product(at.join(q + b[:, None]), T(k)))
        second = at.score(at.score((q[..., :, None, :] * a).sum(-1)) + c)
    return at.score(at.score(first + second) * at.acc(1 / sqrt(q.shape[-1])))


def learned_scores(
    at: Machine, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
) -> ndarray:  # type: ignore[no-untyped-def]
    return with_mask(
        at,
        learned_all_scores(at, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align),
        visible,
    )
