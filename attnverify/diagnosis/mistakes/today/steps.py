"""
The formula of today's attentions, forwards and backwards, as steps of which each may be another: a
cap, a float mask, a sink, a normaliser, an lse, a delta, what heads that share keys add up.
Sequences that lie end to end, a pool and a latent are read as heads in front of positions, so that
a row of :mod:`attnverify.diagnosis.mistakes.today.rows` holds for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.packing import Visible, apart, heads_first
from attnverify.inputs.masks import seen_pairs
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
    r heads share each head of keys, what is left visible [B H N M], and what the law leaves.
    """

    x: Inputs
    seen: ndarray
    sees: ndarray

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


def scored(call: Call, law: Steps) -> tuple[ndarray, ndarray]:
    """The logits, minus infinity where a key is hidden, and the capped scores that they are of."""
    score = call.x["query"] @ np.repeat(call.x["key"], call.share, 1).swapaxes(-1, -2)
    capped = law["cap"](call, score)
    return np.where(call.seen, law["add"](call, capped), -np.inf), capped


def attended(call: Call, steps: Steps) -> tuple[ndarray, ...]:
    """Weights, output and lse [B H N 1], the capped scores, and the weight of the sink."""
    law = LAW | steps
    t, capped = scored(call, law)
    rest = law["sink"](call, call.sink)
    top = np.maximum(t.max(-1, keepdims=True), rest)
    top = np.where(top == -np.inf, 0, top)
    e, mass = np.exp(t - top), law["mass"](call, rest, top)
    total = law["total"](call, e, mass)
    weights = np.where(call.seen, law["shares"](call, e, total), 0)
    output = weights * law["kept"](call) @ call.of_heads("value")
    return weights, output, law["lse"](call, top, total), capped, mass / to_nothing(total)


def differentiated(call: Call, steps: Steps, forward: tuple[ndarray, ...]) -> tuple[ndarray, ...]:
    """The gradients by query, key, value, a float mask and a sink, of what :func:`attended` was."""
    law, x = LAW | steps, call.x
    w, output, _, capped, of_sink = forward
    w = law["weights_back"](call, w)
    key, value, d_lse = call.of_heads("key"), call.of_heads("value"), arriving(x)
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


def arriving(x: Inputs) -> Any:
    """The gradient by the lse, of an attention that returns none 0."""
    return x["d_lse"][..., None] if "d_lse" in x else 0.0


def call_of(operation: Operation, inputs: Inputs, visible: Visible = visible_keys) -> Call:
    given = dict(apart(inputs))
    seen = seen_pairs(operation, given, visible)
    x = heads_first(given) if operation.is_packed or "latent" in given else given
    shape = (*x["query"].shape[:3], x["key"].shape[2])
    seen = np.broadcast_to(seen, shape)
    return Call(x, seen, seen)


def changed_call(steps: Steps, operation: Operation, inputs: Inputs) -> Call:
    """One call with what these steps see and are given."""
    call = call_of(operation, inputs, steps.get("visible", visible_keys))
    if "seen" in steps:
        call = replace(call, seen=steps["seen"](operation, inputs))
    return replace(call, x=call.x | steps["given"](call)) if "given" in steps else call


def in_one_step(steps: Steps, operation: Operation, inputs: Inputs) -> Any:
    """What the operation returns with these steps in place of the formula's."""
    call = changed_call(steps, operation, inputs)
    with np.errstate(all="ignore"):
        forward = attended(call, steps)
        if not operation.is_gradient:
            _, output, lse, *_ = forward
            return as_given(operation, (output, lse[..., 0]))
        return gradients(operation, inputs, differentiated(call, steps, forward))


def in_backward_alone(empty: float, steps: Steps, operation: Operation, inputs: Inputs) -> Any:
    """
    Return the gradients by weights exp(score - lse) of scores that these steps change, with the
    output and the lse of the formula's; ``empty`` is the lse of a row that saw no key.
    """
    call = changed_call(steps, operation, inputs)
    with np.errstate(all="ignore"):
        _, output, lse, _, of_sink = attended(call_of(operation, inputs), {})
        t, capped = scored(call, LAW | steps)
        weights = np.where(call.seen, np.exp(t - np.where(lse == -np.inf, empty, lse)), 0)
        forward = weights, output, lse, capped, of_sink
        return gradients(operation, inputs, differentiated(call, steps | OF_OUTPUT, forward))


OF_OUTPUT: Steps = {
    "delta": lambda a, w, d_w, output: (output * a.x["d_output"]).sum(-1, keepdims=True)
}
"""A delta of the output that the forward pass has returned."""


def gradients(operation: Operation, inputs: Inputs, found: tuple[ndarray, ...]) -> Any:
    """The gradients by what the operation is given: a latent is both a key and a value."""
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
