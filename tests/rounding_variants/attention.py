"""
What follows the scores: weights and weighted values, a row at once, online over blocks, or in parts
that are merged.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.rounding_variants.machine import Machine, clean
from tests.rounding_variants.scores import (
    additive_scores,
    alibi_scores,
    learned_scores,
    masked_scores,
    txl_scores,
)


def level(s: ndarray) -> ndarray:
    """The largest score of each row, 0 where it sees no key."""
    m = s.max(-1, keepdims=True)
    return np.where(m > -np.inf, m, 0).astype(s.dtype)


def in_order(at: Machine, M: int) -> ndarray:
    return np.arange(M)[::-1] if at.order.keys == "backward" else np.arange(M)


def split(at: Machine, M: int) -> list[ndarray]:
    """The keys in as many parts as are merged."""
    return np.array_split(in_order(at, M), min(int(at.order.parts), M))


def softmax(at: Machine, s: ndarray) -> ndarray:
    """The weights of a row at once."""
    return by_exponent(at, s, exponentials(at, s)[1]) if by_lse(at) else quotients(at, s)


def exponentials(at: Machine, s: ndarray) -> tuple[ndarray, ndarray]:
    """exp(s - m) of a row, and its sum."""
    w = at.exp(s, level(s))
    return w, at.soft(at.sum(w[..., in_order(at, s.shape[-1])])[..., None])


def quotients(at: Machine, s: ndarray) -> ndarray:
    return at.soft(at.quotient(*exponentials(at, s)))


def by_lse(at: Machine) -> bool:
    return at.order.division == "exponent" and at.order.softmax == "row"


def by_exponent(at: Machine, s: ndarray, size: ndarray) -> ndarray:
    """The weights exp(s - lse): nothing is divided by their sum."""
    m = level(s)
    lse = at.soft(m + at.soft(np.log(np.where(size > 0, size, 1)).astype(m.dtype)))
    return np.where(size > 0, at.exp(s, lse), 0).astype(s.dtype)


def log_sum_exp(m: ndarray, size: ndarray) -> ndarray:
    return np.where(size > 0, m + np.log(np.where(size > 0, size, 1)), -np.inf).astype(m.dtype)


class Dropout:
    """A draw, and where its factor is applied."""

    def __init__(self, at: Machine, s: ndarray, keep: ndarray | None, p: float) -> None:
        self.at, self.p = at, p
        self.kept = None if keep is None else np.broadcast_to(keep, s.shape)

    def of(self, keys: ndarray) -> "Dropout":
        """The draw for some of the keys."""
        if self.kept is None:
            return self
        return Dropout(self.at, self.kept[..., keys], self.kept[..., keys], self.p)

    @property
    def share(self) -> ndarray:
        return self.at.constant(1 / self.at.constant(1 - self.p))

    def on_weights(self, w: ndarray) -> ndarray:
        """The weights with what belongs to them."""
        if self.kept is None:
            return self.at.prob(w)
        w = np.where(self.kept, w, 0).astype(w.dtype)
        if self.p and self.at.order.dropout == "weights":
            w = w * self.share
        if self.p and self.at.order.dropout == "divided":
            w = w / self.at.constant(1 - self.p)
        return self.at.prob(w)

    def as_result(self, w: ndarray) -> ndarray:
        """The weights behind the dropout, where they are a result."""
        if self.kept is None:
            return w
        w = np.where(self.kept, w, 0).astype(w.dtype)
        return self.at.prob(w * self.share) if self.p else w

    def on_values(self, v: ndarray) -> ndarray:
        return self.at.acc(v * self.share) if self._elsewhere("values") else v

    def on_output(self, o: ndarray) -> ndarray:
        return self.at.acc(o * self.share) if self._elsewhere("last") else o

    def _elsewhere(self, place: str) -> bool:
        return self.kept is not None and bool(self.p) and self.at.order.dropout == place


def weighted(
    at: Machine, s: ndarray, value: ndarray, keep: ndarray | None = None, p: float = 0.0
) -> tuple[ndarray, ndarray]:
    """The output and the log-sum-exp of each row."""
    drop, M = Dropout(at, s, keep, p), s.shape[-1]
    v, order = drop.on_values(at.read(clean(value))), at.order.softmax
    if order == "row":
        o, m, size = whole(at, s, v, drop)
    elif order == "online":
        o, m, size = online(at, s, v, drop, in_order(at, M))
    else:
        several = [online(at, s, v, drop, keys) for keys in split(at, M)]
        if order == "merged":
            o, lse = merged(at, several)
            return drop.on_output(o), lse
        o, m, size = raised(at, several)
    if order != "row" or at.order.division.endswith("after"):
        o = at.acc(at.quotient(o, size))
    return drop.on_output(o), log_sum_exp(m, size)


Part = tuple[ndarray, ndarray, ndarray]
"""An output that may still want its normaliser, the level of its exponentials, the normaliser."""


def whole(at: Machine, s: ndarray, v: ndarray, drop: Dropout) -> Part:
    """A row at once; the weights divided before the product with the values, or it after that."""
    m, keys = level(s), in_order(at, s.shape[-1])
    w, size = exponentials(at, s)
    if by_lse(at):
        w = by_exponent(at, s, size)
    elif at.order.division.endswith("before"):
        w = at.soft(at.quotient(w, size))
    w = drop.on_weights(w)
    o = at.product(w[..., keys], v[..., keys, :])
    kept = at.step(o)  # no legal evaluation stores a sum that overflows before it is divided
    return np.where(np.isinf(kept), o, kept), m, size


def online(at: Machine, s: ndarray, v: ndarray, drop: Dropout, order: ndarray) -> Part:
    """Blocks of keys, with a level that rises on the way."""
    m = np.full((*s.shape[:-1], 1), -np.inf, at.work)
    size, o = np.zeros_like(m), np.zeros((*s.shape[:-1], v.shape[-1]), at.work)
    block = int(at.order.block)
    for start in range(0, len(order), block):
        j = order[start : start + block]
        new = np.maximum(m, s[..., j].max(-1, keepdims=True))
        safe = np.where(new > -np.inf, new, 0).astype(at.work)
        w = at.exp(s[..., j], safe)
        decay = at.decay(m, safe)
        size = at.soft(at.soft(size * decay) + at.soft(at.sum(w)[..., None]))
        w = drop.of(j).on_weights(w)
        o, m = at.product(w, v[..., j, :], at.acc(o * decay)), new
    return o, np.where(m > -np.inf, m, 0).astype(at.work), size


def raised(at: Machine, parts: list[Part]) -> Part:
    """Parts brought to the level of the highest, and added."""
    seen = [np.where(size > 0, m, -np.inf).astype(at.work) for _, m, size in parts]
    top = level(np.concatenate(seen, -1))
    decay = [at.decay(m, top) for m in seen]
    o, size = (
        [at.acc(each * part[at_]) for each, part in zip(decay, parts, strict=True)]
        for at_ in (0, 2)
    )
    return at.add_up([at.partial(x) for x in o], "left"), top, at.add_up(size, "left")


def merged(at: Machine, parts: list[Part]) -> tuple[ndarray, ndarray]:
    """Finished parts, added with the weights exp(lse_b - lse)."""
    lses = [log_sum_exp(m, size) for _, m, size in parts]
    done = [at.partial(at.acc(at.quotient(o, size))) for o, _, size in parts]
    weights, lse = merge_weights(at, lses)
    return at.add_up([at.acc(w * o) for w, o in zip(weights, done, strict=True)], "left"), lse


def merge_weights(at: Machine, lses: list[ndarray]) -> tuple[list[ndarray], ndarray]:
    """exp(lse_b - lse) for each part, and the log-sum-exp of all."""
    top = level(np.concatenate(lses, -1))
    total = at.add_up([at.decay(x, top) for x in lses], "left")
    lse = log_sum_exp(top, total)
    safe = np.where(lse > -np.inf, lse, 0).astype(at.work)
    return [at.decay(x, safe) for x in lses], lse


SCORES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "scaled_dot_product_attention": (masked_scores, ("query", "key", "mask")),
    "additive_attention": (
        additive_scores,
        ("query", "key", "w_query", "w_key", "w_score", "mask"),
    ),
    "alibi_attention": (alibi_scores, ("query", "key", "visible")),
    "transformer_xl_attention": (txl_scores, ("query", "key", "position", "u", "v", "visible")),
    "learned_relative_attention": (
        learned_scores,
        (
            *("query", "key", "key_pos_embeddings", "key_pos_bias", "query_pos_bias", "align"),
            "visible",
        ),
    ),
}


def scores_of(at: Machine, operation: str, inputs: dict[str, Any]) -> ndarray:
    """The scores of an attention, without what hidden slots may hold that is no number."""
    score, names = SCORES[operation]
    given = {name: inputs[name] for name in names if name in inputs}
    given |= {name: clean(given[name]) for name in ("query", "key")}
    return np.asarray(score(at, **given))


def attention(at: Machine, operation: str, inputs: dict[str, Any]) -> ndarray:
    s = scores_of(at, operation, inputs)
    return at.out(weighted(at, s, inputs["value"], inputs.get("keep"), inputs.get("p", 0.0))[0])
