"""
Which outputs are wrong, where in them, and what stands there.
"""

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import float_axes
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import differentiable_inputs
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.factors.least_squares import (
    ROUNDINGS,
    factor_in_words,
    is_no_rounding,
)
from attnverify.diagnosis.whereabouts.places import NAMES, along, describe_indices
from attnverify.judge.comparison import compare
from attnverify.judge.observation import Observation
from attnverify.precision import FORMATS

ENOUGH = 4
"""So many wrong numbers at least must have one factor: some factor explains any single one."""


def exceeds_bound(own: ndarray, law: ndarray, bound: ndarray | None) -> ndarray:
    """Which elements the comparison finds wrong."""
    *_, right = compare(own, law, bound).arrays
    return ~right


def most_telling(observed: Sequence[Observation]) -> list[Observation]:
    """
    The typical ones first, and among them those with more to tell of: where a part is right in half
    of them at least these, else those that are wrong everywhere.
    """
    partly = {o.case: is_partly_right(o) for o in observed if o.wrong}
    typical = 2 * sum(partly.values()) >= len(partly)
    wrong = [o for o in observed if o.wrong]
    return sorted(wrong, key=lambda o: (partly[o.case] != typical, -o.size))


def is_partly_right(o: Observation) -> bool:
    """Whether a tenth at least of the numbers of an output that is wrong are right."""
    for wrong, expected in zip(wrong_elements(o), o.expected, strict=False):
        numbers = wrong[expected != 0]  # what is 0 by a mask is right in any case
        if wrong.any() and numbers.size > 10 * numbers.sum() / 9:
            return True
    return False


def wrong_elements(o: Observation) -> list[ndarray]:
    """Which elements of each output are wrong; none where outputs have other shapes."""
    if [a.shape for a in o.actual] != [e.shape for e in o.expected]:
        return []
    both = zip(o.actual, o.expected, o.bounds, strict=True)
    return [exceeds_bound(*each) for each in both]


def describe_wrong_outputs(observed: Sequence[Observation], template: str = say.WRONG) -> str:
    """
    Which outputs are wrong, what stands there, and where that is in the most telling answer, if it
    is alike in all others.
    """
    ranked = most_telling(observed)
    ranked = with_names_of(ranked[0], ranked) if ranked else []
    named = [
        (name, describe_one(ranked, number))
        for o in ranked[:1]
        for number, (name, wrong) in enumerate(
            zip(output_names(o), wrong_elements(o), strict=False)
        )
        if wrong.any() and wrong.ndim
    ]
    told = [name + more for name, more in sorted(named, key=lambda each: not each[1])]
    return template.format(outputs="; ".join(told)) if told else ""


def describe_one(ranked: Sequence[Observation], number: int) -> str:
    """What stands in one output, and where it is wrong: or where it is 0, if that is most of it."""
    parts = [(o, each[number]) for o in ranked if number < len(each := wrong_elements(o))]
    what, axes = describe_numbers(ranked, number), axes_of(ranked[0], number)
    wrong = [each for _, each in parts]
    zeros = [each & (o.actual[number] == 0) for o, each in parts]
    if not what and wrong[0].sum() <= 2 * zeros[0].sum():
        where = describe_indices(zeros[0], axes, zeros[1:])
        if where:
            return say.THERE_AT.format(what=say.ZERO, where=where)
    off = [o for o, each in parts if each.any()]
    if again := describe_repeated([(o.actual[number], o.expected[number]) for o in off], axes):
        return again
    where = describe_indices(wrong[0], axes, wrong[1:])
    if not where and what == say.THERE.format(what=say.ZERO):
        return describe_end([(o.actual[number] == 0, each) for o, each in parts], axes) or what
    return what + where


def describe_end(parts: Sequence[tuple[ndarray, ndarray]], axes: str) -> str:
    """
    The last places of an axis, if they alone are wrong and wholly 0 in every case, each from a
    place of its own on: of ``parts``, where a case is 0 and where it is wrong.
    """
    failing = [(zero, wrong) for zero, wrong in parts if wrong.any()]
    for axis in (-1, -2)[: len(axes)]:
        starts = [int(along(wrong, axis % wrong.ndim).argmax()) for _, wrong in failing]
        sizes = [zero.shape[axis] for zero, _ in failing]
        kept = [
            np.take(~z, range(k), axis).any() for (z, _), k in zip(failing, starts, strict=True)
        ]
        if any(kept) and all(
            np.take(zero, range(start, size), axis).all()
            for (zero, _), start, size in zip(failing, starts, sizes, strict=True)
        ):
            start, size, _ = next(each for each in zip(starts, sizes, kept, strict=True) if each[2])
            name = NAMES.get(axes[axis], say.PLACE_OF_AXIS.format(axis=len(axes) + axis))
            since = say.FROM.format(name=name, index=start, size=size)
            return say.END.format(name=name, since=since, count=len(failing))
    return ""


def describe_repeated(wrong: Sequence[tuple[ndarray, ndarray]], axes: str) -> str:
    """
    An axis along which what comes first comes again wherever an output is wrong, and would not in
    the right one beside it.
    """
    alike = len(wrong) > 1 and all(own.ndim == len(axes) for own, _ in wrong)
    for axis, letter in enumerate(axes) if alike else ():
        periods = [0 if period_along(law, axis) else period_along(own, axis) for own, law in wrong]
        if all(periods):
            name = NAMES.get(letter, say.PLACE_OF_AXIS.format(axis=axis))
            told = {"count": periods[0], "size": wrong[0][0].shape[axis], "cases": len(wrong)}
            return say.AGAIN.format(name=name, **told)
    return ""


def period_along(x: ndarray, axis: int) -> int:
    """After how many places of an axis its numbers come again, bit for bit; 0: not at all."""
    places = np.moveaxis(x, axis, 0)
    sizes = range(1, len(places) // 2 + 1) if places.any() else ()
    return next((k for k in sizes if np.array_equal(places[k:], places[:-k])), 0)


def describe_numbers(observed: Sequence[Observation], number: int) -> str:
    """What stands in one output wherever it is wrong: zeros, NaN, or the same multiple."""
    parts = [part for o in observed if (part := wrong_numbers(o, number))]
    actual, expected, bound = (np.concatenate(side) for side in zip(*parts, strict=True))
    if actual.dtype == bool or len(actual) < ENOUGH:
        return ""
    if np.isnan(actual).all():
        return say.THERE.format(what=say.NAN)
    if not actual.any():
        return say.THERE.format(what=say.ZERO)
    dtype = observed[0].dtype
    factor = common_factor(actual, expected, bound)
    if factor is None or not is_no_rounding(factor, dtype):
        return ""
    is_sign = not is_no_rounding(-factor, dtype)
    return say.THERE.format(what=say.OTHER_SIGN if is_sign else factor_in_words(factor).words)


def wrong_numbers(o: Observation, number: int) -> tuple[ndarray, ndarray, ndarray] | None:
    """The wrong elements of one output, what they should be, and the bound of each."""
    found = wrong_elements(o)
    if number >= len(found):
        return None
    wrong, actual, bound = found[number], o.actual[number][found[number]], o.bounds[number]
    u = FORMATS[o.dtype].u if o.dtype in FORMATS else 0.0
    limit = ROUNDINGS * u * np.abs(actual) if bound is None else bound[wrong]
    return actual, o.expected[number][wrong], limit


def common_factor(actual: ndarray, expected: ndarray, bound: ndarray) -> float | None:
    """The factor that all numbers have in common within their bounds, where there is one."""
    with np.errstate(all="ignore"):
        factor = float(np.median(actual / expected))
        if not np.isfinite(factor):
            return None
        limit = bound * max(1.0, abs(factor))
        return factor if compare(actual, factor * expected, limit).passed else None


def output_names(o: Observation) -> list[str]:
    """
    What the outputs are: gradients by the inputs they belong to, an attention's output and weights.
    """
    if o.recipe.operation.endswith("_grad"):
        names = [say.GRADIENT_BY.format(name=name) for name in differentiable_inputs(o.inputs)]
        others = range(len(names), len(o.actual))
        return [*names, *(say.NUMBERED_GRADIENT.format(number=number) for number in others)]
    if o.recipe.operation.startswith("multi_head"):
        return [say.OUTPUT, say.WEIGHTS]
    if len(o.actual) == 1:
        return [say.OUTPUT]
    return [say.NUMBERED_OUTPUT.format(number=number) for number in range(len(o.actual))]


def with_names_of(one: Observation, observed: Sequence[Observation]) -> list[Observation]:
    """Those with the same outputs: a layer without biases has fewer gradients, elsewhere."""
    names = output_names(one)
    return [o for o in observed if output_names(o) == names]


def axes_of(o: Observation, number: int) -> str:
    """
    The letters of an output's axes: those of the input that it is the gradient of, or those that
    the specification names; ``?`` for one without a name, and the last of ``2P``.
    """
    operation, ndim = CATALOGUE[o.recipe.operation], o.expected[number].ndim
    if operation.is_gradient:
        name = output_names(o)[number].removeprefix(say.GRADIENT_BY.format(name=""))
        letters = operation.axes.get(name, "").split()
    else:
        returned = operation.specification.__annotations__.get("return")
        parts = [part for part in get_args(returned) if part is not type(None)] or [returned]
        part = parts[min(number, len(parts) - 1)]
        letters = str(float_axes(part) or getattr(part, "dim_str", "")).split()
    if "..." in letters:
        letters = ["?"] * (ndim - len(letters) + 1) + letters[1:]
    return "".join(each[-1] for each in letters) if len(letters) == ndim else "?" * ndim
