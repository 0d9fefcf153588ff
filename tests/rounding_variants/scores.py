"""The scores of each attention in every order of evaluation; -inf where a key is hidden."""

import numpy as np
from numpy import ndarray

from tests.rounding_variants.machine import Machine, T, add_tree

Bias = ndarray | None


def dot_scores(at: Machine, query: ndarray, key: ndarray, bias: Bias = None) -> ndarray:
    """q.k / sqrt(D), and a bias that is added to it."""
    q, kT = at.read(query), T(at.read(key))
    D, first = q.shape[-1], at.scales_first and at.order.addend == "first"
    q, kT = at.factors(q, kT, D)
    s = at.score(at.loaded_product(q, kT, bias if first else None))
    s = s if at.scales_first else at.scaled(s, D)
    if bias is None or first:
        return s
    return at.score(s + bias)


def bias_of(at: Machine, mask: ndarray | None) -> Bias:
    """What a float mask adds; nothing where it hides."""
    if mask is None or mask.dtype == bool:
        return None
    return at.read(np.where(mask > -np.inf, mask, 0.0))


def hide(at: Machine, s: ndarray, mask: ndarray | None) -> ndarray:
    if mask is None:
        return s
    seen = mask if mask.dtype == bool else mask > -np.inf
    return np.where(seen, s, -np.inf).astype(at.work)


def causal(s: ndarray, visible: ndarray | None) -> ndarray:
    N, M = s.shape[-2:]
    seen = np.tri(N, M, M - N, dtype=bool)
    return np.where(seen if visible is None else seen & visible, s, -np.inf).astype(s.dtype)


def masked_scores(at: Machine, query: ndarray, key: ndarray, mask: Bias = None) -> ndarray:
    return hide(at, dot_scores(at, query, key, bias_of(at, mask)), mask)


# additive


def hidden_layer(
    at: Machine, query: ndarray, key: ndarray, w_query: ndarray, w_key: ndarray
) -> ndarray:
    """tanh(W_q q + W_k k) [.. N M A]."""
    q, k, w_q, w_k = (at.read(x) for x in (query, key, w_query, w_key))
    if at.order.projection == "joined":
        pairs = np.broadcast_shapes(q[..., :, None, :1].shape, k[..., None, :, :1].shape)[:-1]
        row = np.broadcast_to(q[..., :, None, :], (*pairs, q.shape[-1]))
        column = np.broadcast_to(k[..., None, :, :], (*pairs, k.shape[-1]))
        joined, w = np.concatenate([row, column], -1), np.concatenate([w_q, w_k], -1)
        return tangent(at, at.score(at.product_of_pairs(joined[..., None, :], w)))
    z_q = at.score(at.product(q, w_q.T))
    if at.order.projection == "on top":
        key_terms = k[..., None, :, None, :]
        z = at.product_of_pairs(key_terms, w_k, z_q[..., :, None, :])
        return tangent(at, at.score(z))
    z_k = at.score(at.product(k, w_k.T))
    sides = z_q[..., :, None, :], z_k[..., None, :, :]
    return tangent(at, at.score(sides[0] + sides[1]), sides)


def tangent(at: Machine, z: ndarray, sides: tuple[ndarray, ndarray] | None = None) -> ndarray:
    """tanh z, by the form that the order names."""
    form, one, two = at.order.tangent, at.work(1), at.work(2)
    if form == "library":
        return at.score(at.function(np.tanh, z, at.P.tanh_ulps))
    soft = lambda x: at.to(x, at.P.softmax)
    exp = lambda x: at.function(np.exp, soft(two * x), at.P.exp_ulps)
    z = np.clip(z, -20, 20)
    if form == "sigmoid":
        return at.score(soft(two * soft(one / soft(one + exp(-z)))) - one)
    if form == "each side" and sides is not None and in_range(at, sides):
        e = soft(exp(sides[0]) * exp(sides[1]))
    else:
        e = exp(z)
    return at.score(soft(one - soft(two / soft(one + e))))


def in_range(at: Machine, sides: tuple[ndarray, ndarray]) -> bool:
    """Whether the exponentials of both sides, and their product, are normal numbers."""
    fmt = at.P.softmax
    return bool(max(np.abs(x).max() for x in sides) <= min(np.log(fmt.max), -np.log(fmt.tiny)) / 8)


def additive_scores(at: Machine, query, key, w_query, w_key, w_score, mask=None) -> ndarray:  # type: ignore[no-untyped-def]
    t, bias = hidden_layer(at, query, key, w_query, w_key), bias_of(at, mask)
    first = at.order.addend == "first"
    s = at.score(at.product_of_pairs(t, at.read(w_score), bias if first else None))
    return hide(at, s if bias is None or first else at.score(s + bias), mask)


# ALiBi


def slopes(at: Machine, H: int) -> ndarray:
    """Both geometric sequences."""
    n = 1 << (H.bit_length() - 1)
    first = sequence(at, -8 / n, np.arange(1, n + 1))
    rest = sequence(at, -4 / n, np.arange(1, 1 + 2 * (H - n), 2))
    return at.to(np.concatenate([first, rest]), at.P.bias)


def sequence(at: Machine, exponent: float, h: ndarray) -> ndarray:
    """2^(exponent h), for the h-th terms."""
    h = h.astype(at.work)
    ratio = np.asarray(2.0**exponent, at.work)
    if at.order.slopes == "running product":
        last = int(h.max(initial=0))
        return np.cumprod(np.full(last, ratio, at.work), dtype=at.work)[h.astype(int) - 1]
    if at.order.slopes == "power":
        return at.function(lambda x: np.power(x.dtype.type(ratio), x), h, at.P.exp_ulps, at.P.acc)
    if at.order.slopes == "base 2":
        return at.function(
            np.exp2, at.acc(h * np.asarray(exponent, at.work)), at.P.exp_ulps, at.P.acc
        )
    logarithm = np.asarray(exponent * np.log(2.0), at.work)
    return at.function(np.exp, at.acc(h * logarithm), at.P.exp_ulps, at.P.acc)


def alibi_bias(at: Machine, H: int, count: ndarray) -> ndarray:
    bias = at.to(slopes(at, H)[:, None, None] * count.astype(at.work), at.P.bias)
    return np.where(count == 0, 0, bias)


def alibi_scores(
    at: Machine, query: ndarray, key: ndarray, visible: ndarray | None = None
) -> ndarray:
    H, N, M = *query.shape[-3:-1], key.shape[-2]
    i, j = np.arange(N)[:, None], np.arange(M)
    distance = j - (i + M - N) if at.P.bias_form == "relative" else np.broadcast_to(j + 1, (N, M))
    return causal(dot_scores(at, query, key, alibi_bias(at, H, distance)), visible)


# relative positions


def rel_shift(x: ndarray) -> ndarray:
    N, M = x.shape[-2:]
    padded = np.concatenate([np.zeros_like(x[..., :1]), x], -1).reshape(*x.shape[:-2], N * (M + 1))
    return padded[..., N:].reshape(x.shape)


def summed_parts(at: Machine, parts: list[ndarray], D: int) -> ndarray:
    """The scaled sum of parts that are scaled already, each by itself, or all together."""
    if at.order.scale == "parts":
        parts = [at.score(part * at.constant(at.scale_of(D))) for part in parts]
    total = add_tree(parts, at.order.tree, lambda a, b: at.score(a + b))
    return total if at.scales_first or at.order.scale == "parts" else at.scaled(total, D)


def position_scores(at: Machine, query, key, position, u, v) -> ndarray:  # type: ignore[no-untyped-def]
    """All ((q+u).k + shift((q+v).r)) / sqrt(D)."""
    q, k, r, u, v = (at.read(x) for x in (query, key, position, u, v))
    D, u, v = q.shape[-1], u[:, None], v[:, None]
    apart = at.order.factors == "apart"
    rows = [(q, k, False), (u, k, False), (q, r, True), (v, r, True)] if apart else [
        (at.join(q + u), k, False), (at.join(q + v), r, True)
    ]  # fmt: skip
    shape, parts = (*q.shape[:-1], k.shape[-2]), list[ndarray]()
    for x, y, moved in reversed(rows):
        # a product can be summed on top of what has the places of its pairs
        start = parts.pop() if at.order.addend == "first" and parts and not moved else None
        x, yT = at.factors(x, T(y), D)
        x = np.broadcast_to(x, (*shape[:-1], D)) if moved or start is not None else x
        part = at.score(at.loaded_product(x, yT, start))
        parts.append(rel_shift(part) if moved else part)
    whole = [np.broadcast_to(part, shape) for part in reversed(parts)]
    return summed_parts(at, whole, D)


def txl_scores(at: Machine, query, key, position, u, v, visible=None) -> ndarray:  # type: ignore[no-untyped-def]
    return causal(position_scores(at, query, key, position, u, v), visible)


def table_index(N: int, M: int, rows: int, align: str) -> ndarray:
    return rows // 2 + np.arange(M) - np.arange(N)[:, None] - (M - N if align == "end" else 0)


def learned_scores(
    at: Machine, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None
) -> ndarray:  # type: ignore[no-untyped-def]
    """((q+b).k + q.a + c) / sqrt(D), by any of its forms."""
    q, k, a, c, b = (
        at.read(x) for x in (query, key, key_pos_embeddings, key_pos_bias, query_pos_bias)
    )
    D, b, first = q.shape[-1], b[:, None], at.order.addend == "first"
    index = table_index(q.shape[-2], k.shape[-2], len(a), align)
    a, c = a[index].transpose(2, 0, 1, 3), c[index].transpose(2, 0, 1)
    row, column = q[..., :, None, :], k[..., None, :, :]
    if at.order.factors == "query":
        pairs = [(at.join(q + b)[..., :, None, :], column), (row, a)]
    elif at.order.factors == "key":
        pairs = [(row, at.join(column + a)), (b[..., :, None, :], column)]
    else:
        pairs = [(row, column), (b[..., :, None, :], column), (row, a)]
    pairs = [at.factors(x, y, D) for x, y in pairs]
    if at.scales_first:
        c = at.acc(c * at.constant(at.scale_of(D)))
    shape = np.broadcast_shapes(row.shape[:-1], column.shape[:-1], c.shape)
    parts = [np.broadcast_to(c, shape)]
    for x, y in reversed(pairs):
        product = at.contract(x, y, parts.pop() if first else None)
        parts.append(np.broadcast_to(at.score(product), shape))
    return hide(at, summed_parts(at, parts[::-1], D), visible)
