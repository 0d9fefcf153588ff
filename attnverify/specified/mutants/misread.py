"""Mutants of the arguments: the specification of what a kernel may have read in another way."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy import ndarray

from attnverify.catalogue.outside import Mutant, Number
from attnverify.catalogue.pytrees import map_leaves
from attnverify.specified.reading import Argument, with_whole_numbers

if TYPE_CHECKING:
    from attnverify.specified.operation import SpecifiedOperation

Read = Callable[[Any], Any]
Told = tuple[str, Callable[[dict[str, Any]], Any]]

OF_FLOATS: dict[str, Read] = {
    "left out (all 0)": lambda x: 0 * x,
    "left out (all 1)": lambda x: 0 * x + 1,
    "with 1 added": lambda x: x + 1,
    "negated": lambda x: -x,
    "doubled": lambda x: 2 * x,
    "centred": lambda x: x - x.mean(axis=-1, keepdims=True),
    "rounded to bfloat16": lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float64),
}
OF_INTEGERS: dict[str, Read] = {
    "with 1 added": lambda x: x + 1,
    "with 1 subtracted": lambda x: x - 1,
    "with 128 added": lambda x: x + 128,
    "without its sign": np.abs,
    "read as unsigned (256 added below 0)": lambda x: np.where(x < 0, x + 256, x),
    "negated": lambda x: -x,
}
OF_MASKS: dict[str, Read] = {
    "inverted": lambda x: ~x,
    "left out (all true)": lambda x: x | True,
}
OF_COUNTS: dict[str, Read] = {"minus 1": lambda x: x - 1, "plus 1": lambda x: x + 1}
OF_NUMBERS: dict[str, Read] = {
    "left out (0)": lambda x: 0.0,
    "halved": lambda x: x / 2,
    "doubled": lambda x: 2 * x,
}
AT_THE_END = {"times": np.multiply, "divided by": np.divide, "plus": np.add, "minus": np.subtract}
"""What may be done with a small argument once more, with the output."""
SIDES: dict[str, Read] = {
    "below 0": lambda x: x < 0,
    "at most 0": lambda x: x <= 0,
    "at least 0": lambda x: x >= 0,
    "above 0": lambda x: x > 0,
}
BRANCHES: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "0": lambda y, x: 0 * y,
    "itself": lambda y, x: x,
    "another sign": lambda y, x: -y,
}
"""What a kernel may give on one side of an argument that it branches on."""
SHIFTS = {"moved by one": 1, "read at the next place": -1}
PAIRS = {"of every two the first, along": 2, "read at half the place in": 1}
"""How an axis of pairs may be read by the pair."""
KINDS = {"float": OF_FLOATS, "int": OF_INTEGERS, "bool": OF_MASKS}

SMALL = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3, 1e-2)
"""What stands for a small number such as eps."""


def misread(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List the mutants of every argument, and of two of the same axes exchanged."""
    for argument in operation.described:
        for words, answer in _of_one(operation, argument):  # a sign is rather lost in a line
            yield words, answer, 1 + words.endswith("negated")
    yield from _without_guards(operation)
    yield from _together(operation)
    arrays = [one for one in operation.described if one.kind == "float"]
    for one, other in combinations(arrays, 2):
        if one.axes == other.axes:
            words = f"`{one.name}` and `{other.name}` exchanged"
            yield words, partial(_exchanged, operation, one.name, other.name), 1


def numbers_of_arguments(operation: "SpecifiedOperation") -> Iterator[Number]:
    """List the arguments that are fractions, as numbers that a kernel may have fixed."""
    for one in operation.described:
        if one.kind == "number" and isinstance(usual := one.choices[0], float):
            yield (
                partial("`{}` as {:g}".format, one.name),
                usual,
                partial(_fixed, operation, one.name),
            )


def _fixed(operation: "SpecifiedOperation", name: str, number: float) -> Callable[..., Any]:
    return partial(_answer_of, operation, {name: partial(_another, other=number)})


def _without_guards(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List masks that are left out with a small number that is needed for their sake alone."""
    masks = [one.name for one in operation.described if one.kind == "bool"]
    for name in masks:
        for small in (one for one in operation.described if one.kind == "number"):
            usual = small.choices[0]
            if isinstance(usual, float) and 0 < usual < 0.1:
                words = f"`{name}` left out (all true), and `{small.name}` with it"
                read = {
                    name: OF_MASKS["left out (all true)"],
                    small.name: OF_NUMBERS["left out (0)"],
                }
                yield words, partial(_answer_of, operation, read), 2


def _answer_of(
    operation: "SpecifiedOperation", read: dict[str, Read], inputs: dict[str, Any]
) -> Any:
    wide = with_whole_numbers(inputs)
    with np.errstate(all="ignore"):
        return operation.evaluate(wide | {n: change(wide[n]) for n, change in read.items()})


def _of_one(operation: "SpecifiedOperation", argument: Argument) -> Iterator[Told]:
    name = argument.name
    if argument.kind == "number":
        yield from _of_number(operation, argument)
        return
    for words, read in KINDS[argument.kind].items():
        yield f"`{name}` {words}", _answer(operation, name, read)
    for words, function in AT_THE_END.items() if len(argument.axes) < 2 else ():
        yield f"the output {words} `{name}`", partial(_answer_and, operation, name, function)
    if argument.kind == "float":
        yield from _of_branches(operation, name)
    for axis, (factor, letter) in enumerate(argument.axes):
        along = letter or f"axis {axis}"
        for words, *reads in (*ALONG, *(PAIRED if factor == 2 and letter else ())):
            changes = (partial(read, axis=axis) for read in reads)
            yield words.format(name=name, letter=along), _answer(operation, name, *changes)


def _of_branches(operation: "SpecifiedOperation", name: str) -> Iterator[Told]:
    """List what is given on one side of 0 of an argument; its gradient arrives as it is."""
    arriving = "d_output" if operation.is_gradient and operation.floats == (name,) else name
    for side, here in SIDES.items():
        for words, other in BRANCHES.items():
            function = partial(_on_one_side, here=here, other=other)
            yield (
                f"{words} where `{name}` is {side}",
                partial(_of_two, operation, name, arriving, function),
            )


def _of_two(
    operation: "SpecifiedOperation",
    name: str,
    arriving: str,
    function: Callable[..., Any],
    inputs: dict[str, Any],
) -> Any:
    x, itself = inputs[name], inputs.get(arriving, inputs[name])
    return map_leaves(lambda y: function(y, x, itself), operation.evaluate(inputs))


def _on_one_side(
    y: ndarray, x: ndarray, itself: ndarray, here: Read, other: Callable[..., ndarray]
) -> ndarray:
    """Return another output on one side of 0 of an argument, where they have one shape."""
    return np.where(here(x), other(y, itself), y) if y.shape == x.shape == itself.shape else y


def _of_number(operation: "SpecifiedOperation", argument: Argument) -> Iterator[Told]:
    """List other numbers in its place: of one that has several choices, what becomes of each."""
    usual, *others = argument.choices
    if others:
        read = partial(_another, other=usual)
        yield f"`{argument.name}` always as {usual}", _answer(operation, argument.name, read)
    if isinstance(usual, bool) or not isinstance(usual, int | float):
        return
    for words, change in (OF_COUNTS if isinstance(usual, int) else OF_NUMBERS).items():
        shown = words if others else f"as {change(usual):g}"
        yield f"`{argument.name}` {shown}", _answer(operation, argument.name, change)
    for other in SMALL if isinstance(usual, float) and 0 < usual < 0.1 else ():
        read = partial(_another, other=other)
        yield f"`{argument.name}` as {other:g}", _answer(operation, argument.name, read)


def _another(value: Any, other: Any) -> Any:
    return other


def first_alone(x: ndarray, axis: int) -> ndarray:
    return np.broadcast_to(x.take([0], axis=axis), x.shape)


def at_half(x: ndarray, axis: int, back: int = 1) -> ndarray:
    """Read one element for each pair: that of the pair's number, or its first."""
    return x.take(np.arange(x.shape[axis]) // 2 * back, axis=axis)


def interleaved(x: ndarray, axis: int) -> ndarray:
    """Put the even elements in front of the odd ones."""
    order = [*range(0, x.shape[axis], 2), *range(1, x.shape[axis], 2)]
    return x.take(order, axis=axis)


def deinterleaved(x: ndarray, axis: int) -> ndarray:
    order = np.argsort([*range(0, x.shape[axis], 2), *range(1, x.shape[axis], 2)])
    return x.take(order, axis=axis)


ALONG: tuple[tuple[Any, ...], ...] = (
    *(
        (f"`{{name}}` {words} along {{letter}}", partial(np.roll, shift=shift))
        for words, shift in SHIFTS.items()
    ),
    ("`{name}` reversed along {letter}", np.flip),
    ("`{name}` at the first {letter} for all", first_alone),
)
"""How an axis may be read: the words, and what reads it."""
PAIRED: tuple[tuple[Any, ...], ...] = (
    ("`{name}` of every two of {letter} as the first", partial(at_half, back=2)),
    ("`{name}` read at half the place in {letter}", at_half),
    ("`{name}` with the two halves of {letter} interleaved", interleaved),
    ("the two halves of {letter} interleaved in `{name}` and in the output",
     interleaved, deinterleaved),
)  # fmt: skip
"""The same of an axis of pairs, and what is done to the output."""


def _answer(
    operation: "SpecifiedOperation", name: str, read: Read, after: Read = lambda x: x
) -> Callable[[dict[str, Any]], Any]:
    own = partial(_answer_of, operation, {name: read})
    return lambda inputs: after(own(inputs))


def _answer_and(
    operation: "SpecifiedOperation", name: str, function: Callable[..., Any], inputs: dict[str, Any]
) -> Any:
    with np.errstate(all="ignore"):
        return map_leaves(lambda y: function(y, inputs[name]), operation.evaluate(inputs))


def _together(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List what is misread of all arguments that have an axis of pairs, or of two tables, alike."""
    places: dict[str, dict[str, int]] = {}
    for one in operation.described:
        for axis, (factor, letter) in enumerate(one.axes if one.kind == "float" else ()):
            if factor == 2 and letter:
                places.setdefault(letter, {})[one.name] = axis
    for letter, axes in places.items():
        for read, back in ((interleaved, deinterleaved), (deinterleaved, interleaved)):
            own = partial(
                _answer_of, operation, {n: partial(read, axis=axis) for n, axis in axes.items()}
            )
            after = partial(back, axis=next(iter(axes.values())))
            words = f"the two halves of {letter} {read.__name__} in every argument and the output"
            yield words, partial(_afterwards, own, after), 2
    arrays = [one for one in operation.described if one.kind == "float"]
    for one, other in combinations(arrays, 2):
        for axis, (_, letter) in enumerate(one.axes if one.axes == other.axes else ()):
            for words, shift in SHIFTS.items():
                read = partial(np.roll, shift=shift, axis=axis)
                along = letter or f"axis {axis}"
                told = f"`{one.name}` and `{other.name}` {words} along {along}"
                yield told, partial(_answer_of, operation, {one.name: read, other.name: read}), 1


def _afterwards(own: Callable[..., Any], after: Read, inputs: dict[str, Any]) -> Any:
    return map_leaves(after, own(inputs))


def _exchanged(
    operation: "SpecifiedOperation", one: str, other: str, inputs: dict[str, Any]
) -> Any:
    with np.errstate(all="ignore"):
        return operation.evaluate(inputs | {one: inputs[other], other: inputs[one]})
