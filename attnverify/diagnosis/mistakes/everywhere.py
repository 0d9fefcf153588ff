"""
What goes wrong in every operation alike, as other arguments of the reference or another arrangement
of its output.

Batches or heads that read another one's, keys that are lost behind a block, a mask that is
transposed, arguments that are left out, axes that are exchanged on the way out, rows that are never
written. They are candidates of a diagnosis beside the conventions and the known faults.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import is_word
from attnverify.catalogue.operation import Operation
from attnverify.conventions.convention import Convention, conventions
from attnverify.conventions.visibility import hidden_but
from attnverify.diagnosis.mistakes.memory import memory_mistakes, merge_mistakes
from attnverify.diagnosis.mistakes.misread import (
    first_of,
    misread_arguments,
    takes,
)
from attnverify.inputs.recipe import Inputs

Answer = Callable[..., Any]
Mistake = tuple[str, Answer]
Row = tuple[Callable[[Operation], bool], str, Answer]
"""What can show it, its words, what it answers."""


KEYS = (16, 32, 64, 128, 256, 512, 1024)
"""Sizes of what a kernel may have made for a mask."""


def opened(x: ndarray, first: int) -> ndarray:
    """Return a mask that hides nothing from a key on."""
    return np.where(np.arange(x.shape[-1]) < first, x, x.dtype.type(x.dtype == bool))


def common_mistakes(operation: Operation) -> Iterator[Mistake]:
    """Words and function of each mistake that the operation can show."""
    yield from misread_arguments(operation)
    for option, domain in operation.domains.items():
        for word in domain.choices if is_word(domain) else ():
            yield IGNORED.format(option=option, word=word), partial(with_option, option, word)
    yield from shown(operation, OF_ARGUMENTS)
    name = next((name for name in ("mask", "visible") if name in operation.arguments), None)
    if name is not None and takes(operation, "key", "value") and operation.chapter != "layers":
        for words, seen in LOST_KEYS.items():
            yield words, partial(with_hidden_keys, name, seen)
    if "window" in operation.arguments and "N" in operation.sizes:
        yield from decoding(operation)
    yield from memory_mistakes(operation)
    yield from merge_mistakes(operation)
    yield from shown(operation, OF_OUTPUTS)
    yield from shown(operation, OF_AXES)


IGNORED = "{option} ignored, and taken for {word}"


def with_option(name: str, word: str, operation: Operation, inputs: Inputs) -> Any:
    """Return the reference with an option of one value, whatever is given."""
    return operation.reference(**inputs | {name: word})


def shown(operation: Operation, rows: tuple[Row, ...]) -> Iterator[Mistake]:
    return ((words, answer) for shows, words, answer in rows if shows(operation))


def decoding(operation: Operation) -> Iterator[Mistake]:
    """What another convention makes of a call of one query alone, as kernels of their own do it."""
    for each in conventions(operation.name):
        yield f"{each.words}, where there is one query alone", partial(of_one_query, each)


def of_one_query(convention: Convention, operation: Operation, inputs: Inputs) -> Any:
    rows = inputs["query"].shape[-2] if "query" in inputs else inputs["N"]
    return convention(operation, inputs, "float64") if rows == 1 else operation.reference(**inputs)


def with_tail_dropped(operation: Operation, inputs: Inputs) -> Any:
    """A column of zeros in front, read as rows one shorter, the tail left out."""
    x = inputs["x"]
    padded = np.concatenate([np.zeros_like(x[..., :1]), x], axis=-1)
    line = padded.reshape(*x.shape[:-2], -1)
    return line[..., : x.shape[-2] * x.shape[-1]].reshape(x.shape)


def with_unscaled_gradient(operation: Operation, inputs: Inputs, number: int) -> Any:
    """Return the gradients with one of them as it is before its factor 1/sqrt(D)."""
    width = inputs["query"].shape[-1]
    found = operation.reference(**inputs)
    return tuple(x * width**0.5 if i == number else x for i, x in enumerate(found))


def read_positions_first(operation: Operation, inputs: Inputs) -> Any:
    """Every array of four axes with the second and third exchanged, the output back again."""
    query, key = inputs["query"], inputs["key"]
    if query.shape[1] != query.shape[2] or key.shape[2] != query.shape[2]:
        return operation.reference(**inputs)
    names = ("query", "key", "value", "d_output")
    moved = {name: inputs[name].swapaxes(1, 2) for name in names if name in inputs}
    found = operation.reference(**inputs | moved)
    parts = found if isinstance(found, tuple) else (found,)
    back = tuple(x.swapaxes(1, 2) if x.ndim == 4 and i < 3 else x for i, x in enumerate(parts))
    return back if isinstance(found, tuple) else back[0]


def with_tanh_last(operation: Operation, inputs: Inputs) -> Any:
    """One hidden unit per pair, which is its score: its tanh is the reference's."""
    x = inputs
    by_query = (x["query"] @ x["w_query"].T) @ x["w_score"]
    by_key = (x["key"] @ x["w_key"].T) @ x["w_score"]
    one = np.ones((1, 1))
    given = {"query": by_query[..., None], "key": by_key[..., None], "w_query": one, "w_key": one}
    return operation.reference(**inputs | given | {"w_score": np.ones(1)})


HALVES = (
    "the {name} of the second half of each tile of {size} rows stored at those of the first half, "
    "its own rows not written (0)"
)


def with_halves_stored(
    operation: Operation, inputs: Inputs, half: int, place: int, axis: int
) -> Any:
    """Return output and lse, one of them where the first half of each tile is overwritten."""
    found = list(operation.reference(**inputs))
    x = np.moveaxis(found[place], axis, 0)
    i = np.arange(len(x))
    is_first, later = i % (2 * half) < half, np.minimum(i + half, len(x) - 1)
    source = np.where(i + half < len(x), later, i)
    stored = np.where(is_first.reshape(-1, *(1,) * (x.ndim - 1)), x[source], 0)
    found[place] = np.moveaxis(stored, 0, axis)
    return tuple(found)


def first_rows(x: ndarray, size: int) -> ndarray:
    N = x.shape[-2] if x.ndim > 1 else 0
    return x * (np.arange(N) < N // size * size)[:, None] if size < N else x


def zeros_beyond_query_width(operation: Operation, inputs: Inputs) -> Any:
    found = operation.reference(**inputs)
    if not isinstance(found, ndarray):
        return found
    return found * (np.arange(found.shape[-1]) < inputs["query"].shape[-1])


def with_changed_argument(
    argument: str, change: Callable[[ndarray], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    """Return the reference with one argument changed."""
    x = inputs.get(argument)
    return operation.reference(**inputs if x is None else inputs | {argument: change(x)})


def with_changed_output(
    change: Callable[[ndarray], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    """Return the reference with its first output rearranged."""
    found = operation.reference(**inputs)
    return (
        (change(found[0]), *found[1:])
        if isinstance(found, tuple)
        else change(found)
        if isinstance(found, ndarray)
        else found
    )


def with_hidden_keys(
    name: str, seen: Callable[[ndarray, int], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    M, mask = inputs["key"].shape[-2], inputs.get(name)
    return operation.reference(**inputs | {name: hidden_but(mask, seen(np.arange(M), M)[None])})


def first_columns(x: ndarray, width: int) -> ndarray:
    return x * (np.arange(x.shape[-1]) < width)


def transposed(x: ndarray) -> ndarray:
    return x.mT.copy() if x.shape[-1] == x.shape[-2] else x


def exchanged(x: ndarray, one: int, other: int) -> ndarray:
    return x.swapaxes(one, other).copy() if x.ndim > other else x


def reshaped_instead_of_transposed(x: ndarray, one: int, other: int) -> ndarray:
    """Axes exchanged by a reshape, as ``view`` for ``transpose`` does it."""
    return x.swapaxes(one, other).reshape(x.shape) if x.ndim > other else x


def with_neighbours_exchanged(x: ndarray, axis: int) -> ndarray:
    """The first two places of an axis exchanged, where it has them."""
    if x.ndim < -axis or x.shape[axis] < 2:
        return x
    return x.take([1, 0, *range(2, x.shape[axis])], axis=axis)


def taking(*names: str) -> Callable[[Operation], bool]:
    return lambda op: takes(op, *names)


def has_outputs(op: Operation) -> bool:
    return not op.is_gradient and bool(op.axes)


def is_unscaled(op: Operation) -> bool:
    return op.is_gradient and op.is_staged and "D" in op.sizes


OPENED = {
    "a {argument} ignored": opened,
    "a boolean {argument} ignored": lambda x, first: opened(x, first) if x.dtype == bool else x,
}
OF_ARGUMENTS: tuple[Row, ...] = (
    (lambda op: op.axes.get("query", "").split() == ["B", "H", "N", "D"],
     "arrays read as [B N H D] where their shapes allow it", read_positions_first),
    *(
        (taking(name), f"{name} left out", partial(with_changed_argument, name, np.zeros_like))
        for name in ("u", "v", "query_pos_bias", "key_pos_bias", "key_pos_embeddings", "position")
    ),
    (taking("position"), "the position table in reverse order",
     partial(with_changed_argument, "position", lambda x: x[..., ::-1, :])),
    *(
        (taking("position"), f"the position table read one row {words}",
         partial(with_changed_argument, "position", partial(np.roll, shift=by, axis=-2)))
        for words, by in (("on", -1), ("back", 1))
    ),
    (lambda op: takes(op, "w_score") and not op.is_gradient,
     "the tanh after the sum over the hidden units", with_tanh_last),
    *(
        (taking(name), words.format(name), partial(with_changed_argument, name, change))
        for name in ("mask", "visible", "keep", "attn_mask")
        for words, change in (
            ("a {} that is transposed where it can be", transposed),
            ("the first row of {} for all", partial(first_of, axis=-2)),
            ("the first leading element of {} for all",
             lambda x: first_of(x, 0) if x.ndim > 2 else x),
        )
    ),
    *(
        (taking(name), f"{words.format(argument=name)} from key {first} on",
         partial(with_changed_argument, name, partial(change, first=first)))
        for name in ("mask", "visible")
        for first in KEYS
        for words, change in OPENED.items()
    ),
    (taking("key_padding_mask"), "the padding of the first batch entry for all",
     partial(with_changed_argument, "key_padding_mask", partial(first_of, axis=0))),
)  # fmt: skip
LOST_KEYS: dict[str, Callable[[ndarray, int], ndarray]] = {
    "the last key left out": lambda j, M: j < M - 1,
    "the last key left out, unless it is the only one": lambda j, M: (j < M - 1) | (M == 1),
    "the first key left out": lambda j, M: j > 0,
    **{
        words.format(size): partial(seen, size)
        for size in (4, 8, 16, 32, 64)
        for words, seen in (
            ("the keys behind the last full block of {} left out",
             lambda size, j, M: j < M // size * size),
            ("the keys behind the first {} left out", lambda size, j, M: j < size),
        )
    },
    **{
        f"the {which} key of each tile of {size} left out": partial(
            lambda place, size, j, M: j % size != place, place % size, size)
        for size in (8, 16, 32, 64, 128)
        for place, which in ((-1, "last"), (0, "first"))
    },
}  # fmt: skip
"""Which keys are seen, in operations that can hide them."""
OF_OUTPUTS: tuple[Row, ...] = (
    (lambda op: op.name == "rel_shift",
     "the last row dropped behind the padding where the first must be", with_tail_dropped),
    *(
        (lambda op: "D" in " ".join(op.axes.values()),
         f"the product over the first {width} columns alone",
         partial(with_changed_argument, "query", partial(first_columns, width=width)))
        for width in (16, 32, 64)
    ),
    (has_outputs, "the rows of the output in reverse order",
     partial(with_changed_output, lambda x: x[..., ::-1, :].copy() if x.ndim > 1 else x)),
    *(
        (has_outputs, f"zeros behind the last full tile of {size} queries",
         partial(with_changed_output, partial(first_rows, size=size)))
        for size in (16, 32, 64, 128)
    ),
    *(
        (lambda op: has_outputs(op) and takes(op, "sink", "query") and "N" in op.sizes,
         HALVES.format(name=name, size=2 * half),
         partial(with_halves_stored, half=half, place=place, axis=axis))
        for half in (16, 32, 64, 128, 8, 4)
        for name, place, axis in (("lse", 1, -1), ("output", 0, -2))
    ),
    (lambda op: has_outputs(op) and "E" in op.sizes and "D" in op.sizes,
     "an output of zeros beyond the query's width", zeros_beyond_query_width),
    *(
        (has_outputs, f"the first two {name} of the output exchanged",
         partial(with_changed_output, partial(with_neighbours_exchanged, axis=axis)))
        for axis, name in ((-1, "columns"), (-2, "rows"), (-3, "heads"), (-4, "batch elements"))
    ),
)  # fmt: skip
OF_AXES: tuple[Row, ...] = (
    *(
        (is_unscaled, f"a {name} whose gradient is not scaled",
         partial(with_unscaled_gradient, number=number))
        for number, name in enumerate(("query", "key"))
    ),
    *(
        (lambda op: True, f"axes {one} and {other} of the output {words}",
         partial(with_changed_output, partial(change, one=one, other=other)))
        for one, other in ((0, 1), (1, 2), (2, 3))
        for words, change in (("exchanged", exchanged),
                              ("reshaped into each other", reshaped_instead_of_transposed))
    ),
)  # fmt: skip
