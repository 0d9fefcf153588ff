"""
Whereabouts: which stage of an unknown failure is wrong first, and where.

Three probes, made from a recipe that fails. Values that are unit vectors show the weights; their
ratios are differences of scores, whatever normalises them; queries of zero leave the biases and the
mask alone. What is wrong is then placed along the axes: from key 64 on, in head 3 alone.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.loader import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.cause import Cause
from attnverify.inputs.masks import scores_shape, visible_pairs
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, observe_answer
from attnverify.reference.oracle import evaluate_spec

MOST_CALLS = 12
"""As many calls at most show the weights of a recipe: one for each E of its keys."""


def localize(
    implementation: Implementation, observed: Sequence[Observation], budget: CallBudget
) -> Cause | None:
    """What probes of the failing recipes say."""
    operation = implementation.operation
    for o in sorted(observed, key=lambda o: -o.size):  # where there is more, more can be told
        if (
            o.wrong
            and {"query", "key", "value"} <= set(operation.arguments)
            and not operation.is_gradient
            and "parameters" not in o.inputs
        ):
            try:
                told = localize_by_weights(implementation, o, budget)
            except (Disagreement, Unsupported):
                continue
            if told:
                return told
    where = describe_wrong_outputs(observed[0])
    return Cause(where) if where else None


def localize_by_weights(
    implementation: Implementation, o: Observation, budget: CallBudget
) -> Cause | None:
    """Find the stages of one recipe, first to last; None where the probe shows nothing."""
    calls = -(-o.inputs["key"].shape[-2] // o.inputs["value"].shape[-1])
    if calls > MOST_CALLS or not budget.affords(calls, 1):
        return None
    own, law, bound = weights(implementation, o, o.inputs)
    wrong = exceeds_bound(own, law, bound)
    if not wrong.any():
        return Cause(describe_wrong_outputs(o, say.WEIGHTS_RIGHT))
    visible = np.broadcast_to(check_visible_pairs(implementation, o.inputs), law.shape)
    leaks, lost = wrong & ~visible, visible & (own == 0) & (law > 1e3 * bound)
    if leaks.any() and np.isfinite(own).all():
        rows = visible.any(axis=-1, keepdims=True)
        some = (wrong & rows).any()
        template = say.HIDDEN_KEY_WEIGHED if some else say.EMPTY_ROWS_WEIGHED
        return Cause(template.format(where=describe_indices(leaks)))
    if lost.any():
        return Cause(say.VISIBLE_KEY_LOST.format(where=describe_indices(lost)))
    if (undefined := np.isnan(own) & wrong).any():
        return Cause(say.NAN_WEIGHTS.format(where=describe_indices(undefined)))
    sums = own.sum(axis=-1)
    off = exceeds_bound(sums, law.sum(axis=-1), bound.sum(axis=-1))
    if off.any() and ratios_agree(own, law, bound):
        where = describe_indices(wrong)
        return Cause(say.ROW_FACTOR.format(least=sums.min(), most=sums.max(), where=where))
    if not budget.affords(calls, 1):
        return Cause(say.WEIGHTS_WRONG.format(where=describe_indices(wrong)))
    return localize_in_scores(implementation, o, wrong)


def localize_in_scores(implementation: Implementation, o: Observation, wrong: ndarray) -> Cause:
    """Scores or softmax, judged by a call whose scores are their biases alone."""
    blank = {name: np.zeros_like(o.inputs[name]) for name in BLANK if name in o.inputs}
    biased = (
        CATALOGUE[o.recipe.operation].traits.slopes
        or "key_pos_bias" in o.inputs
        or (o.recipe.mask or {}).get("form") in ("noisy", "finite")
    )
    without = exceeds_bound(*weights(implementation, o, without_nonfinite(o.inputs) | blank))
    if not without.any():
        zero = "w_score" if "w_score" in blank else "query"
        return Cause(say.WRONG_BY_SCORES.format(zero=zero, where=describe_indices(wrong)))
    alike = say.BIASES_ALONE if biased else say.ALL_EQUAL
    return Cause(say.WRONG_WITHOUT_SCORES.format(alike=alike, where=describe_indices(without)))


BLANK = ("query", "u", "v", "query_pos_bias", "w_score")
"""Where these are zero, so are the scores, but for the biases that are added to them."""


def without_nonfinite(inputs: Inputs) -> Inputs:
    """What is hidden may be NaN: zero instead, so that nothing can leak."""
    return {
        name: np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0) if name in ("key", "value") else x
        for name, x in inputs.items()
    }


def weights(
    implementation: Implementation, o: Observation, inputs: Inputs
) -> tuple[ndarray, ndarray, ndarray]:
    """
    Return the implementation's weights, the specification's, and their bound: values that are unit
    vectors, E keys at a time, laid out as the recipe says.
    """
    shape, M = inputs["value"].shape, inputs["value"].shape[-2]
    E = shape[-1]
    given = inputs | {"value": np.broadcast_to(np.eye(M), (*shape[:-1], M))}
    law = evaluate_spec(implementation.operation, given)
    with np.errstate(all="ignore"):
        bound = bounds.bound(
            implementation.operation.name, given, implementation.precision(o.dtype)
        )
    own: list[ndarray] = []
    for start in range(0, M, E):
        value = np.broadcast_to(np.eye(M, start + E)[:, start:], shape)
        own += observe_answer(implementation, o, inputs | {"value": value})
    return np.concatenate(own, axis=-1)[..., :M], law, bound


def exceeds_bound(own: ndarray, law: ndarray, bound: ndarray | None) -> ndarray:
    """Which elements the comparison finds wrong."""
    *_, right = compare(own, law, bound).arrays
    return ~right


def check_visible_pairs(implementation: Implementation, inputs: Inputs) -> ndarray:
    found = visible_pairs(implementation.operation, inputs)
    assert found is not None
    return found


def ratios_agree(own: ndarray, law: ndarray, bound: ndarray) -> bool:
    """
    Whether each row is the specification's times a constant, judged by the keys whose weight is
    well above its bound.
    """
    clear = law > 20 * bound
    with np.errstate(all="ignore"):
        factor = np.where(clear, own / law, np.nan)
        slack = np.where(clear, bound / law, 0.0).max(axis=-1)
        low, high = (np.where(clear, factor, extreme) for extreme in (inf, -inf))
        apart = high.max(axis=-1) / low.min(axis=-1) - 1
    rows = clear.sum(axis=-1) > 1
    return bool(rows.any() and (apart[rows] <= 4 * slack[rows]).all())


def describe_wrong_outputs(o: Observation, template: str = say.WRONG) -> str:
    """Which outputs are wrong, and where in them."""
    if [a.shape for a in o.actual] != [e.shape for e in o.expected]:
        return ""
    told = []
    for number, (actual, expected, bound) in enumerate(
        zip(o.actual, o.expected, o.bounds, strict=True)
    ):
        wrong = exceeds_bound(actual, expected, bound)
        if wrong.any() and expected.ndim:
            told.append(output_names(o)[number] + describe_indices(wrong, axis_letters(o, number)))
    return template.format(outputs="; ".join(told)) if told else ""


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


def differentiable_inputs(inputs: Any) -> Iterator[str]:
    """Yield the names of the float arrays among the inputs, but for the gradients that arrive."""
    for name, value in inputs.items() if isinstance(inputs, dict) else enumerate(inputs):
        if str(name).startswith("d_"):
            continue
        if isinstance(value, dict | list):
            yield from (f"{name}.{leaf}" for leaf in differentiable_inputs(value))
        elif isinstance(value, ndarray) and value.dtype.kind == "f":
            yield str(name)


def axis_letters(o: Observation, number: int) -> str:
    """
    The axes of an output: those of the input that it is the gradient of; those of the scores where
    it has their shape, BHNE where it has four axes, unnamed otherwise.
    """
    operation, output = CATALOGUE[o.recipe.operation], o.expected[number]
    if operation.is_gradient:
        name = output_names(o)[number].removeprefix(say.GRADIENT_BY.format(name=""))
        letters = operation.axes.get(name, "").replace(" ", "")
        return letters if len(letters) == output.ndim else "?" * output.ndim
    shape = scores_shape(operation, o.inputs)
    if shape is not None and output.shape == shape:
        return "BHNM"[-output.ndim :] if output.ndim != 3 else "BNM"
    return {4: "BHNE", 3: "BNE"}.get(output.ndim, "?" * output.ndim)


NAMES = {"B": "batch element", "H": "head", "N": "row", "M": "key", "E": "column", "D": "column"}


def describe_indices(wrong: ndarray, axes: str = "") -> str:
    """
    Where a boolean array is True along its axes: ``: from key 64 on, in head 3 alone``; nothing
    where it is everywhere.
    """
    names = axes or ("BHNM" if wrong.ndim == 4 else "BNM")
    told = []
    for axis, letter in list(enumerate(names))[::-1]:
        there = np.asarray(
            wrong.any(axis=tuple(other for other in range(wrong.ndim) if other != axis))
        )
        words = describe_axis(there, NAMES.get(letter, say.INDEX_OF_AXIS.format(axis=axis)))
        told += [words] if words else []
    return say.PLACE.format(places=", ".join(told)) if told else ""


def describe_axis(there: ndarray, name: str) -> str:
    """Describe the indices of one axis in words."""
    index = np.flatnonzero(there)
    size, first, last = (
        len(there),
        int(index[0]) if len(index) else 0,
        int(index[-1]) if len(index) else 0,
    )
    if size == 1 or len(index) in (0, size):
        return ""
    if len(index) == 1:
        template = say.ONE_KEY if name == "key" else say.IN_ONE
        return template.format(name=name, index=first)
    if len(index) == last - first + 1 and last == size - 1:
        return say.FROM.format(name=name, index=first)
    if len(index) == last - first + 1 and first == 0:
        return say.UP_TO.format(name=name, index=last)
    template = say.SOME_AND_MORE if len(index) > 4 else say.SOME
    return template.format(name=name, indices=", ".join(map(str, index[:4])))
