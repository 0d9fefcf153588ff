"""
Mistakes in one step of an attention of today, forwards and backwards: a cap, a float mask, a sink,
a normaliser, an lse, a delta, what heads that share keys add up. Sequences that lie end to end, a
pool and a latent are read as heads in front of positions, so that a row holds for all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.packing import Visible, apart, heads_first
from attnverify.conventions.visibility import real_offset
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Inputs
from attnverify.reference.gradients import mask_grad
from attnverify.spec.masks import visible_keys

LN2 = float(np.log(2.0))
Mistake = tuple[str, Callable[[Operation, Inputs], Any]]
Steps = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class Call:
    """
    One call with its heads in front: query [B H N D], key [B G M D], value [B G M E], of which
    r heads share each head of keys, and what is left visible [B H N M].
    """

    x: Inputs
    seen: ndarray

    @property
    def share(self) -> int:
        return int(self.x["query"].shape[1] // self.x["key"].shape[1])

    @property
    def factor(self) -> float:
        given = self.x.get("scale")
        return float(self.x["query"].shape[-1] ** -0.5 if given is None else given)

    @property
    def cap(self) -> Any:
        return self.x.get("soft_cap")

    @property
    def mask(self) -> Any:
        """The finite numbers of a float mask."""
        mask = self.x.get("mask")
        return None if mask is None or mask.dtype == bool else np.where(mask == -np.inf, 0, mask)

    @property
    def sink(self) -> ndarray:
        given = self.x.get("sink")
        H = self.x["query"].shape[1]
        return np.full((H, 1, 1), -np.inf) if given is None else given[:, None, None]

    def of_heads(self, name: str) -> ndarray:
        """Keys or values for each query head, 0 where no row of it sees them."""
        used: ndarray = np.asarray(self.seen.any(-2))
        return np.where(used[..., None], np.repeat(self.x[name], self.share, 1), 0)

    def kept(self, factor: Callable[[float], float] = lambda p: 1 / (1 - p)) -> Any:
        """What a draw multiplies weights by."""
        keep = self.x.get("keep")
        return 1.0 if keep is None else np.where(keep, factor(self.x["p"]), 0.0)

    def summed(self, y: ndarray) -> ndarray:
        """What the query heads that share a head of keys send to it."""
        B, H = y.shape[:2]
        return y.reshape(B, H // self.share, self.share, *y.shape[2:]).sum(2)


def bent(cap: Any, score: ndarray) -> ndarray:
    return score if cap is None else cap * np.tanh(score / cap)


def to_nothing(total: ndarray) -> ndarray:
    return np.where(total == 0, 1, total)


LAW: Steps = {
    "cap": lambda a, score: bent(a.cap, score * a.factor),
    "add": lambda a, t: t if a.mask is None else t + a.mask,
    "sink": lambda a, sink: sink,
    "mass": lambda a, rest, top: np.exp(rest - top),
    "total": lambda a, e, mass: e.sum(-1, keepdims=True) + mass,
    "shares": lambda a, e, total: e / to_nothing(total),
    "lse": lambda a, top, total: np.where(total == 0, -np.inf, top + np.log(to_nothing(total))),
    "kept": lambda a: a.kept(),
    "kept_back": lambda a: a.kept(),
    "weights_back": lambda a, w: w,
    "delta": lambda a, w, d_w, out: (w * d_w).sum(-1, keepdims=True),
    "slope": lambda a, capped: 1.0 if a.cap is None else 1 - (capped / a.cap) ** 2,
    "summed": lambda a, y: a.summed(y),
}
"""The steps of the formula, of a call and of what came before."""


def attended(call: Call, steps: Steps) -> tuple[ndarray, ...]:
    """Weights, output and lse [B H N 1], the capped scores, and the weight of the sink."""
    law = LAW | steps
    score = call.x["query"] @ np.repeat(call.x["key"], call.share, 1).swapaxes(-1, -2)
    capped = law["cap"](call, score)
    t = np.where(call.seen, law["add"](call, capped), -np.inf)
    rest = law["sink"](call, call.sink)
    top = np.maximum(t.max(-1, keepdims=True), rest)
    top = np.where(top == -np.inf, 0, top)
    e, mass = np.exp(t - top), law["mass"](call, rest, top)
    total = law["total"](call, e, mass)
    weights = np.where(call.seen, law["shares"](call, e, total), 0)
    output = weights * law["kept"](call) @ call.of_heads("value")
    return weights, output, law["lse"](call, top, total), capped, mass / to_nothing(total)


def differentiated(call: Call, steps: Steps) -> tuple[ndarray, ...]:
    """The gradients by query, key, value, a float mask and a sink."""
    law, x = LAW | steps, call.x
    w, output, _, capped, of_sink = attended(call, steps)
    w = law["weights_back"](call, w)
    key, value, d_lse = call.of_heads("key"), call.of_heads("value"), x["d_lse"][..., None]
    d_w = x["d_output"] @ value.swapaxes(-1, -2) * law["kept_back"](call)
    delta = law["delta"](call, w, d_w, output)
    d_t = np.where(call.seen, w * (d_w - delta + d_lse), 0)
    d_score = np.where(call.seen, d_t * law["slope"](call, capped), 0) * call.factor
    d_key = law["summed"](call, d_score.swapaxes(-1, -2) @ x["query"])
    d_value = law["summed"](call, (w * law["kept"](call)).swapaxes(-1, -2) @ x["d_output"])
    by_sink = (of_sink * (d_lse - delta)).sum((0, 2, 3))
    return (
        d_score @ key,
        d_key,
        d_value,
        *mask_grad(d_t, x.get("mask")),
        *(() if x.get("sink") is None else (by_sink,)),
    )


def call_of(operation: Operation, inputs: Inputs, visible: Visible = visible_keys) -> Call:
    given = dict(apart(inputs))
    seen = visible_pairs(operation, given, visible)
    assert seen is not None
    x = heads_first(given) if operation.is_packed or "latent" in given else given
    shape = (*x["query"].shape[:3], x["key"].shape[2])
    return Call(x, np.broadcast_to(seen, shape))


def in_one_step(steps: Steps, operation: Operation, inputs: Inputs) -> Any:
    """What the operation returns with these steps in place of the formula's."""
    call = call_of(operation, inputs, steps.get("visible", visible_keys))
    if "given" in steps:
        call = replace(call, x=call.x | steps["given"](call))
    with np.errstate(all="ignore"):
        if not operation.is_gradient:
            _, output, lse, *_ = attended(call, steps)
            return as_given(operation, (output, lse[..., 0]))
        found = differentiated(call, steps)
    if "latent" in inputs:
        E, (d_q, d_k, d_v, *others) = inputs["latent"].shape[-1], found
        by_latent = (d_k[..., :E] + d_v)[:, 0]
        found = (d_q[..., :E], d_q[..., E:], by_latent, d_k[:, 0, :, E:], *others)
    return as_given(operation, found)


def as_given(operation: Operation, found: tuple[ndarray, ...]) -> tuple[ndarray, ...]:
    """Heads behind tokens where the operation has them there."""
    if not operation.is_packed:
        return found
    return tuple(y if y.ndim == 1 else y[0].swapaxes(0, 1) for y in found)


OF_TODAY = tuple(
    f"{name}_attention" for name in ("grouped", "packed", "paged", "latent", "selected")
)


def todays_mistakes(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each that the operation can show."""
    if operation.forward.name in OF_TODAY:
        known, rows = set(operation.arguments), (*FORWARDS, *BACKWARDS * operation.is_gradient)
        for needed, words, steps in rows:
            if set(needed.split()) <= known:
                yield words, partial(in_one_step, steps)


def with_sinks(change: Callable[[Call, ndarray], Any]) -> Steps:
    """A sink's logit that is changed where there is one."""
    return {"sink": lambda a, sink: sink if a.x.get("sink") is None else change(a, sink)}


def masked(change: Callable[[Call, ndarray, ndarray], ndarray]) -> Steps:
    return {"add": lambda a, t: t if a.mask is None else change(a, t, a.mask)}


def capping(change: Callable[[Call, ndarray], ndarray]) -> Steps:
    return {"cap": lambda a, score: LAW["cap"](a, score) if a.cap is None else change(a, score)}


def massed(change: Callable[[Call, ndarray, ndarray], ndarray]) -> Steps:
    def mass(a: Call, rest: ndarray, top: ndarray) -> ndarray:
        own = LAW["mass"](a, rest, top)
        return own if a.x.get("sink") is None else change(a, rest, top)

    return {"mass": mass}


def logged(change: Callable[[ndarray, ndarray, float], ndarray]) -> Steps:
    def lse(a: Call, top: ndarray, total: ndarray) -> ndarray:
        return np.where(total == 0, -np.inf, change(top, to_nothing(total), a.factor))

    return {"lse": lse}


def drawn(factor: Callable[[float], float], *steps: str) -> Steps:
    """Another factor on what dropout keeps, forwards or backwards."""
    return {step: lambda a: a.kept(factor) for step in steps}


def sloped(change: Callable[[Call, ndarray], Any]) -> Steps:
    return {"slope": lambda a, capped: 1.0 if a.cap is None else change(a, capped)}


def without_sink(own_delta: bool) -> Steps:
    """Weights that are recomputed from an lse of the keys alone, with delta of the output."""

    def alone(a: Call, w: ndarray) -> ndarray:
        return w / to_nothing(w.sum(-1, keepdims=True))

    def delta(a: Call, w: ndarray, d_w: ndarray, output: ndarray) -> Any:
        return (output * a.x["d_output"]).sum(-1, keepdims=True)

    return {"weights_back": alone} | ({} if own_delta else {"delta": delta})


def in_each_tile(size: int, a: Call, rest: ndarray, top: ndarray) -> ndarray:
    return np.exp(rest - top) * -(-a.seen.shape[-1] // size)


def of_one_head(place: int, a: Call, y: ndarray) -> ndarray:
    B, H = y.shape[:2]
    return y.reshape(B, H // a.share, a.share, *y.shape[2:])[:, :, place]


def sharing(summed: Callable[[Call, ndarray], ndarray]) -> Steps:
    return {"summed": summed}


def folded_in_turn(a: Call, y: ndarray) -> ndarray:
    B, H = y.shape[:2]
    return y.reshape(B, a.share, H // a.share, *y.shape[2:]).sum(1)


def places(B: int, N: int, M: int, options: Any) -> tuple[ndarray, ndarray, ndarray]:
    """The number of each row, its position [B N 1], and the keys."""
    i = np.arange(N)[None, :, None]
    offset = real_offset({"B": B, "N": N, "M": M, **options})
    return i, i + np.asarray(offset)[:, None, None], np.arange(M)


def strictly_causal(B: int, N: int, M: int, **options: Any) -> ndarray:
    _, at, j = places(B, N, M, options)
    seen = visible_keys(B, N, M, **options)
    return seen & (j < at) if options.get("causal") else seen


def causal_in(within: Callable[[ndarray], ndarray], B: int, N: int, M: int, **o: Any) -> ndarray:
    """Causality that holds for some keys alone."""
    offset = real_offset({"B": B, "N": N, "M": M, **o})
    seen, every = (
        visible_keys(B, N, M, **o | new) for new in ({}, {"causal": False, "offset": offset})
    )
    return np.where(within(np.arange(M)), seen, every)


def window_of_rows(B: int, N: int, M: int, **options: Any) -> ndarray:
    """A window around the number of each row, and not its position."""
    i, _, j = places(B, N, M, options)
    left, right = options.get("window") or (None, None)
    seen = visible_keys(B, N, M, **options | {"window": None})
    seen = seen if left is None else seen & ((j >= i - left) | (j < options.get("pinned", 0)))
    return seen if right is None else seen & (j <= i + right)


def chunk_of_rows(B: int, N: int, M: int, **options: Any) -> ndarray:
    i, _, j = places(B, N, M, options)
    chunk = options.get("chunk")
    seen = visible_keys(B, N, M, **options | {"chunk": None})
    return seen if chunk is None else seen & (j // chunk == i // chunk)


def half_windows(B: int, N: int, M: int, **options: Any) -> ndarray:
    """A window of half as many keys on its left."""
    left, right = options.get("window") or (None, None)
    halved = options.get("window") and (None if left is None else left // 2, right)
    return visible_keys(B, N, M, **options | {"window": halved})


TILES = (16, 32, 64, 128)
VISIBLE: tuple[tuple[str, Visible], ...] = (
    ("a causal mask that hides the row's own key too", strictly_causal),
    ("a window counted from a row's number in its call, not from its position", window_of_rows),
    ("chunks counted from a row's number in its call, not from its position", chunk_of_rows),
    ("a left window of half as many keys", half_windows),
    *(
        (words.format(size=size), partial(causal_in, partial(within, size)))
        for size in TILES
        for words, within in (
            ("causality in the first tile of {size} keys alone", lambda size, j: j < size),
            ("no causality in the first tile of {size} keys", lambda size, j: j >= size),
        )
    ),
)
"""What is seen instead, of the options of a call."""


def in_turn(name: str) -> Steps:
    """Query head h reads head h mod G of keys or of values."""

    def given(a: Call) -> Inputs:
        tiled, repeated = np.tile(a.x[name], (1, a.share, 1, 1)), partial(np.repeat, axis=1)
        names = ("key", "value")
        return {n: tiled if n == name else repeated(a.x[n], a.share) for n in names}

    return {"given": given}


def scaled(change: Callable[[float, int], float]) -> Steps:
    def given(a: Call) -> Inputs:
        scale = a.x.get("scale")
        return {} if scale is None else {"scale": change(scale, a.x["query"].shape[-1])}

    return {"given": given}


FORWARDS: tuple[tuple[str, str, Steps], ...] = (
    *(
        ("query", f"query heads that read the heads of {name}s alone in turn", in_turn(name))
        for name in ("key", "value")
    ),
    ("scale", "a given scale that divides", scaled(lambda scale, D: 1 / scale)),
    ("scale", "a given scale times 1/sqrt(D)", scaled(lambda scale, D: scale * D**-0.5)),
    ("scale", "a given scale that multiplies twice", scaled(lambda scale, D: scale**2)),
    *(("query", words, {"visible": visible}) for words, visible in VISIBLE),
    ("mask", "a float mask subtracted", masked(lambda a, t, mask: t - mask)),
    ("mask", "a float mask scaled with the scores", masked(lambda a, t, mask: t + mask * a.factor)),
    ("mask", "a float mask added twice", masked(lambda a, t, mask: t + 2 * mask)),
    ("mask", "the finite numbers of a float mask ignored", masked(lambda a, t, mask: t)),
    ("mask", "a float mask multiplied with the scores", masked(lambda a, t, mask: t * mask)),
    ("soft_cap", "a soft cap before the scale",
     capping(lambda a, score: bent(a.cap, score) * a.factor)),
    ("soft_cap", "a soft cap that does not multiply: tanh(score / c)",
     capping(lambda a, score: np.tanh(score * a.factor / a.cap))),
    ("soft_cap", "a soft cap that does not divide: c tanh(score)",
     capping(lambda a, score: a.cap * np.tanh(score * a.factor))),
    ("soft_cap", "scores clipped at the soft cap, without its tanh",
     capping(lambda a, score: np.clip(score * a.factor, -a.cap, a.cap))),
    ("soft_cap", "a soft cap whose scale multiplies twice, within the tanh and behind it",
     capping(lambda a, score: bent(a.cap, score * a.factor) * a.factor)),
    ("sink", "a sink that is scaled as scores are", with_sinks(lambda a, sink: sink * a.factor)),
    ("sink", "a sink with the other sign", with_sinks(lambda a, sink: -sink)),
    ("sink", "a sink whose exponential is to base 2 while scores are to base e",
     with_sinks(lambda a, sink: sink * LN2)),
    ("sink", "a sink multiplied by log2(e) in powers of e",
     with_sinks(lambda a, sink: sink / LN2)),
    ("sink", "the mean of the sinks for every head",
     with_sinks(lambda a, sink: np.full_like(sink, sink.mean()))),
    ("sink", "a sink from which the maximum is not subtracted",
     massed(lambda a, rest, top: np.exp(rest) + 0 * top)),
    ("sink", "a sink added to the sum as it is, not its exponential",
     massed(lambda a, rest, top: rest + 0 * top)),
    *(
        ("sink", f"a sink added anew with each tile of {size} keys",
         massed(partial(in_each_tile, size)))
        for size in TILES
    ),
    ("query", "an lse that is the largest logit, the sum left out",
     logged(lambda top, total, factor: top)),
    ("query", "an lse without the maximum: the logarithm of the sum alone",
     logged(lambda top, total, factor: np.log(total))),
    ("query", "an lse that is the sum of the exponentials, without the logarithm",
     {"lse": lambda a, top, total: np.exp(top) * total}),
    ("query", "an lse with the other sign",
     {"lse": lambda a, top, total: -LAW["lse"](a, top, total)}),
    ("query", "an lse whose maximum is in base e and whose sum in base 2",
     logged(lambda top, total, factor: top + np.log2(total))),
    ("query", "an lse whose maximum is in base 2 and whose sum in base e",
     logged(lambda top, total, factor: top / LN2 + np.log(total))),
    ("query", "an lse that has the maximum twice",
     logged(lambda top, total, factor: 2 * top + np.log(total))),
    ("query", "an lse whose maximum is not scaled",
     logged(lambda top, total, factor: top / factor + np.log(total))),
    ("query", "an lse whose maximum is scaled twice",
     logged(lambda top, total, factor: top * factor + np.log(total))),
    ("query", "an output that is not divided by the sum of the exponentials",
     {"shares": lambda a, e, total: e}),
    ("keep", "dropout ignored", {"kept": lambda a: 1.0, "kept_back": lambda a: 1.0}),
    ("keep", "kept weights that are not scaled", drawn(lambda p: 1.0, "kept", "kept_back")),
    ("keep", "kept weights scaled by 1-p", drawn(lambda p: 1 - p, "kept", "kept_back")),
    ("keep", "kept weights scaled by 1/p", drawn(lambda p: 1 / (p or 1), "kept", "kept_back")),
    ("keep", "dropped keys left out of the normaliser, so that kept weights are renormalised",
     {"total": lambda a, e, mass: (e * (a.kept() != 0)).sum(-1, keepdims=True) + mass}),
)  # fmt: skip

BACKWARDS: tuple[tuple[str, str, Steps], ...] = (
    ("query", "a gradient without delta, the row mean of the softmax",
     {"delta": lambda a, w, d_w, out: 0 * d_w[..., :1]}),
    ("query", "a delta that is the mean over the width of the values, not the sum",
     {"delta": lambda a, w, d_w, out: (
         LAW["delta"](a, w, d_w, out) / a.x["d_output"].shape[-1])}),
    ("query", "a delta that is counted twice",
     {"delta": lambda a, w, d_w, out: 2 * LAW["delta"](a, w, d_w, out)}),
    ("query", "a delta of the next head",
     {"delta": lambda a, w, d_w, out: np.roll(LAW["delta"](a, w, d_w, out), -1, 1)}),
    ("query", "a delta of the head before",
     {"delta": lambda a, w, d_w, out: np.roll(LAW["delta"](a, w, d_w, out), 1, 1)}),
    ("query", "a delta added, not subtracted",
     {"delta": lambda a, w, d_w, out: -LAW["delta"](a, w, d_w, out)}),
    ("sink", "a delta over weights that sum to 1 without the sink",
     {"delta": lambda a, w, d_w, out: (
         LAW["delta"](a, w, d_w, out) / to_nothing(w.sum(-1, keepdims=True)))}),
    *(
        ("sink", f"a backward whose weights sum to 1 without the sink{delta}", without_sink(own))
        for own, delta in ((False, ""), (True, ", delta of these weights too"))
    ),
    ("keep", "a delta that forgets dropout",
     {"delta": lambda a, w, d_w, out: (
         w * (a.x["d_output"] @ a.of_heads("value").swapaxes(-1, -2))).sum(-1, keepdims=True)}),
    ("keep", "a gradient of the weights that forgets dropout", {"kept_back": lambda a: 1.0}),
    ("keep", "a gradient of the weights whose dropout is not scaled by 1/(1-p)",
     drawn(lambda p: 1.0, "kept_back")),
    ("keep", "a gradient of the weights whose dropout is scaled by 1/(1-p) twice",
     drawn(lambda p: (1 - p) ** -2, "kept_back")),
    ("soft_cap", "a gradient that leaves out the cap's slope 1 - (t / c)^2",
     sloped(lambda a, capped: 1.0)),
    ("soft_cap", "a cap's slope without its square, 1 - |t| / c",
     sloped(lambda a, capped: 1 - np.abs(capped) / a.cap)),
    ("soft_cap", "a cap's slope whose t is not divided by c",
     sloped(lambda a, capped: 1 - capped**2)),
    ("soft_cap", "a cap's slope of scores that have the float mask in them",
     sloped(lambda a, capped: 1 - ((capped if a.mask is None else capped + a.mask) / a.cap) ** 2)),
    ("soft_cap", "a cap's slope that is the square, (t / c)^2",
     sloped(lambda a, capped: (capped / a.cap) ** 2)),
    *(
        ("query", f"gradients by keys and values from the {which} head of each group alone",
         sharing(partial(of_one_head, place)))
        for which, place in (("first", 0), ("last", -1))
    ),
    ("query", "gradients by keys and values summed over the group, times its heads once more",
     {"summed": lambda a, y: a.summed(y) * a.share}),
    ("query", "gradients by keys and values of heads that are summed in turn, not by neighbours",
     {"summed": folded_in_turn}),
)  # fmt: skip
