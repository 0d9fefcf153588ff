"""What faults of several operations change alike: an answer, its lse, a sink, lengths, a part."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import of_no_sequence
from attnverify.conventions.layer_rows import Options

Function = Callable[..., Any]


def answering(function: Function, change: Function) -> Any:
    """The right answer, changed."""
    return lambda **x: change(*function(**x), **x)


def receiving(function: Function, change: Function) -> Any:
    """The right gradients, changed."""
    return lambda **x: change(list(function(**x)), **x)


def sink_by(change: Callable[[ndarray, Options], Any]) -> Callable[[Options], Any]:
    """A sink that is changed where there is one."""
    return lambda x: None if x.get("sink") is None else change(x["sink"], x)


def sink_receiving(function: Function, change: Function) -> Any:
    """The gradient by the sink changed, where there is one."""
    return receiving(
        function,
        lambda found, **x: (
            found if x.get("sink") is None else [*found[:-1], change(found[-1], **x)]
        ),
    )


def first_of(name: str) -> Callable[[Options], Any]:
    """The first entry's number for all."""
    return lambda x: None if x.get(name) is None else np.full_like(x[name], x[name][0])


def length_by(step: int, x: Options) -> Any:
    """Lengths that are so many keys longer."""
    given = x.get("lengths")
    count = x["key"].shape[2] if "key" in x else x["latent"].shape[1]
    return None if given is None else np.clip(given + step, 0, count)


def placed(function: Function, **new: Callable[[Options], Any]) -> Any:
    """Other lengths, the rows left where they stand."""

    def call(**x: Any) -> Any:
        if x.get("lengths") is None:
            return function(**x)
        n = x["query"].shape[2] if x.get("query_lengths") is None else x["query_lengths"]
        offset = x["lengths"] - n if x.get("offset") is None else x["offset"]
        return function(**x | {name: make(x) for name, make in new.items()} | {"offset": offset})

    return call


def transposed_lse(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """An lse whose last two axes are exchanged."""
    return output, lse.swapaxes(-2, -1).reshape(lse.shape)


def of_maximum(function: Function, /, output: ndarray, lse: ndarray, **x: Any) -> Any:
    """Each row's lse without the logarithm of how many keys it sees."""
    still = {name: 0 * y for name, y in x.items() if name in ("query", "query_rope")}
    level = function(**x | still | {"sink": None})[1]
    return output, np.where(lse > -np.inf, lse - np.maximum(level, 0), lse)


def over_heads(found: list[ndarray], **x: Any) -> Any:
    """The mean over the heads of a group in what its keys and values receive."""
    r = x["query"].shape[1] // x["key"].shape[1]
    return [found[0], found[1] / r, found[2] / r, *found[3:]]


def times(function: Function, at: int, factor: Callable[[Options], float]) -> Any:
    """One of the gradients times a number, where there is one."""
    return lambda **x: tuple(y * factor(x) if k == at else y for k, y in enumerate(function(**x)))


def sent_by(function: Function, at: int, which: Callable[[Options], ndarray], /, **x: Any) -> Any:
    """What keys or values receive from some rows or heads [H N] alone."""
    mine, found = which(x), function(**x)
    arriving = {"d_output": x["d_output"] * mine[..., None], "d_lse": x["d_lse"] * mine}
    return *found[:at], function(**x | arriving)[at], *found[at + 1 :]


def last_head(x: Options) -> ndarray:
    """The last head of each group, or of all."""
    H = x["query"].shape[1]
    r = H // x["key"].shape[1] if "key" in x else H
    return (np.arange(H) % r == r - 1)[:, None]


def hidden_times_zero(function: Function, key: str, /, **x: Any) -> Any:
    """0 times every key, hidden ones too, in what the queries receive."""
    d_query, *others = function(**x)
    total = x[key].sum(tuple(range(1, x[key].ndim)))
    return d_query + 0 * total[:, None, None, None], *others


def outside_unwritten(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """What a buffer held in rows of no sequence."""
    outside = of_no_sequence(x["query_starts"], len(x["query"]))[:, None]
    return np.where(outside[..., None], 7.5, output), np.where(outside, 7.5, lse)
