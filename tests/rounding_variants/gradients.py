"""
The backward formulas by hand, from stored weights or from weights recomputed out of the
log-sum-exp.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.arithmetic import Inputs, Machine, Style, T
from tests.rounding_variants.attention import SCORES, normalised, sanitised, weighted
from tests.rounding_variants.scores import additive_parts, table_index


def score_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ndarray]:
    """
    dS and dV: eager styles use rowsum(P dP) with the stored weights, flash styles rowsum(dO O) with
    the stored output.
    """
    dO, v = at.read(inputs["d_output"]), at.read(inputs["value"])
    keep, p = inputs.get("keep"), inputs.get("p", 0.0)
    factor = (
        at.acc(1) if keep is None else np.broadcast_to(keep, s.shape).astype(at.acc) / at.acc(1 - p)
    )
    weights = at.prob(normalised(at, s))
    dV = at.product(T(at.prob(weights * factor)), dO)
    dP = at.score(at.score(at.product(dO, T(v))) * factor)
    if at.style.block:
        D = (dO * at.store(weighted(at, s, inputs["value"], keep, p)[0])).sum(-1, keepdims=True)
    else:
        D = (weights * dP).sum(-1, keepdims=True)
    return at.score(at.prob(weights * at.soft(dP - D))), dV


def scaled_score_gradient(at: Machine, dS: ndarray, D: int) -> ndarray:
    return at.prob(at.score(dS * at.acc(1 / sqrt(D))))


def products_gradient(at: Machine, x: ndarray, inputs: Inputs) -> tuple[ndarray, ndarray]:
    return at.product(x, at.read(inputs["key"])), at.product(T(x), at.read(inputs["query"]))


def mask_gradient(dS: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    mask = inputs.get("mask")
    if mask is None or mask.dtype == bool:
        return ()
    lead = dS.ndim - mask.ndim
    d_mask = dS.sum(tuple(range(lead)))
    return (d_mask.sum(tuple(i for i, size in enumerate(mask.shape) if size == 1), keepdims=True),)


def dot_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    dS, dV = score_gradient(at, s, inputs)
    x = scaled_score_gradient(at, dS, inputs["query"].shape[-1])
    return (*products_gradient(at, x, inputs), dV, *mask_gradient(dS, inputs))


def additive_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    q, k, w_q, w_k, w = (
        at.read(inputs[name]) for name in ("query", "key", "w_query", "w_key", "w_score")
    )
    dS, dV = score_gradient(at, s, inputs)
    t = additive_parts(at, q, k, w_q, w_k, w)[0]
    dz = at.score(at.score(dS[..., None] * w) * (1 - t * t))
    dzq, dzk = at.score(dz.sum(2)), at.score(dz.sum(1))
    shared = tuple(at.join(at.product(T(dz), x)).sum(0) for dz, x in ((dzq, q), (dzk, k)))
    dw = at.join(dS[..., None] * t).sum((0, 1, 2))
    return (at.product(dzq, w_q), at.product(dzk, w_k), dV, *shared, dw, *mask_gradient(dS, inputs))


def sheared(x: ndarray, index: ndarray, width: int) -> ndarray:
    y = np.zeros((*x.shape[:-1], width), x.dtype)
    i, j = np.indices(index.shape)
    y[..., i, index] = x[..., i, j]
    return y


def txl_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    q, k, r, u, v = (at.read(inputs[name]) for name in ("query", "key", "position", "u", "v"))
    dS, dV = score_gradient(at, s, inputs)
    x = scaled_score_gradient(at, dS, q.shape[-1])
    N, M = s.shape[-2:]
    t = sheared(x, np.arange(M) - np.arange(N)[:, None] + N - 1, N + M - 1)[..., :M]
    d_u, d_v = at.join(at.product(x, k)), at.join(at.product(t, r))
    d_position = at.join(at.product(T(t), at.join(q + v[:, None]))).sum(0)
    return (
        at.store(d_u + d_v),
        at.product(T(x), at.join(q + u[:, None])),
        dV,
        d_position,
        d_u.sum((0, 2)),
        d_v.sum((0, 2)),
    )


def learned_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    q, k, a, c, b = (
        at.read(inputs[name])
        for name in ("query", "key", "key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    )
    dS, dV = score_gradient(at, s, inputs)
    x = scaled_score_gradient(at, dS, q.shape[-1])
    t = sheared(x, table_index(*s.shape[-2:], len(a), inputs["align"]), len(a))
    d_b = at.join(at.product(x, k))
    d_a = at.join(at.product(T(t), q)).sum(0).transpose(1, 0, 2)
    dQ = at.store(d_b + at.join(at.product(t, a.transpose(1, 0, 2))))
    return dQ, at.product(T(x), at.join(q + b[:, None])), dV, d_a, t.sum((0, 2)).T, d_b.sum((0, 2))


GRADIENTS: dict[str, Callable[..., tuple[ndarray, ...]]] = {
    "scaled_dot_product_attention": dot_gradient,
    "additive_attention": additive_gradient,
    "alibi_attention": dot_gradient,
    "transformer_xl_attention": txl_gradient,
    "learned_relative_attention": learned_gradient,
}


def gradient(operation: str, style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> tuple[ndarray, ...]:
        at, inputs = Machine(dtype, style), sanitised(inputs)
        score, names = SCORES[operation]
        s = score(at, **{name: inputs[name] for name in names if name in inputs})
        return tuple(at.out(d) for d in GRADIENTS[operation](at, s, inputs))

    return run
