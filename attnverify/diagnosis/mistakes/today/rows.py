"""
Mistakes in one step of an attention of today, forwards and backwards, and in what its options let a
row see.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.conventions.visibility import VISIBILITY
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import IN_BACKWARD
from attnverify.diagnosis.mistakes.sentinels import NUMBERS
from attnverify.diagnosis.mistakes.today.of_sequences import OF_SEQUENCES
from attnverify.diagnosis.mistakes.today.seen import TILES, VISIBLE, causal_further, causal_in
from attnverify.diagnosis.mistakes.today.steps import (
    LAW,
    LN2,
    Call,
    Mistake,
    Steps,
    bent,
    call_of,
    in_backward_alone,
    in_one_step,
    to_nothing,
)
from attnverify.inputs.recipe import Inputs

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
        yield from (mistake for name, mistake in OF_SEQUENCES if name == operation.name)
        if operation.is_gradient:
            yield from recomputed_mistakes(known)


def recomputed_mistakes(known: set[str]) -> Iterator[Mistake]:
    """What else scores may be of which a backward pass makes the weights again."""
    in_both = ((words, steps) for needed, words, steps in FORWARDS if {needed} <= known)
    for words, steps in (*in_both, *SEEN_IN_BACKWARD):
        if RECOMPUTED.issuperset(steps):
            yield words + IN_BACKWARD, partial(in_backward_alone, np.inf, steps)
        if "visible" in steps:
            weighed = f"{words.partition(':')[0]}{IN_BACKWARD}, by rows that saw no key too"
            yield weighed, partial(in_backward_alone, 0.0, steps)


def nowhere(j: ndarray) -> ndarray:
    """No key."""
    return j < 0


RECOMPUTED = {"visible", "seen", "cap", "add"}
"""Steps of which scores are made."""
SEEN_IN_BACKWARD: tuple[tuple[str, Steps], ...] = (
    *((words, {"visible": visible}) for _, _, words, visible in VISIBILITY),
    ("causality ignored", {"visible": partial(causal_in, nowhere)}),
)
"""Conventions of the forward pass that the backward pass alone may have."""


def of_heads(size: int, operation: Operation, inputs: Inputs) -> ndarray:
    """
    What each head sees where causality ends one key further on with each tile of heads.
    """
    heads = call_of(operation, inputs).seen.shape[1]
    further = [
        call_of(operation, inputs, partial(causal_further, step)).seen
        for step in range(-(-heads // size))
    ]
    return np.stack([further[h // size][:, h] for h in range(heads)], axis=1)


def of_tiles_of_heads(size: int) -> Steps:
    return {"seen": partial(of_heads, size)}


def with_sinks(change: Callable[[Call, ndarray], Any]) -> Steps:
    """A sink's logit that is changed where there is one."""
    return {"sink": lambda a, sink: sink if a.x.get("sink") is None else change(a, sink)}


def masked(change: Callable[[Call, ndarray, ndarray], ndarray]) -> Steps:
    return {"add": lambda a, t: t if a.mask is None else change(a, t, a.mask)}


def of_boolean(added: Callable[[ndarray, ndarray], ndarray]) -> Steps:
    """A boolean mask that hides nothing and changes the logits."""

    def boolean(x: Inputs) -> Any:
        mask = x.get("mask")
        return mask if mask is not None and mask.dtype == bool else None

    def seen(operation: Operation, inputs: Inputs) -> ndarray:
        without = {} if boolean(inputs) is None else {"mask": None}
        return call_of(operation, inputs | without).seen

    def add(a: Call, t: ndarray) -> ndarray:
        mask = boolean(a.x)
        return LAW["add"](a, t) if mask is None else added(t, mask)

    return {"seen": seen, "add": add}


def boolean_hidden_at(number: float) -> Steps:
    return of_boolean(lambda t, mask: np.asarray(np.where(mask, t, number)))


def hidden_at(number: float, empty: bool = True) -> Steps:
    """
    A number in place of minus infinity: a row that sees no key attends to all of them, or empty
    rows are set to 0 all the same.
    """

    def seen(operation: Operation, inputs: Inputs) -> ndarray:
        own = call_of(operation, inputs).seen
        return np.broadcast_to(empty | own.any(-1, keepdims=True), own.shape)

    return {
        "seen": seen,
        "add": lambda a, t: np.where(a.sees, LAW["add"](a, t), number),
        "slope": lambda a, capped: np.where(a.sees, LAW["slope"](a, capped), 0),
    }


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


def delta_of_tiles(size: int, a: Call, w: ndarray, d_w: ndarray, output: ndarray) -> ndarray:
    """For each tile of keys, each half for 0, the delta of its own output."""
    found, M = np.zeros_like(w), w.shape[-1]
    step = size or -(-M // 2)
    for tile in (np.s_[..., at : at + step] for at in range(0, M, step)):
        share = to_nothing(w[tile].sum(-1, keepdims=True))
        found[tile] = (w * d_w)[tile].sum(-1, keepdims=True) / share
    return found


def in_tiles(size: int) -> Steps:
    return {"delta": partial(delta_of_tiles, size)}


def of_one_head(place: int, a: Call, y: ndarray) -> ndarray:
    B, H = y.shape[:2]
    return y.reshape(B, H // a.share, a.share, *y.shape[2:])[:, :, place]


def sharing(summed: Callable[[Call, ndarray], ndarray]) -> Steps:
    return {"summed": summed}


def folded_in_turn(a: Call, y: ndarray) -> ndarray:
    B, H = y.shape[:2]
    return y.reshape(B, a.share, H // a.share, *y.shape[2:]).sum(1)


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


def of_flat_rows(a: Call, sink: ndarray) -> ndarray:
    H, N = a.seen.shape[-3:-1]
    return sink[(np.arange(H)[:, None] * N + np.arange(N)) % H, 0]


def overflowing(size: int, total: float) -> Steps:
    """
    A sink of which the maximum of the first tile is subtracted, far below 0 where a row sees none
    of it: its sum is infinite, and not a number beside other keys.
    """

    def without(a: Call) -> ndarray:
        none = ~a.seen[..., :size].any(-1, keepdims=True)
        return np.asarray(none & (a.x.get("sink") is not None))

    def lse(a: Call, top: ndarray, found: ndarray) -> ndarray:
        empty = np.where(a.seen.any(-1, keepdims=True), -np.inf if total == 1 else np.nan, np.inf)
        return np.where(without(a), empty, LAW["lse"](a, top, found))

    return {
        "sink": lambda a, sink: np.where(without(a), -np.inf, sink),
        "shares": lambda a, e, found: np.where(without(a), e / total, LAW["shares"](a, e, found)),
        "lse": lse,
    }


FORWARDS: tuple[tuple[str, str, Steps], ...] = (
    *(
        ("query", f"query heads that read the heads of {name}s alone in turn", in_turn(name))
        for name in ("key", "value")
    ),
    ("scale", "a given scale that divides", scaled(lambda scale, D: 1 / scale)),
    ("scale", "a given scale times 1/sqrt(D)", scaled(lambda scale, D: scale * D**-0.5)),
    ("scale", "a given scale that multiplies twice", scaled(lambda scale, D: scale**2)),
    *(("query", words, {"visible": visible}) for words, visible in VISIBLE),
    *(
        ("query", f"causality that counts the first head of each tile of {size} heads as a row: "
         "later heads see keys of the future", of_tiles_of_heads(size))
        for size in (2, 4, 8, 16)
    ),
    ("mask", "boolean masks added as ones and zeros", of_boolean(lambda t, mask: t + mask)),
    *(
        ("mask", say.BOOLEAN_HIDDEN_AT.format(number=number),
         boolean_hidden_at(number))
        for number in NUMBERS
    ),
    *(("mask", say.HIDDEN_AT.format(number=number), hidden_at(number)) for number in NUMBERS),
    *(
        ("mask", say.HIDDEN_AT_BUT.format(number=number), hidden_at(number, False))
        for number in NUMBERS
    ),
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
    ("soft_cap", "a soft cap that multiplies by the score in place of the cap: s tanh(s / c)",
     capping(lambda a, score: score * a.factor * np.tanh(score * a.factor / a.cap))),
    ("soft_cap", "a soft cap that multiplies within too: c tanh(c s)",
     capping(lambda a, score: a.cap * np.tanh(score * a.factor * a.cap))),
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
    ("sink", "the sink of the number modulo H that a row has among those of all heads",
     with_sinks(of_flat_rows)),
    ("sink", "a sink from which the maximum is not subtracted",
     massed(lambda a, rest, top: np.exp(rest) + 0 * top)),
    ("sink", "a sink added to the sum as it is, not its exponential",
     massed(lambda a, rest, top: rest + 0 * top)),
    *(
        ("sink", f"a sink added anew with each tile of {size} keys",
         massed(partial(in_each_tile, size)))
        for size in TILES
    ),
    *(
        ("sink", f"a sink whose exponential overflows where a row sees none of the first {size} "
         f"keys, less a maximum of none: {words}", overflowing(size, normalised))
        for size in (8, *TILES)
        for words, normalised in (("NaN", np.nan), ("nothing divides", 1.0))
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
    *(
        ("query", words, in_tiles(size))
        for words, size in (
            ("a delta of each half of the keys alone", 0),
            *((f"a delta of each tile of {size} keys alone", size) for size in (8, *TILES)),
        )
    ),
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
