"""
What follows the scores: weights and weighted values, at once, online over blocks, or split and
merged.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.arithmetic import Inputs, Machine, Style, clean
from tests.rounding_variants.scores import (
    additive_scores,
    alibi_scores,
    learned_scores,
    sdpa_scores,
    txl_scores,
)


def weighted(
    at: Machine, s: ndarray, value: ndarray, keep: ndarray | None = None, p: float = 0.0
) -> tuple[ndarray, ndarray]:
    """
    The output and the log-sum-exp of each row, in acc: online over blocks of keys, split in parts,
    or at once.
    """
    s, v = s.astype(at.acc), at.read(clean(value))
    factor = np.ones_like(s) if keep is None else np.broadcast_to(keep, s.shape).astype(at.acc)
    M = s.shape[-1]
    parts = (
        np.array_split(np.arange(M), min(at.style.split, M)) if at.style.split else [np.arange(M)]
    )
    results = [online(at, s[..., j], v[..., j, :], factor[..., j], p) for j in parts]
    return results[0] if len(results) == 1 else merged(results)


def online(
    at: Machine, s: ndarray, v: ndarray, factor: ndarray, p: float
) -> tuple[ndarray, ndarray]:
    M = s.shape[-1]
    order = np.arange(M)[::-1] if at.style.backwards else np.arange(M)
    m, size = np.full((*s.shape[:-1], 1), -np.inf, at.acc), np.zeros((*s.shape[:-1], 1), at.acc)
    o = np.zeros((*s.shape[:-1], v.shape[-1]), at.acc)
    block = at.style.block or M
    for start in range(0, M, block):
        j = order[start : start + block]
        new = np.maximum(m, s[..., j].max(-1, keepdims=True))
        safe = np.where(new > -np.inf, new, 0)
        w = at.exp(s[..., j], safe)
        decay = np.where(m > -np.inf, at.exp(np.where(m > -np.inf, m, 0), safe), 0)
        size = at.soft(size * decay + w.sum(-1, keepdims=True))
        if not at.style.block:  # the row at once: normalise before the weights are stored
            w = at.prob(np.where(size > 0, w / np.where(size > 0, size, 1), 0))
        w = at.prob(w * factor[..., j] / at.acc(1 - p))
        o, m = o * decay + at.product(w, v[..., j, :]), new
    if at.style.block:
        o = np.where(size > 0, o / np.where(size > 0, size, 1), 0)
    return o, np.where(
        size > 0, np.where(m > -np.inf, m, 0) + np.log(np.where(size > 0, size, 1)), -np.inf
    )


def merged(results: list[tuple[ndarray, ndarray]]) -> tuple[ndarray, ndarray]:
    top = np.maximum.reduce([lse for _, lse in results])
    safe = np.where(top > -np.inf, top, 0)
    total = sum(np.exp(lse - safe) for _, lse in results)
    lse = safe + np.log(np.where(total > 0, total, 1))
    o = sum(np.exp(part - lse) * x for x, part in results)
    return np.where(total > 0, o, 0), np.where(total > 0, lse, -np.inf)


def normalised(at: Machine, s: ndarray) -> ndarray:
    """
    The weights alone: w / l for one block, exp(s - lse) else, as flash kernels recompute them.
    """
    s = s.astype(at.acc)
    lse = weighted(at, s, np.zeros((*s.shape[:-2], s.shape[-1], 1)))[1]
    if at.style.block:
        return np.where(lse > -np.inf, at.exp(s, np.where(lse > -np.inf, lse, 0)), 0)
    m = np.where(lse > -np.inf, s.max(-1, keepdims=True), 0)
    w = at.exp(s, m)
    return np.where(
        lse > -np.inf, w / np.where(lse > -np.inf, at.soft(w.sum(-1, keepdims=True)), 1), 0
    )


def two_step(at: Machine, s: ndarray) -> ndarray:
    """The softmax operation: numerators and normaliser, in storage at the end."""
    s = s.astype(at.acc)
    m = s.max(-1, keepdims=True)
    m = np.where(m > -np.inf, m, 0)
    w = at.exp(s, m)
    size = at.soft((w[..., ::-1] if at.style.backwards else w).sum(-1, keepdims=True))
    return w / np.where(size > 0, size, 1)


SCORES: dict[str, tuple[Callable[..., ndarray], tuple[str, ...]]] = {
    "scaled_dot_product_attention": (sdpa_scores, ("query", "key", "mask")),
    "additive_attention": (
        additive_scores,
        ("query", "key", "w_query", "w_key", "w_score", "mask"),
    ),
    "alibi_attention": (alibi_scores, ("query", "key", "visible")),
    "transformer_xl_attention": (txl_scores, ("query", "key", "position", "u", "v", "visible")),
    "learned_relative_attention": (
        learned_scores,
        (
            "query",
            "key",
            "key_pos_embeddings",
            "key_pos_bias",
            "query_pos_bias",
            "align",
            "visible",
        ),
    ),
}


def sanitised(inputs: Inputs) -> dict[str, Any]:
    return {
        name: clean(x) if name in ("query", "key", "value") else x for name, x in inputs.items()
    }


def attention(operation: str, style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at, inputs = Machine(dtype, style), sanitised(inputs)
        score, names = SCORES[operation]
        s = score(at, **{name: inputs[name] for name in names if name in inputs})
        return at.out(weighted(at, s, inputs["value"], inputs.get("keep"), inputs.get("p", 0.0))[0])

    return run
