"""
Whereabouts: which stage of an unknown failure is wrong first, and where.

Three probes, made from a recipe that fails. Values that are unit vectors show the weights; their
ratios are differences of scores, whatever normalises them; queries of zero leave the biases and the
mask alone. What is wrong is then placed along the axes: from key 64 of 96 on, in head 3 alone.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.loader import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.whereabouts.outputs import (
    describe_wrong_outputs,
    exceeds_bound,
    most_telling,
)
from attnverify.diagnosis.whereabouts.places import describe_indices
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.recipe import Inputs
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
    for o in most_telling(observed):
        if (
            {"query", "key", "value"} <= set(operation.arguments)
            and not operation.is_gradient
            and "parameters" not in o.inputs
        ):
            try:
                told = localize_by_weights(implementation, o, budget)
            except (Disagreement, Unsupported):
                continue
            if told:
                return told.seen_in(o.case)
    where = describe_wrong_outputs(observed)
    return Cause(where).seen_in(most_telling(observed)[0].case) if where else None


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
        return Cause(describe_wrong_outputs([o], say.WEIGHTS_RIGHT))
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
        return Cause(
            say.ROW_FACTOR.format(least=sums[off].min(), most=sums[off].max(), where=where)
        )
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
