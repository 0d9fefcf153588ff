"""
The backward formulas in every order: weights saved or recomputed, a row's mean from weights or
output, parts differentiated one by one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.attention import (
    Dropout,
    by_lse,
    in_order,
    level,
    log_sum_exp,
    merge_weights,
    online,
    quotients,
    scores_of,
    softmax,
    split,
    weighted,
)
from tests.rounding_variants.machine import Machine, T, clean
from tests.rounding_variants.operations import dropout, softmax_weights
from tests.rounding_variants.scores import hidden_layer, table_index

Inputs = dict[str, Any]


def dropped_gradient(at: Machine, dW: ndarray, drop: Dropout) -> ndarray:
    """dP from dW: the factor of the draw once more."""
    if drop.kept is None:
        return dW
    dW = np.where(drop.kept, dW, 0).astype(at.work)
    return at.score(dW * drop.share) if drop.p else dW


def seen_gradient(s: ndarray, dP: ndarray) -> ndarray:
    """dP of the keys that are seen: a hidden value may be as large as any number."""
    return np.where(s > -np.inf, dP, 0).astype(dP.dtype)


def row_gradient(
    at: Machine, w: ndarray, dP: ndarray, D: ndarray, of_mean: ndarray | None = None
) -> ndarray:
    """w (dP - D), or w dP - w D, where D may have weights of its own."""
    if at.order.difference == "subtracted":
        return at.score(at.soft(w * at.soft(dP - D)))
    return at.score(at.soft(at.soft(w * dP) - at.soft((w if of_mean is None else of_mean) * D)))


def score_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ndarray]:
    """dS and dV."""
    if at.order.softmax == "merged":
        return merged_score_gradient(at, s, inputs)
    plain = all(inputs.get(name) is None for name in ("keep", "d_weights"))
    if at.order.maximum == "differentiated" and at.order.softmax != "maxima" and plain:
        return differentiated(at, s, at.read(inputs["d_output"]), at.read(clean(inputs["value"])))
    dO, v = at.read(inputs["d_output"]), at.read(clean(inputs["value"]))
    drop = Dropout(at, s, inputs.get("keep"), inputs.get("p", 0.0))
    o, lse = weighted(at, s, inputs["value"], inputs.get("keep"), inputs.get("p", 0.0))
    w = at.prob(weights_again(at, s, lse))
    dV = drop.on_output(product_by_queries(at, drop.on_weights(w), drop.on_values(dO)))
    dW, own = at.score(at.product(dO, T(v))), own_gradient(at, s, inputs)
    if own is not None and at.order.mean == "output":
        dP = seen_gradient(s, dropped_gradient(at, at.score(dW + own), drop))
    else:
        dP = seen_gradient(s, dropped_gradient(at, dW, drop))
    own = None if own is None else dropped_gradient(at, own, drop)
    if own is not None and at.order.mean != "output":
        dP = at.score(dP + own)
    if at.order.mean == "output":
        D = at.contract(dO, at.to(o, inputs.get("kept") or at.P.storage))[..., None]
        D = D if own is None else at.acc(D + at.contract(w, own)[..., None])
    else:
        D = at.contract(w, dP)[..., None]
    return at.prob(row_gradient(at, w, dP, D, quotients(at, s) if by_lse(at) else w)), dV


def differentiated(at: Machine, s: ndarray, dO: ndarray, v: ndarray) -> tuple[ndarray, ndarray]:
    """Each step of a softmax over tiles differentiated, or of one at once: its maxima too."""
    M, steps = s.shape[-1], list[tuple[ndarray, ...]]()
    order, block = in_order(at, M), int(at.order.block) if at.order.softmax == "online" else M
    m = np.full((*s.shape[:-1], 1), -np.inf, at.work)
    size, o = np.zeros_like(m), np.zeros_like(dO)
    for j in (order[start : start + block] for start in range(0, M, block)):
        top = s[..., j].max(-1, keepdims=True)
        new = level(np.concatenate([m, top], -1))
        w, decay = at.exp(s[..., j], new), at.decay(m, new)
        steps.append((j, m, top, size, o, w, decay))
        size = at.soft(at.soft(size * decay) + at.soft(at.sum(w)[..., None]))
        o, m = at.product(at.prob(w), v[..., j, :], at.acc(o * decay)), np.maximum(m, top)
    d_o, mean = (
        at.step(at.acc(at.quotient(dO, size))),
        at.step(at.acc(at.quotient(at.contract(dO, o)[..., None], size))),
    )
    d_size, d_m, dS, dV = (
        -at.step(at.acc(at.quotient(mean, size))),
        np.zeros_like(m),
        np.zeros_like(s),
        np.zeros_like(v),
    )
    for j, before, top, so_far, acc, w, decay in reversed(steps):
        dV[..., j, :] = product_by_queries(at, at.prob(w), d_o)
        dP = seen_gradient(s[..., j], at.score(at.product(d_o, T(v[..., j, :]))))
        g = at.score(at.soft(w * at.soft(dP + d_size)))
        h = at.score(decay * at.acc(at.contract(d_o, acc)[..., None] + at.acc(d_size * so_far)))
        d_m = at.score(at.score(d_m - at.score(at.sum(g)[..., None])) - h)
        own = np.where(before == top, 0.5, before < top).astype(at.work)
        dS[..., j] = at.prob(at_maximum(at, s[..., j], g, own * d_m))
        d_m = at.score(h + (1 - own) * d_m)
        d_o, d_size = at.acc(d_o * decay), at.acc(d_size * decay)
    return dS, dV


def at_maximum(at: Machine, s: ndarray, dS: ndarray, d_m: ndarray) -> ndarray:
    """What arrives at a maximum goes to the scores that have it, in equal parts."""
    hits = (s == s.max(-1, keepdims=True)) & (s > -np.inf)
    part = at.score((d_m / np.maximum(hits.sum(-1, keepdims=True), 1)).astype(at.work))
    return at.score(dS + np.where(hits, part, 0).astype(at.work))


def own_gradient(at: Machine, s: ndarray, inputs: Inputs) -> ndarray | None:
    """What arrives at the weights behind the dropout, where they are a result."""
    d_weights = inputs.get("d_weights")
    return None if d_weights is None else seen_gradient(s, at.read(d_weights))


def weights_again(at: Machine, s: ndarray, lse: ndarray) -> ndarray:
    """The weights of the forward pass, or recomputed from its log-sum-exp."""
    if at.order.saved == "weights":
        return softmax(at, s)
    safe = np.where(lse > -np.inf, lse, 0).astype(at.work)
    return np.where(lse > -np.inf, at.exp(s, safe), 0)


def merged_score_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ndarray]:
    """Parts attended to apart and merged by their log-sum-exp, each step differentiated."""
    dO, v = at.read(inputs["d_output"]), at.read(clean(inputs["value"]))
    drop = Dropout(at, s, inputs.get("keep"), inputs.get("p", 0.0))
    several = split(at, s.shape[-1])
    parts = [online(at, s, drop.on_values(v), drop, keys) for keys in several]
    done = [drop.on_output(at.acc(at.quotient(o, size))) for o, _, size in parts]
    weights, _ = merge_weights(at, [log_sum_exp(m, size) for _, m, size in parts])
    shares = [at.acc(w * at.contract(dO, o)[..., None]) for w, o in zip(weights, done, strict=True)]
    own = own_gradient(at, s, inputs)
    if own is not None:
        own = dropped_gradient(at, own, drop)
        shares = [
            at.acc(
                share
                + at.acc(w * at.contract(softmax(at, s[..., keys]), own[..., keys])[..., None])
            )
            for share, w, keys in zip(shares, weights, several, strict=True)
        ]
    whole = at.add_up(shares, "left")
    dS, dV = np.zeros_like(s), np.zeros_like(v)
    for keys, w, share in zip(several, weights, shares, strict=True):
        d_lse, d_part = at.acc(share - at.acc(w * whole)), at.acc(w * dO)
        p = at.prob(softmax(at, s[..., keys]))
        here, vT = drop.of(keys), T(v[..., keys, :])
        dP = dropped_gradient(at, at.score(at.product(d_part, vT)), here)
        dP = seen_gradient(s[..., keys], dP)
        dP = dP if own is None else at.score(dP + at.acc(w * own[..., keys]))
        D = at.contract(p, dP)[..., None]
        inner = row_gradient(at, p, dP, D)
        dS[..., keys] = at.prob(at.score(at.acc(inner + at.score(p * d_lse))))
        product = product_by_queries(at, here.on_weights(p), here.on_values(d_part))
        dV[..., keys, :] = here.on_output(product)
    return dS, dV


def scaled_product(
    at: Machine, multiply: Callable[..., ndarray], dS: ndarray, y: ndarray, *start: ndarray
) -> ndarray:
    """dS y / sqrt(D), or dS^T y: the scale on either factor, or on the product."""
    c = at.constant(1 / np.sqrt(y.shape[-1]))
    if at.order.d_scale == "scores":
        return multiply(at, at.prob(at.score(dS * c)), y, *start)
    if at.order.d_scale == "factor":
        return multiply(at, dS, at.to(y * c, at.P.prescale or at.P.acc), *start)
    return (
        at.acc(multiply(at, dS, y) * c) if not start else at.acc(multiply(at, dS, y) * c + start[0])
    )


def product_by_keys(at: Machine, x: ndarray, y: ndarray, start: ndarray | None = None) -> ndarray:
    """x @ y, over blocks of keys where blocks are kept narrow."""
    return in_blocks(at, x, y, at.P.grad_block_k, start)


def product_by_queries(
    at: Machine, x: ndarray, y: ndarray, start: ndarray | None = None
) -> ndarray:
    """x^T @ y, over blocks of queries where blocks are kept narrow."""
    return in_blocks(at, T(x), y, at.P.grad_block_q, start)


def in_blocks(
    at: Machine, x: ndarray, y: ndarray, block: int, start: ndarray | None = None
) -> ndarray:
    if at.P.grad_partial is None:
        return at.product(x, y, start)
    total = None
    for i in range(0, x.shape[-1], block):
        part = at.product(x[..., i : i + block], y[..., i : i + block, :])
        total = at.to(part if total is None else at.acc(total + part), at.P.grad_partial)
    assert total is not None
    return total if start is None else at.acc(total + start)


def mask_gradient(at: Machine, dS: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    mask = inputs.get("mask")
    if mask is None or mask.dtype == bool:
        return ()
    lead = dS.ndim - mask.ndim
    ones = tuple(lead + i for i, size in enumerate(mask.shape) if size == 1)
    axes = tuple(axis for axis in (*range(lead), *ones) if dS.shape[axis] != 1)
    d_mask = at.sum(dS, axes) if axes else dS
    return (np.where(mask > -np.inf, d_mask.reshape(mask.shape), 0),)


def dot_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    dS, dV = score_gradient(at, s, inputs)
    return *dot_parts(at, dS, inputs), dV, *mask_gradient(at, dS, inputs)


def dot_parts(at: Machine, dS: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    """The gradients by query and key."""
    q, k = at.read(clean(inputs["query"])), at.read(clean(inputs["key"]))
    dQ = scaled_product(at, product_by_keys, dS, k)
    dK = scaled_product(at, product_by_queries, dS, q)
    return dQ, dK


def additive_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    dS, dV = score_gradient(at, s, inputs)
    d_query, d_key, *d_weights = additive_parts(at, dS, inputs)
    return d_query, d_key, dV, *d_weights, *mask_gradient(at, dS, inputs)


def additive_parts(at: Machine, dS: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    """The gradients by query, key and the three weights."""
    q, k, w_q, w_k, w = (
        at.read(clean(inputs[name])) for name in ("query", "key", "w_query", "w_key", "w_score")
    )
    t, pairs = hidden_layer(at, q, k, w_q, w_k), dS[..., None]
    one = at.work(1)
    f = one - t * t if at.order.square.startswith("square") else (one - t) * (one + t)
    if at.order.square.endswith("last"):
        dz = at.score(at.score(pairs * f) * w)
    else:
        dz = at.score(at.score(pairs * w) * f)
    dz_q, dz_k = at.score(at.sum(dz, 2)), at.score(at.sum(dz, 1))
    d_weights = tuple(weight_gradient(at, dz, x) for dz, x in ((dz_q, q), (dz_k, k)))
    dw = at.sum(at.join(pairs * t), (0, 1, 2))
    return at.product(dz_q, w_q), at.product(dz_k, w_k), *d_weights, dw


def weight_gradient(at: Machine, dz: ndarray, x: ndarray) -> ndarray:
    """The sum over batch and positions of dz^T x: one product, or one for each batch element."""
    if at.order.addend == "first":
        return at.product(T(dz.reshape(-1, dz.shape[-1])), x.reshape(-1, x.shape[-1]))
    return at.sum(at.join(at.product(T(dz), x)), 0)


def sheared(x: ndarray, index: ndarray, width: int) -> ndarray:
    y = np.zeros((*x.shape[:-1], width), x.dtype)
    i, j = np.indices(index.shape)
    y[..., i, index] = x[..., i, j]
    return y


def added_row_gradient(at: Machine, dS: ndarray, k: ndarray, by_query: ndarray) -> ndarray:
    """The gradient by a row that is added to every query: summed after the product or before it."""
    if at.order.factors == "apart":
        summed = at.score(at.sum(dS, -2)[..., None, :])
        return at.sum(at.join(scaled_product(at, product_by_keys, summed, k)), (0, 2))
    return at.sum(by_query, (0, 2))


def joined_gradient(at: Machine, dS: ndarray, q: ndarray, b: ndarray) -> ndarray:
    """dS^T (q + b), or dS^T q + dS^T b."""
    if at.order.factors == "query":
        return scaled_product(at, product_by_queries, dS, at.join(q + b))
    parts = [
        scaled_product(at, product_by_queries, dS, x) for x in (q, np.broadcast_to(b, q.shape))
    ]
    return at.acc(at.join(parts[0]) + at.join(parts[1]))


def sum_of_two(at: Machine, first: tuple[ndarray, ...], second: tuple[ndarray, ...]) -> ndarray:
    """Two scaled products, each kept in itself, or one summed on top of the other."""
    if at.order.addend == "first":
        one = scaled_product(at, product_by_keys, *first)
        return scaled_product(at, product_by_keys, *second, one)
    return at.acc(
        at.join(scaled_product(at, product_by_keys, *first))
        + at.join(scaled_product(at, product_by_keys, *second))
    )


def txl_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    (dS, dV), (N, M) = score_gradient(at, s, inputs), s.shape[-2:]
    t = sheared(dS, np.arange(M) - np.arange(N)[:, None] + N - 1, N + M - 1)[..., :M]
    d_query, d_key, *rest = txl_parts(at, dS, t, inputs)
    return d_query, d_key, dV, *rest


def before_the_shift(dS: ndarray) -> ndarray:
    """The gradient of what rel_shift moved, which wraps around."""
    (*lead, N, M), start = dS.shape, dS.shape[-2]
    flat = np.zeros((*lead, N * (M + 1)), dS.dtype)
    flat[..., start:] = dS.reshape(*lead, N * M)
    return flat.reshape(*lead, N, M + 1)[..., 1:]


def txl_parts(at: Machine, dS: ndarray, t: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    """The gradients by query, key, position and the two biases."""
    q, k, r, u, v = (
        at.read(clean(inputs[name])) for name in ("query", "key", "position", "u", "v")
    )
    u, v = u[:, None], v[:, None]
    d_u, d_v = (at.join(scaled_product(at, product_by_keys, *pair)) for pair in ((dS, k), (t, r)))
    return (
        sum_of_two(at, (dS, k), (t, np.broadcast_to(r, k.shape))),
        joined_gradient(at, dS, q, u),
        at.sum(at.join(joined_gradient(at, t, q, v)), 0),
        added_row_gradient(at, dS, k, d_u),
        added_row_gradient(at, t, np.broadcast_to(r, k.shape), d_v),
    )


def learned_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    dS, dV = score_gradient(at, s, inputs)
    d_query, d_key, *tables = learned_parts(at, dS, inputs)
    return d_query, d_key, dV, *tables


def learned_parts(at: Machine, dS: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    """The gradients by query, key and the three tables."""
    q, k, a, c, b = (
        at.read(clean(inputs[name]))
        for name in ("query", "key", "key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    )
    index = table_index(*dS.shape[-2:], len(a), inputs["align"])
    t, table, D = sheared(dS, index, len(a)), a.transpose(1, 0, 2), q.shape[-1]
    table = np.broadcast_to(table, (len(q), *table.shape))
    d_b = at.join(scaled_product(at, product_by_keys, dS, k))
    if at.order.factors == "key":  # by way of k + a, whose gradient is one for each pair
        x = at.prob(at.score(dS * at.constant(at.scale_of(D))))[..., None]
        near = at.join(k[..., None, :, :] + a[index].transpose(2, 0, 1, 3))
        dQ = at.sum(at.join(x * near), -2)
        of_pairs = at.join(x * q[..., :, None, :])
        dK = at.acc(at.sum(of_pairs, -3) + at.join(at.sum(x * b[:, None, None], -3)))
        d_a = np.zeros(a.shape, a.dtype)
        for place in np.unique(index):
            i, j = np.nonzero(index == place)
            d_a[place] = at.sum(of_pairs[:, :, i, j], (0, 2))
    else:
        dQ = sum_of_two(at, (dS, k), (t, table))
        dK = joined_gradient(at, dS, q, b[:, None])
        d_a = table_gradient(at, t, q)
    d_c = at.sum(at.prob(at.score(t * at.constant(at.scale_of(D)))), (0, 2)).T
    return dQ, dK, d_a, d_c, added_row_gradient(at, dS, k, d_b)


def table_gradient(at: Machine, t: ndarray, q: ndarray) -> ndarray:
    """The sum over the batch of t^T q [2P H D]: one product, or one for each batch element."""
    if at.order.addend == "first":
        rows, columns = (x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[-1]) for x in (t, q))
        return scaled_product(at, product_by_queries, rows, columns).transpose(1, 0, 2)
    each = at.join(scaled_product(at, product_by_queries, t, q))
    return at.sum(each, 0).transpose(1, 0, 2)


GRADIENTS: dict[str, Callable[..., tuple[ndarray, ...]]] = {
    "scaled_dot_product_attention": dot_gradient,
    "additive_attention": additive_gradient,
    "alibi_attention": dot_gradient,
    "transformer_xl_attention": txl_gradient,
    "learned_relative_attention": learned_gradient,
}


def score_parts(at: Machine, operation: str, inputs: Inputs) -> tuple[ndarray, ...]:
    """The gradients of a score of its own."""
    dS = at.read(inputs["d_output"])
    if operation == "additive_score":
        flat = {
            name: x.reshape(-1, *x.shape[-2:]) if name in ("query", "key") else x
            for name, x in inputs.items()
        }
        d_query, d_key, *rest = additive_parts(at, dS.reshape(-1, *dS.shape[-2:]), flat)
        shapes = inputs["query"].shape, inputs["key"].shape
        return d_query.reshape(shapes[0]), d_key.reshape(shapes[1]), *rest
    if operation == "transformer_xl_score":
        return txl_parts(at, dS, before_the_shift(dS), inputs)
    parts = {"scaled_dot_product_score": dot_parts, "learned_relative_score": learned_parts}
    return parts[operation](at, dS, inputs)


def softmax_gradient(
    at: Machine, d_output: ndarray, score: ndarray, mask: ndarray | None = None
) -> tuple[ndarray, ...]:
    """The weights once more, however they were computed, and a row's mean from them."""
    weights, s = softmax_weights(at, score, mask)
    dW = seen_gradient(s, at.read(d_output))
    w = at.prob(weights)
    dS = row_gradient(at, w, dW, at.contract(w, dW)[..., None])
    if at.order.maximum == "differentiated":
        dS = at_maximum(at, s, dS, -at.score(at.sum(dS)[..., None]))
    return dS, *mask_gradient(at, dS, {"mask": mask})


def gradient(at: Machine, operation: str, inputs: Inputs) -> tuple[ndarray, ...]:
    if operation == "softmax_grad":
        return tuple(map(at.out, softmax_gradient(at, **inputs)))
    if operation == "dropout_grad":
        return (dropout(at, inputs["d_output"], inputs["keep"], inputs["p"]),)
    if operation.endswith("_score_grad"):
        return tuple(map(at.out, score_parts(at, operation.removesuffix("_grad"), inputs)))
    with_forward = operation.removesuffix("_grad")
    s = scores_of(at, with_forward, inputs)
    seen = s > -np.inf
    results = GRADIENTS[with_forward](at, np.where(seen, s, -np.inf).astype(at.work), inputs)
    return tuple(at.out(d) for d in results)


__all__ = ["gradient", "level"]
