"""
Mistakes of gradients: sums that are not summed, a memory that is not cut off, the width of the key
for the value's, a delta of an upstream gradient that lies otherwise in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.mistakes.misread import takes
from attnverify.diagnosis.mistakes.strides import READINGS, arranged_inputs, widened
from attnverify.inputs.recipe import Inputs
from attnverify.judge.observation import Observation
from attnverify.reference.gradients import row_mean
from attnverify.reference.staged_attention import StagedAttention, dropped, evaluate, spec_stages

Answer = Callable[[Operation, Inputs], Any]
PLACES = {"first": 0, "last": -1}


def gradient_mistakes(operation: Operation) -> Iterator[tuple[str, Answer]]:
    """Words and function of each mistake that the gradient can show."""
    if operation.is_gradient:
        yield from ((words, answer) for shows, words, answer in ROWS if shows(operation))


def of_one_entry(x: ndarray, axis: int, place: int) -> ndarray:
    """The same with zeros but at one place of an axis."""
    kept = np.arange(x.shape[axis]) == place % x.shape[axis]
    return x * kept.reshape(-1, *(1,) * (x.ndim - axis - 1))


def with_one_part_of_mask(operation: Operation, inputs: Inputs, place: int) -> Any:
    """Return the gradients, that by a mask of one head or batch entry where they share it."""
    found, mask, d_output = operation.reference(**inputs), inputs.get("mask"), inputs["d_output"]
    if mask is None or mask.dtype == bool:
        return found
    full = (1,) * (d_output.ndim - mask.ndim) + mask.shape
    for axis, size in enumerate(full[:-2]):
        d_output = of_one_entry(d_output, axis, place) if size == 1 else d_output
    return *found[:-1], operation.reference(**inputs | {"d_output": d_output})[-1]


def with_one_entry_of_biases(operation: Operation, inputs: Inputs, place: int) -> Any:
    """Return the gradients, those by biases of one batch entry."""
    arriving = {
        name: of_one_entry(x, 0, place)
        for name, x in inputs.items()
        if name.startswith("d_") and isinstance(x, ndarray)
    }
    whole, one = operation.reference(**inputs), operation.reference(**inputs | arriving)
    return tuple(
        {name: (part if name.endswith(".bias") else own)[name] for name in own}
        if isinstance(own, dict)
        else own
        for own, part in zip(whole, one, strict=True)
    )


def exchanged(operation: Operation, inputs: Inputs) -> Any:
    """Return the gradients, those by a norm's weight and bias (0 where it has none) exchanged."""
    own = inputs["parameters"]
    weights = [name for name in own if name.endswith("norm.weight")]
    biases = [name.removesuffix("weight") + "bias" for name in weights]
    zeros = {bias: np.zeros_like(own[name]) for name, bias in zip(weights, biases, strict=True)}
    given = inputs | {"parameters": zeros | {n: x for n, x in own.items() if x is not None}}
    other = dict(zip([*weights, *biases], [*biases, *weights], strict=True))
    return tuple(
        {name: None if own[name] is None else part[other.get(name, name)] for name in own}
        if isinstance(part, dict)
        else part
        for part in operation.reference(**given)
    )


SPILT = "a last tile of {size} rows or keys written whole, over the first ones of the next head"


def with_spilt_tiles(size: int, operation: Operation, inputs: Inputs) -> Any:
    """Return the gradients, 0 where the head before has written beyond its end."""

    def spilt(x: Any) -> Any:
        if x is None or np.ndim(x) != 4 or x.shape[2] <= size:
            return x
        heads = x.reshape(-1, *x.shape[2:]).copy()
        heads[1:, : -x.shape[2] % size] = 0
        return heads.reshape(x.shape)

    return tuple(map(spilt, operation.reference(**inputs)))


def with_one_reader(operation: Operation, inputs: Inputs, place: int) -> Any:
    """Return the gradients, those by rows of a table of the first or last pair that reads each."""
    law = spec_stages(operation, inputs)
    N, M = law.shape[-2:]
    reads = np.arange(M) - np.arange(N)[:, None]
    readers = [np.flatnonzero(reads.ravel() == row)[place] for row in np.unique(reads)]
    alone = np.isin(np.arange(N * M), readers).reshape(N, M)

    def score_grad(w: ndarray, visible: ndarray, d_weights: ndarray, mean: ndarray) -> ndarray:
        return np.where(visible & alone, w * (d_weights - mean), 0)

    own, one = evaluate(law), evaluate(replace(law, backward={"score_grad": score_grad}))
    return *own[:3], *one[3:5], *own[5:]


def within_key_width(operation: Operation, inputs: Inputs) -> Any:
    """Return the gradients of the columns that value and query share."""
    return operation.reference(**inputs | cut_to_key_width(inputs))


def within_key_width_but_delta(operation: Operation, inputs: Inputs) -> Any:
    """Return the same with the sum over the output and its gradient as it is."""
    cut = inputs | cut_to_key_width(inputs)
    return evaluate_with_delta(spec_stages(operation, cut), inputs, inputs["d_output"])


def cut_to_key_width(inputs: Inputs) -> Inputs:
    kept = np.arange(inputs["value"].shape[-1]) < inputs["query"].shape[-1]
    return {name: inputs[name] * kept for name in ("value", "d_output")}


ROW_AGAIN = (
    "rows behind the end, up to a whole tile of {size}, not left out of the gradients by key and "
    "value: the last row counted again for each"
)


def with_last_row_again(size: int, operation: Operation, inputs: Inputs) -> Any:
    """Return the gradients, those by key and value of a last row that counts several times."""
    N = inputs["query"].shape[-2]
    times = np.where(np.arange(N) < N - 1, 1, 1 + -N % size)
    more = {"d_output": inputs["d_output"] * times[:, None]}
    more |= {"d_lse": inputs["d_lse"] * times} if "d_lse" in inputs else {}
    found, again = operation.reference(**inputs), operation.reference(**inputs | more)
    return found[0], *again[1:3], *found[3:]


OVERWRITTEN = (
    "gradients by key and value that are overwritten, not summed: those of the {which} row alone "
    "that sees a key"
)
MOST_ROWS = 64
"""Of so many rows at most each is differentiated alone."""


def with_one_row(operation: Operation, inputs: Inputs, place: int) -> Any:
    """Return the gradients, those by key and value of the first or last row that sees a key."""
    found, arriving = operation.reference(**inputs), ("d_output", "d_lse")
    packed = inputs["query"].ndim == 3
    axes = (0, 0) if packed else (-2, -1)
    N = inputs["query"].shape[axes[0]]
    if N > MOST_ROWS:
        return found
    by_key, by_value = np.zeros_like(found[1]), np.zeros_like(found[2])
    for i in range(N)[:: 1 if place else -1]:
        one = {
            name: of_one_entry(inputs[name], axis % inputs[name].ndim, i)
            for name, axis in zip(arriving, axes, strict=True)
            if name in inputs
        }
        key, value = operation.reference(**inputs | one)[1:3]
        seen = key.any(-1, keepdims=True) | value.any(-1, keepdims=True)
        by_key, by_value = np.where(seen, key, by_key), np.where(seen, value, by_value)
    return found[0], by_key, by_value, *found[3:]


def through_memory(operation: Operation, inputs: Inputs) -> Any:
    """Return what arrives at the new memory, at the positions that it was made of."""
    hids, mems, arriving = inputs["hids"], inputs["mems"], inputs["d_new_mems"]
    if mems is None:
        return operation.reference(**inputs)
    d_hids, d_mems = [], []
    for hid, mem, d in zip(hids, mems, arriving, strict=True):
        whole = np.zeros((hid.shape[0], mem.shape[1] + hid.shape[1], hid.shape[2]))
        whole[:, whole.shape[1] - d.shape[1] :] = d
        d_mems.append(whole[:, : mem.shape[1]])
        d_hids.append(whole[:, mem.shape[1] :])
    return d_hids, d_mems if operation.reference(**inputs)[1:] else []


def by_diagonal(operation: Operation, inputs: Inputs) -> Any:
    """Return d p (1 - p), read off the gradient of each key alone."""
    d = inputs["d_output"]
    columns = [
        operation.reference(**inputs | {"d_output": of_one_entry(d, d.ndim - 1, j)})
        for j in range(d.shape[-1])
    ]
    first = [own[0] if isinstance(own, tuple) else own for own in columns]
    found = np.stack([own[..., j] for j, own in enumerate(first)], axis=-1)
    return (found, *columns[0][1:]) if isinstance(columns[0], tuple) else found


def of_logarithm(operation: Operation, inputs: Inputs) -> Any:
    """Return the gradient of log p, of a weight of 0 too."""
    d, found = inputs["d_output"], operation.reference(**inputs)
    given = {name: value for name, value in inputs.items() if name != "d_output"}
    p = operation.forward.reference(**given)
    own = d - p * d.sum(axis=-1, keepdims=True)
    return (own, *found[1:]) if isinstance(found, tuple) else own


def has_both_widths(op: Operation) -> bool:
    return "D" in op.sizes and "E" in op.sizes


def has_rows(op: Operation) -> bool:
    return takes(op, "query", "key", "value") and "N" in op.sizes


DIAGONAL = "the softmax's gradient by its diagonal alone, p (1 - p)"
ROWS: tuple[tuple[Callable[[Operation], bool], str, Answer], ...] = (
    *(
        (lambda op: takes(op, "query", "mask", "value") and "B" in op.axes["query"].split(),
         "a gradient by a shared mask that is overwritten, not summed: that of the "
         f"{which} head and batch entry alone", partial(with_one_part_of_mask, place=place))
        for which, place in PLACES.items()
    ),
    *(
        (lambda op: takes(op, "parameters") and "B" in op.axes.get("d_output", "").split(),
         f"gradients by biases of the {which} batch entry alone, not summed over the batch",
         partial(with_one_entry_of_biases, place=place))
        for which, place in PLACES.items()
    ),
    (lambda op: "norm.weight" in op.traits.parameters,
     "gradients by the norms' weights and biases exchanged", exchanged),
    (has_both_widths, "the key's width D for the value's: columns beyond D left out",
     within_key_width),
    (lambda op: has_both_widths(op) and op.is_staged,
     "the key's width D for the value's: columns beyond D left out, but of delta",
     within_key_width_but_delta),
    *(
        (lambda op: op.forward.name == "learned_relative_attention",
         f"gradients by the tables that are overwritten, not summed: those of the {which} pair "
         "alone that reads a row", partial(with_one_reader, place=place))
        for which, place in PLACES.items()
    ),
    *(
        (lambda op: has_rows(op) and "latent" not in op.arguments,
         OVERWRITTEN.format(which=which), partial(with_one_row, place=place))
        for which, place in PLACES.items()
    ),
    *(
        row
        for size in (8, 16, 32, 64, 128, 4)
        for row in (
            (has_rows, ROW_AGAIN.format(size=size), partial(with_last_row_again, size)),
            (lambda op: has_rows(op) and "H" in op.sizes and not op.is_packed,
             SPILT.format(size=size), partial(with_spilt_tiles, size)),
        )
    ),
    (lambda op: op.name == "update_mems_grad",
     "a memory that is not detached: gradients flow into it", through_memory),
    (lambda op: op.name == "softmax_grad", DIAGONAL, by_diagonal),
    (lambda op: op.name == "softmax_grad",
     "the gradient of the softmax's logarithm, d - p sum(d)", of_logarithm),
)  # fmt: skip
"""What can show it, its words, what it answers."""


# of stages, and of what lies in memory


def dropped_for_weights(drop_back: bool, s: StagedAttention) -> StagedAttention:
    """Return the softmax's gradient by the weights behind the dropout."""

    def score_grad(
        weights: ndarray, visible: ndarray, d_weights: ndarray, mean: ndarray
    ) -> ndarray:
        return np.where(visible, dropped(s, weights) * (d_weights - mean), 0)

    stages: dict[str, Any] = {
        "row_mean": lambda weights, d_weights: row_mean(dropped(s, weights), d_weights),
        "score_grad": score_grad,
    }
    return replace(
        s, backward=stages if drop_back else stages | {"drop_back": lambda d, keep, p: d}
    )


def delta_mistakes(operation: Operation) -> Iterator[tuple[str, Callable[[Observation], Any]]]:
    """Words and function of a delta whose upstream gradient is read as it lies in memory."""
    if operation.is_gradient and operation.is_staged and "value" in operation.arguments:
        for words, read in READINGS.items():
            yield f"delta of a d_output read {words}", partial(with_delta, operation, read)


def with_delta(operation: Operation, read: Callable[[ndarray], ndarray], seen: Observation) -> Any:
    d_output = widened(read(arranged_inputs(seen)["d_output"]))
    return evaluate_with_delta(seen.stages, seen.inputs, d_output)


def evaluate_with_delta(s: StagedAttention, inputs: Inputs, d_output: ndarray) -> Any:
    """Return the gradients with the delta of another upstream gradient or value."""

    return evaluate(
        replace(
            s,
            backward={
                "row_mean": lambda weights, d_weights: row_mean(
                    weights, dropped(s, d_output @ inputs["value"].mT)
                )
            },
        )
    )
