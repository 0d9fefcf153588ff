"""
Correct implementations that differ from the law in every way that rounding allows: the bounds must hold for each of them.

All are NumPy. Numbers live in `acc` (float32, or float64 for float64) and are rounded to the storage dtype wherever the declared
arithmetic says that they are written to memory. An entry is (operation, name, function of the inputs and a dtype, PRECISION).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from verify.dtypes import numpy_dtype

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Style:
    """How an implementation computes: what it keeps in storage, its key blocks, the direction, exp or exp2, how parts merge."""

    declared: Any
    score: bool = False  # scores are rounded to storage
    prob: bool = False  # weights are rounded to storage before their product
    soft: bool = False  # so are maximum, exponents, exp and normaliser
    joined: bool = True  # sums before a product are rounded to storage, and so are a layer's stages
    prescale: bool = False
    block: int = 0  # keys of an online softmax; 0: the whole row at once
    split: int = 0  # parts that are merged through their log-sum-exp
    backwards: bool = False
    base2: bool = False
    fold: bool = False  # the other algebraic form


STYLES = {
    "eager": Style("eager", score=True, prob=True),
    "eager_divided": Style("eager", score=True, prob=True, fold=True),
    "sloppy": Style("sloppy", score=True, prob=True, soft=True),
    "wide": Style("wide", joined=False, prescale=True),
    "wide_reversed": Style("wide", joined=False, backwards=True, base2=True),
    "online_1": Style({"preset": "fused", "block": 1}, prob=True, block=1),
    "online_2_exp2": Style({"preset": "fused", "block": 2}, prob=True, block=2, base2=True),
    "online_3_reversed": Style({"preset": "fused", "block": 3}, prob=True, block=3, backwards=True),
    "online_16": Style("fused", prob=True, block=16, base2=True),
    "online_4_wide": Style({"preset": "wide", "block": 4}, joined=False, block=4),
    "split_2": Style({"preset": "fused", "block": 2, "lse_merge": True}, prob=True, split=2, block=2),
    "split_3_exp2": Style({"preset": "fused", "block": 1, "lse_merge": True}, prob=True, split=3, block=1, base2=True),
    "fused_row": Style("fused", prob=True, fold=True),
}


@dataclass(frozen=True)
class Machine:
    """A dtype and a style as rounding functions."""

    dtype: str
    style: Style

    @property
    def acc(self) -> Any:
        return np.float64 if self.dtype == "float64" else np.float32

    def read(self, x: Any) -> ndarray:
        return np.asarray(x).astype(self.acc)

    def store(self, x: ndarray, when: bool = True) -> ndarray:
        return x.astype(numpy_dtype(self.dtype)).astype(self.acc) if when else x

    def score(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.score)

    def prob(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.prob)

    def join(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.joined)

    def soft(self, x: ndarray) -> ndarray:
        return self.store(x, self.style.soft)

    def exp(self, s: ndarray, m: ndarray) -> ndarray:
        if not self.style.base2:
            return self.soft(np.exp(self.soft(s - m)))
        # a mask near -max overflows here, and -inf - -inf is NaN: a kernel of this form must clamp, since such a mask hides nothing
        lowest, log2e = np.finfo(self.acc).min, self.acc(1.4426950408889634)
        return np.where(s > -np.inf, np.exp2(np.maximum(s * log2e, lowest) - np.maximum(m * log2e, lowest)), 0)

    def scaled(self, raw: ndarray, D: int) -> ndarray:
        if self.style.prescale:
            return raw
        return self.score(raw / self.acc(sqrt(D)) if self.style.fold else raw * self.acc(1 / sqrt(D)))

    def prescaled(self, x: ndarray, D: int) -> ndarray:
        return x * self.acc(D**-0.25) if self.style.prescale else x

    def out(self, x: Any) -> Any:
        return self.store(x).astype(np.float64)


def T(x: ndarray) -> ndarray:
    return x.swapaxes(-1, -2)


def clean(x: ndarray) -> ndarray:
    return np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


# the scores of each attention, with -inf where a key is hidden


def dot_scores(at: Machine, query: ndarray, key: ndarray) -> ndarray:
    q, k = at.read(query), at.read(key)
    D = q.shape[-1]
    return at.scaled(at.score(at.prescaled(q, D) @ T(at.prescaled(k, D))), D)


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
    zq, zk = (at.score(at.read(x) @ at.read(w).T) for x, w in ((query, w_query), (key, w_key)))
    t = at.score(np.tanh(at.score(zq[..., :, None, :] + zk[..., None, :, :])))
    return t, at.score(t @ at.read(w_score))


def additive_scores(at: Machine, query, key, w_query, w_key, w_score, mask=None) -> ndarray:  # type: ignore[no-untyped-def]
    return with_mask(at, additive_parts(at, query, key, w_query, w_key, w_score)[1], mask)


def slopes(at: Machine, H: int) -> ndarray:
    n = 1 << (H.bit_length() - 1)
    steps = [at.acc(2.0 ** (-8 / n))] * n
    first = np.cumprod(np.array(steps, at.acc), dtype=at.acc)
    start = at.acc(2.0 ** (-4 / n))
    rest = np.power(start, np.arange(1, 1 + 2 * (H - n), 2).astype(at.acc), dtype=at.acc)
    return np.concatenate([first, rest])


def alibi_scores(at: Machine, query: ndarray, key: ndarray, visible: ndarray | None = None) -> ndarray:
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
    content = at.score(at.join(q + u[:, None]) @ T(k))
    place = at.score(at.join(q + v[:, None]) @ T(r))
    s = at.score(content + rel_shift(place))
    return at.score(s / at.acc(sqrt(q.shape[-1]))) if at.style.fold else at.score(s * at.acc(1 / sqrt(q.shape[-1])))


def txl_scores(at: Machine, query, key, position, u, v, visible=None) -> ndarray:  # type: ignore[no-untyped-def]
    return causal(txl_all_scores(at, query, key, position, u, v), visible)


def table_index(N: int, M: int, rows: int, align: str) -> ndarray:
    return rows // 2 + np.arange(M) - np.arange(N)[:, None] - (M - N if align == "end" else 0)


def learned_all_scores(at: Machine, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, a, c, b = (at.read(x) for x in (query, key, key_pos_embeddings, key_pos_bias, query_pos_bias))
    index = table_index(q.shape[-2], k.shape[-2], len(a), align)
    a, c = a[index].transpose(2, 0, 1, 3), c[index].transpose(2, 0, 1)
    if at.style.fold:  # q.(k + a) + (b.k + c)
        first = at.score((q[..., :, None, :] * at.join(k[:, :, None] + a)).sum(-1))
        second = at.score(at.score(b[:, None] @ T(k)) + c)
    else:  # (q + b).k + (q.a + c)
        first = at.score(at.join(q + b[:, None]) @ T(k))
        second = at.score(at.score((q[..., :, None, :] * a).sum(-1)) + c)
    return at.score(at.score(first + second) * at.acc(1 / sqrt(q.shape[-1])))


def learned_scores(at: Machine, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align, visible=None) -> ndarray:  # type: ignore[no-untyped-def]
    return with_mask(at, learned_all_scores(at, query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align), visible)


# what follows the scores


def weighted(at: Machine, s: ndarray, value: ndarray, keep: ndarray | None = None, p: float = 0.0) -> tuple[ndarray, ndarray]:
    """The output and the log-sum-exp of each row, in acc: online over blocks of keys, split in parts, or at once."""
    s, v = s.astype(at.acc), at.read(clean(value))
    factor = np.ones_like(s) if keep is None else np.broadcast_to(keep, s.shape).astype(at.acc)
    M = s.shape[-1]
    parts = np.array_split(np.arange(M), min(at.style.split, M)) if at.style.split else [np.arange(M)]
    results = [online(at, s[..., j], v[..., j, :], factor[..., j], p) for j in parts]
    return results[0] if len(results) == 1 else merged(results)


def online(at: Machine, s: ndarray, v: ndarray, factor: ndarray, p: float) -> tuple[ndarray, ndarray]:
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
        o, m = o * decay + w @ v[..., j, :], new
    if at.style.block:
        o = np.where(size > 0, o / np.where(size > 0, size, 1), 0)
    return o, np.where(size > 0, np.where(m > -np.inf, m, 0) + np.log(np.where(size > 0, size, 1)), -np.inf)


def merged(results: list[tuple[ndarray, ndarray]]) -> tuple[ndarray, ndarray]:
    top = np.maximum.reduce([lse for _, lse in results])
    safe = np.where(top > -np.inf, top, 0)
    total = sum(np.exp(lse - safe) for _, lse in results)
    lse = safe + np.log(np.where(total > 0, total, 1))
    o = sum(np.exp(part - lse) * x for x, part in results)
    return np.where(total > 0, o, 0), np.where(total > 0, lse, -np.inf)


def normalised(at: Machine, s: ndarray) -> ndarray:
    """The weights alone: w / l for one block, exp(s - lse) else, as flash kernels recompute them."""
    s = s.astype(at.acc)
    lse = weighted(at, s, np.zeros((*s.shape[:-2], s.shape[-1], 1)))[1]
    if at.style.block:
        return np.where(lse > -np.inf, at.exp(s, np.where(lse > -np.inf, lse, 0)), 0)
    m = np.where(lse > -np.inf, s.max(-1, keepdims=True), 0)
    w = at.exp(s, m)
    return np.where(lse > -np.inf, w / np.where(lse > -np.inf, at.soft(w.sum(-1, keepdims=True)), 1), 0)


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
    "additive_attention": (additive_scores, ("query", "key", "w_query", "w_key", "w_score", "mask")),
    "alibi_attention": (alibi_scores, ("query", "key", "visible")),
    "transformer_xl_attention": (txl_scores, ("query", "key", "position", "u", "v", "visible")),
    "learned_relative_attention": (
        learned_scores,
        ("query", "key", "key_pos_embeddings", "key_pos_bias", "query_pos_bias", "align", "visible"),
    ),
}


def sanitised(inputs: Inputs) -> dict[str, Any]:
    return {name: clean(x) if name in ("query", "key", "value") else x for name, x in inputs.items()}


def attention(operation: str, style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at, inputs = Machine(dtype, style), sanitised(inputs)
        score, names = SCORES[operation]
        s = score(at, **{name: inputs[name] for name in names if name in inputs})
        return at.out(weighted(at, s, inputs["value"], inputs.get("keep"), inputs.get("p", 0.0))[0])

    return run


# gradients: the backward formulas by hand, from stored weights or from weights recomputed out of the log-sum-exp


def score_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ndarray]:
    """dS and dV: eager styles use rowsum(P dP) with the stored weights, flash styles rowsum(dO O) with the stored output."""
    dO, v = at.read(inputs["d_output"]), at.read(inputs["value"])
    keep, p = inputs.get("keep"), inputs.get("p", 0.0)
    factor = at.acc(1) if keep is None else np.broadcast_to(keep, s.shape).astype(at.acc) / at.acc(1 - p)
    weights = at.prob(normalised(at, s))
    dV = T(at.prob(weights * factor)) @ dO
    dP = at.score(at.score(dO @ T(v)) * factor)
    if at.style.block:
        D = (dO * at.store(weighted(at, s, inputs["value"], keep, p)[0])).sum(-1, keepdims=True)
    else:
        D = (weights * dP).sum(-1, keepdims=True)
    return at.score(at.prob(weights * at.soft(dP - D))), dV


def scaled_score_gradient(at: Machine, dS: ndarray, D: int) -> ndarray:
    return at.prob(at.score(dS * at.acc(1 / sqrt(D))))


def products_gradient(at: Machine, x: ndarray, inputs: Inputs) -> tuple[ndarray, ndarray]:
    return x @ at.read(inputs["key"]), T(x) @ at.read(inputs["query"])


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
    q, k, w_q, w_k, w = (at.read(inputs[name]) for name in ("query", "key", "w_query", "w_key", "w_score"))
    dS, dV = score_gradient(at, s, inputs)
    t = additive_parts(at, q, k, w_q, w_k, w)[0]
    dz = at.score(at.score(dS[..., None] * w) * (1 - t * t))
    dzq, dzk = at.score(dz.sum(2)), at.score(dz.sum(1))
    shared = tuple(at.join(T(dz) @ x).sum(0) for dz, x in ((dzq, q), (dzk, k)))
    dw = at.join(dS[..., None] * t).sum((0, 1, 2))
    return (dzq @ w_q, dzk @ w_k, dV, *shared, dw, *mask_gradient(dS, inputs))


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
    d_u, d_v = at.join(x @ k), at.join(t @ r)
    d_position = at.join(T(t) @ at.join(q + v[:, None])).sum(0)
    return at.store(d_u + d_v), T(x) @ at.join(q + u[:, None]), dV, d_position, d_u.sum((0, 2)), d_v.sum((0, 2))


def learned_gradient(at: Machine, s: ndarray, inputs: Inputs) -> tuple[ndarray, ...]:
    q, k, a, c, b = (at.read(inputs[name]) for name in ("query", "key", "key_pos_embeddings", "key_pos_bias", "query_pos_bias"))
    dS, dV = score_gradient(at, s, inputs)
    x = scaled_score_gradient(at, dS, q.shape[-1])
    t = sheared(x, table_index(*s.shape[-2:], len(a), inputs["align"]), len(a))
    d_b = at.join(x @ k)
    d_a = at.join(T(t) @ q).sum(0).transpose(1, 0, 2)
    return at.store(d_b + at.join(t @ a.transpose(1, 0, 2))), T(x) @ at.join(q + b[:, None]), dV, d_a, t.sum((0, 2)).T, d_b.sum((0, 2))


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


# scores, softmax, dropout, positions, slopes, biases as operations of their own


def op_scores(function: Callable[..., ndarray], style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at = Machine(dtype, style)
        return at.out(function(at, **inputs))

    return run


def op_softmax(style: Style) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at = Machine(dtype, style)
        s = with_mask(at, at.read(clean(inputs["score"])), inputs.get("mask"))
        return at.out(normalised(at, s) if style.block else two_step(at, s))

    return run


def op_dropout(fold: bool) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at = Machine(dtype, STYLES["eager"])
        kept, p = np.where(inputs["keep"], at.read(inputs["weights"]), 0), inputs["p"]
        return at.out(kept * (at.acc(1) / at.acc(1 - p)) if fold else kept / at.acc(1 - p))

    return run


def positions(exponential: bool) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at, M, F = Machine(dtype, STYLES["eager"]), inputs["M"], inputs["F"]
        steps = np.arange(0, F, 2).astype(at.acc)
        by_exp, by_pow = np.exp(steps * at.acc(-np.log(10000.0) / F)), at.acc(1) / np.power(at.acc(10000), steps / at.acc(F))
        angle = np.arange(M - 1, -1, -1).astype(at.acc)[:, None] * (by_exp if exponential else by_pow)
        return at.out(np.concatenate([np.sin(angle), np.cos(angle)], -1))

    return run


def op_slopes(powers: bool) -> Callable[[Inputs, str], Any]:
    def run(inputs: Inputs, dtype: str) -> ndarray:
        at, H = Machine(dtype, STYLES["eager"]), inputs["n_heads"]
        return at.out(slopes(at, H) if not powers else slopes(Machine("float64", STYLES["eager"]), H).astype(at.acc))

    return run


def op_biases(inputs: Inputs, dtype: str) -> ndarray:
    at = Machine(dtype, STYLES["eager"])
    return at.out(slopes(at, inputs["n_heads"])[:, None, None] * np.cumsum(inputs["visible"], -1).astype(at.acc))


# layers


def linear(at: Machine, x: ndarray, parameters: Inputs, name: str, fused: bool = True) -> ndarray:
    weight, bias = at.read(parameters[f"{name}.weight"]), parameters.get(f"{name}.bias")
    y = x @ weight.T
    return at.join(y) if bias is None else at.join((y if fused else at.join(y)) + at.read(bias))


def split_heads(x: ndarray, H: int) -> ndarray:
    return x.reshape(*x.shape[:-1], H, -1).swapaxes(-2, -3)


def merge_heads(x: ndarray) -> ndarray:
    return x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], -1)


def layer_norm(at: Machine, z: ndarray, gain: ndarray | None, bias: ndarray | None, eps: float) -> ndarray:
    mu = z.mean(-1, keepdims=True, dtype=at.acc)
    if at.style.declared == ONE_PASS:
        rstd = 1 / np.sqrt(np.maximum((z * z).mean(-1, keepdims=True, dtype=at.acc) - mu * mu, 0) + at.acc(eps))
        y = z * rstd - mu * rstd
    else:
        y = (z - mu) / np.sqrt(((z - mu) ** 2).mean(-1, keepdims=True, dtype=at.acc) + at.acc(eps))
    return at.store(y * (1 if gain is None else at.read(gain)) + (0 if bias is None else at.read(bias)))


ONE_PASS = {"preset": "wide", "variance": "one_pass"}
LAYER_STYLES = {
    "eager": STYLES["eager"],
    "unfused": STYLES["eager_divided"],
    "fused": Style({"preset": "fused", "block": 4}, prob=True, block=4, base2=True),
    "wide": Style("wide", joined=False),
    "one_pass": Style(ONE_PASS, joined=False),
}


def self_attention(at: Machine, x: ndarray, parameters: Inputs, mask: ndarray | None = None) -> ndarray:
    q, k, v = (at.join(at.read(x) @ at.read(parameters[f"w_{name}"]).T) for name in ("query", "key", "value"))
    return at.out(weighted(at, sdpa_scores(at, q, k, mask), v)[0])


def multi_head(at: Machine, query, key, value, parameters, num_heads, attn_mask=None, key_padding_mask=None) -> Any:  # type: ignore[no-untyped-def]
    pairs = {"q_proj": query, "k_proj": key, "v_proj": value}
    q, k, v = (split_heads(linear(at, at.read(x), parameters, name, not at.style.fold), num_heads) for name, x in pairs.items())
    s = dot_scores(at, q, k)
    if attn_mask is not None:
        mask = attn_mask.reshape(-1, num_heads if attn_mask.ndim == 3 else 1, *attn_mask.shape[-2:])
        s = with_mask(at, s, ~mask if mask.dtype == bool else mask)
    s = s if key_padding_mask is None else with_mask(at, s, ~key_padding_mask[:, None, None, :])
    o = at.join(weighted(at, s, v)[0])
    return at.out(linear(at, merge_heads(o), parameters, "out_proj", not at.style.fold)), at.out(two_step(at, s))


def multi_head_self(at: Machine, x: ndarray, parameters: Inputs, num_heads: int, attn_mask=None, key_padding_mask=None) -> Any:  # type: ignore[no-untyped-def]
    return multi_head(at, x, x, x, parameters, num_heads, attn_mask, key_padding_mask)


def labml(at: Machine, query, key, value, parameters, num_heads) -> tuple[ndarray, ...]:  # type: ignore[no-untyped-def]
    pairs = {"query.linear": query, "key.linear": key, "value.linear": value}
    return tuple(split_heads(linear(at, at.read(x), parameters, name, not at.style.fold), num_heads) for name, x in pairs.items())


def relative_multi_head(at: Machine, query, key, value, parameters, num_heads, align, visible=None) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, v = labml(at, query, key, value, parameters, num_heads)
    s = learned_scores(at, q, k, *(parameters[n] for n in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")), align, visible)
    return at.out(linear(at, merge_heads(at.join(weighted(at, s, v)[0])), parameters, "output", not at.style.fold))


def alibi_multi_head(at: Machine, query, key, value, parameters, num_heads, visible) -> ndarray:  # type: ignore[no-untyped-def]
    q, k, v = labml(at, query, key, value, parameters, num_heads)
    bias = slopes(at, num_heads)[:, None, None] * np.cumsum(visible, -1).astype(at.acc)
    s = with_mask(at, at.score(dot_scores(at, q, k) + bias), visible)
    return at.out(linear(at, merge_heads(at.join(weighted(at, s, v)[0])), parameters, "output", not at.style.fold))


def txl_layer(at: Machine, x, position, parameters, num_heads, mem=None, visible=None, eps=1e-5) -> ndarray:  # type: ignore[no-untyped-def]
    x, N, fused = at.read(x), x.shape[1], not at.style.fold
    whole = x if mem is None else np.concatenate([at.read(mem), x], 1)
    q, k, v = (split_heads(part, num_heads) for part in np.split(linear(at, whole, parameters, "qkv_net", fused), 3, -1))
    r = split_heads(linear(at, at.read(position), parameters, "r_net", fused), num_heads)
    o = at.join(weighted(at, txl_scores(at, q[:, :, -N:], k, r, parameters["u"], parameters["v"], visible), v)[0])
    z = at.join(x + linear(at, merge_heads(o), parameters, "o_net", fused))
    return at.out(layer_norm(at, z, parameters["layer_norm.weight"], parameters.get("layer_norm.bias"), eps))


def txl_stack(at: Machine, x, parameters, num_heads, mems, mem_len, eps=1e-5) -> Any:  # type: ignore[no-untyped-def]
    M = x.shape[1] + (0 if mems is None else mems[0].shape[1])
    position = positions(at.style.fold)({"M": M, "F": x.shape[-1]}, at.dtype)
    hids = [at.out(at.read(x))]
    for layer, each in enumerate(parameters):
        hids.append(txl_layer(at, hids[-1], position, each, num_heads, None if mems is None else mems[layer], None, eps))
    if mems is None:
        return hids[-1], None
    whole = [np.concatenate([mem, hid], 1) for mem, hid in zip(mems, hids, strict=False)]
    return hids[-1], [x[:, max(x.shape[1] - mem_len, 0) :] for x in whole]


LAYERS: dict[str, Callable[..., Any]] = {
    "self_attention": self_attention,
    "multi_head_attention": multi_head,
    "multi_head_self_attention": multi_head_self,
    "relative_multi_head_attention": relative_multi_head,
    "alibi_multi_head_attention": alibi_multi_head,
    "transformer_xl_layer": txl_layer,
    "transformer_xl": txl_stack,
}


def layer(function: Callable[..., Any], style: Style) -> Callable[[Inputs, str], Any]:
    return lambda inputs, dtype: function(Machine(dtype, style), **inputs)


Entry = tuple[str, str, Callable[[Inputs, str], Any], Any]
SCORE_OPERATIONS: dict[str, Callable[..., ndarray]] = {
    "scaled_dot_product_score": dot_scores,
    "additive_score": lambda at, **inputs: additive_parts(at, **inputs)[1],
    "transformer_xl_score": txl_all_scores,
    "learned_relative_score": learned_all_scores,
}
ROWWISE = ("eager", "sloppy", "eager_divided", "wide", "wide_reversed", "fused_row")


def build() -> list[Entry]:
    zoo: list[Entry] = []
    for name, style in STYLES.items():
        zoo += [(op, name, attention(op, style), style.declared) for op in SCORES]
        zoo += [(f"{op}_grad", name, gradient(op, style), style.declared) for op in SCORES if not style.split]
        zoo += [("softmax", name, op_softmax(style), style.declared)] if name in ROWWISE else []
        zoo += [(op, name, op_scores(f, style), style.declared) for op, f in SCORE_OPERATIONS.items() if name in ROWWISE]
    zoo += [(op, name, layer(f, style), style.declared) for op, f in LAYERS.items() for name, style in LAYER_STYLES.items()]
    for flag, how in ((True, "one_way"), (False, "the_other")):
        zoo += [("dropout", how, op_dropout(flag), "eager"), ("sinusoidal_positions", how, positions(flag), "eager")]
        zoo += [("get_slopes", how, op_slopes(flag), "eager")]
    return [*zoo, ("get_alibi_biases", "counted", op_biases, "eager")]


ZOO = build()
__all__ = ["STYLES", "ZOO", "Machine", "Style"]
