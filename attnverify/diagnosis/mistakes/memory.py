"""
Mistakes of what is carried on: a memory that is not there taken as one that is empty, one position
too few of it kept; parts of an attention that are weighted otherwise where they are merged.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs

Mistake = tuple[str, Callable[[Operation, Inputs], Any]]


def memory_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each mistake, of an operation that carries a memory on."""
    if {"hids", "mems", "mem_len"} <= set(operation.arguments):
        for words, least in EMPTY_MEMORIES.items():
            yield words, partial(with_empty_memory, least=least)
        for words, (only_full, front) in LOST.items():
            yield words, partial(without_oldest, only_full=only_full, front=front)
        for step in STEPS:
            yield PADDED.format(step=step), partial(cut_with_padding, step=step)


EMPTY_MEMORIES = {
    "no memory taken as an empty one": 0,
    "no memory taken as an empty one, and everything kept at mem_len 0": 1,
}


def with_empty_memory(operation: Operation, inputs: Inputs, least: int) -> Any:
    """A memory without positions in place of none; a mem_len below the least keeps everything."""
    hids = inputs["hids"]
    mems = [hid[:, :0] for hid in hids] if inputs["mems"] is None else inputs["mems"]
    whole = max(
        (mem.shape[1] + hid.shape[1] for mem, hid in zip(mems, hids, strict=True)), default=0
    )
    mem_len = inputs["mem_len"] if inputs["mem_len"] >= least else whole
    return operation.reference(**inputs | {"mems": mems, "mem_len": mem_len})


LOST = {
    f"the memory rolled one step too early: its oldest position lost, zeros {where}{when}": (
        only_full,
        front,
    )
    for when, only_full in ((", once it is just full", True), ("", False))
    for where, front in (("between it and the segment", False), ("in front", True))
}


def without_oldest(operation: Operation, inputs: Inputs, only_full: bool, front: bool) -> Any:
    """Where there is a memory that is filled up: one position of it fewer, and zeros for it."""
    found, mem_len = operation.reference(**inputs), inputs["mem_len"]
    if inputs["mems"] is None or found is None:
        return found
    return [
        rolled(new, hid.shape[1], front)
        if hid.shape[1] < new.shape[1] and (mem.shape[1] + hid.shape[1] == mem_len or not only_full)
        else new
        for new, mem, hid in zip(found, inputs["mems"], inputs["hids"], strict=True)
    ]


STEPS = (4, 8, 16, 2)
PADDED = (
    "a memory cut by the length of its padded buffer, a multiple of {step}: zeros kept behind it, "
    "and as many of its oldest positions lost"
)


def cut_with_padding(operation: Operation, inputs: Inputs, step: int) -> Any:
    """The last positions of a buffer that has room for whole steps."""
    hids, mems, mem_len = inputs["hids"], inputs["mems"], inputs["mem_len"]
    if mems is None:
        return operation.reference(**inputs)
    return [
        of_buffer(np.concatenate([mem, hid], axis=1), mem_len, step)
        for mem, hid in zip(mems, hids, strict=True)
    ]


def of_buffer(x: ndarray, mem_len: int, step: int) -> ndarray:
    filled = x.shape[1]
    whole = np.pad(x, ((0, 0), (0, -filled % step), (0, 0)))
    start = max(0, whole.shape[1] - mem_len)
    return whole[:, start : start + min(mem_len, filled)]


def rolled(new: ndarray, own: int, front: bool) -> ndarray:
    old, none = new[:, 1 : new.shape[1] - own], np.zeros_like(new[:, :1])
    parts = (none, old) if front else (old, none)
    return np.concatenate([*parts, new[:, new.shape[1] - own :]], axis=1)


# merges


def merge_mistakes(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each, for what merges outputs by their lse."""
    if not {"outputs", "lses"} <= set(operation.arguments):
        return
    if operation.is_gradient:
        for words, parts in MERGE_GRADIENTS.items():
            yield words, partial(merged_gradient, *parts)
    else:
        for words, weigh in WEIGHTS.items():
            yield words, partial(weighted, weigh)
        for lse in FURTHER:
            words = (
                f"a further part of lse {lse:.5g} and output 0, which rows that no part saw show"
            )
            yield words, partial(with_a_further_part, lse)


def weighted(
    weigh: Callable[[ndarray, ndarray], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    """The merged output by other weights of the parts, beside the lse as it is."""
    outputs, lses = inputs["outputs"], inputs["lses"]
    output, lse = operation.reference(**inputs)
    weights = weigh(lses, lse)[..., None]
    absent = (lses == -np.inf)[..., None]
    return np.where(absent & (weights == 0), 0, weights * np.where(absent, 0, outputs)).sum(0), lse


def merged_gradient(
    shares_left_out: tuple[bool, bool], subtracted: str, operation: Operation, inputs: Inputs
) -> Any:
    """The gradient by outputs and by lses, without the share of each part in one or both."""
    outputs, lses, d_output = (inputs[name] for name in ("outputs", "lses", "d_output"))
    output, lse = operation.forward.reference(outputs=outputs, lses=lses)
    there = lses > -np.inf
    own = np.where(there[..., None], outputs, 0)
    base = {"merged": output, "own": own, "nothing": 0}[subtracted]
    arriving = (d_output * (own - base)).sum(-1) + inputs["d_lse"]
    by_outputs, by_lses = (
        np.where(there, 1.0 if left_out else shares(lses, lse), 0) for left_out in shares_left_out
    )
    return by_outputs[..., None] * d_output, by_lses * arriving


MERGE_GRADIENTS: dict[str, tuple[tuple[bool, bool], str]] = {
    "each part's own lse and output in place of the merged ones": ((True, True), "own"),
    "outputs that receive the gradient without the share of their part": ((True, False), "merged"),
    "lses that receive the gradient without the share of their part": ((False, True), "merged"),
    "lses that receive the product with a part's output, the merged output not subtracted": (
        (False, False),
        "nothing",
    ),
}


def shares(lses: ndarray, base: ndarray) -> ndarray:
    return np.exp(lses - np.where(np.isneginf(base), 0, base))


def one_part(place: int, lses: ndarray, lse: ndarray) -> ndarray:
    own = np.zeros_like(lses)
    own[place] = 1
    return own


WEIGHTS: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "the mean of the parts, not weighted by their lse": lambda x, lse: np.full_like(x, 1 / len(x)),
    "the sum of the parts, not weighted by their lse": lambda x, lse: np.ones_like(x),
    "parts weighted by exp(lse - maximum) and not divided by the sum of these": (
        lambda x, lse: shares(x, x.max(0))
    ),
    "parts weighted by the inverse of their share": lambda x, lse: 1 / shares(x, lse),
    "parts weighted by powers of 2 of natural logarithms": lambda x, lse: (
        shares(x, lse) ** np.log(2)
    ),
    "the output of the first part alone": partial(one_part, 0),
    "the output of the last part alone": partial(one_part, -1),
    "minus infinity subtracted from itself in rows that no part saw: NaN beside an lse of minus "
    "infinity": lambda x, lse: np.exp(x - lse),
}
FURTHER = (-5e4, -5e4 * float(np.log(2.0)), -1e4, -1e5)


def with_a_further_part(lse: float, operation: Operation, inputs: Inputs) -> Any:
    outputs, lses = inputs["outputs"], inputs["lses"]
    both = np.concatenate([outputs, np.zeros_like(outputs[:1])])
    return operation.reference(
        **inputs | {"outputs": both, "lses": np.concatenate([lses, np.full_like(lses[:1], lse)])}
    )
