"""
Whereabouts: which stage of an unknown failure is wrong first, and where.

Three probes, made from a recipe that fails. Values that are unit vectors show the weights; their
ratios are differences of scores, whatever normalises them; queries of zero leave the biases and the
mask alone. What is wrong is then placed along the axes: from key 64 of 96 on, in head 3 alone.
"""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.conventions.visibility import real_offset
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.whereabouts.first_line import first_wrong_line
from attnverify.diagnosis.whereabouts.heads import describe_heads
from attnverify.diagnosis.whereabouts.isolating import MASKS, first_wrong_stage, without_draw
from attnverify.diagnosis.whereabouts.outputs import (
    describe_wrong_outputs,
    exceeds_bound,
    most_telling,
    wrong_elements,
)
from attnverify.diagnosis.whereabouts.places import describe_indices
from attnverify.diagnosis.whereabouts.turns import describe_turns
from attnverify.inputs.conditions import is_absent
from attnverify.inputs.masks import seen_pairs
from attnverify.inputs.real.required_options import HIDING
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, arrays, observe_answer
from attnverify.reference.oracle import evaluate_spec
from attnverify.spec.masks import visible_keys

MOST_CALLS = 12
"""As many calls at most show the weights of a recipe: one for each E of its keys."""


SOLVED = {
    "rotary_embedding": describe_turns,
    **dict.fromkeys(("grouped_attention", "grouped_attention_grad"), describe_heads),
    **dict.fromkeys(("packed_attention", "packed_attention_grad"), describe_heads),
}
"""What is solved from the answers of an operation, without another call."""


def localize(
    implementation: Implementation,
    observed: Sequence[Observation],
    passed: Sequence[Observation],
    budget: CallBudget,
) -> Cause | None:
    """What probes of the failing recipes say, and the line of the file that is wrong first."""
    solve = SOLVED.get(implementation.operation.name)
    if solve and (cause := solve(observed)):
        return cause
    told = probe(implementation, observed, budget)
    if told is None:
        return None
    words, o = told
    line = first_wrong_line(implementation, observed, passed, budget)
    return Cause(words + line).seen_in(o.case)


def probe(
    implementation: Implementation, observed: Sequence[Observation], budget: CallBudget
) -> tuple[str, Observation] | None:
    """What is wrong first and where, and the call that shows it."""
    for o in most_telling(observed):
        stage = first_wrong_stage(implementation, o, budget)
        if shows_weights(implementation.operation, o) and (
            not stage or stage[0].weights != "nothing"
        ):
            try:
                told = localize_by_weights(implementation, o, budget, rows_beside(o, observed))
            except (Disagreement, Unsupported):
                continue
            if told:
                beside = stage and stage[0].weights == "more"
                words = (
                    say.AND_STAGE.format(outputs=told, stage=stage[1]) if stage and beside else ""
                )
                return words or told.words, o
        where = describe_wrong_outputs(observed)
        if where and stage:
            return say.AND_STAGE.format(outputs=where, stage=stage[1]), o
        break
    where = describe_wrong_outputs(observed)
    return (where, most_telling(observed)[0]) if where else None


def shows_weights(operation: Operation, o: Observation) -> bool:
    """Whether values that are unit vectors show the weights."""
    given = {"query", "key", "value"} <= set(operation.arguments) and operation.outside is None
    return given and not operation.is_gradient and "parameters" not in o.inputs


def rows_beside(o: Observation, observed: Sequence[Observation]) -> list[ndarray]:
    """Which rows are wrong in the output of each other case, of shape [B H N 1]."""
    beside = (wrong_elements(each) for each in observed if each.case != o.case and each.wrong)
    wrong = [found[0] for found in beside if found and found[0].ndim]
    return [np.asarray(x.any(axis=-1, keepdims=True)) for x in wrong]


def localize_by_weights(
    implementation: Implementation,
    o: Observation,
    budget: CallBudget,
    others: Sequence[ndarray] = (),
) -> Cause | None:
    """
    Find the stages of one recipe, first to last; None where the probe shows nothing. ``others`` are
    the wrong rows of other cases: a place that is not theirs is not told.
    """
    calls = -(-o.inputs["key"].shape[-2] // o.inputs["value"].shape[-1])
    if calls > MOST_CALLS or not budget.affords(calls, 1):
        return None
    own, law, bound = weights(implementation, o, o.inputs)
    wrong = exceeds_bound(own, law, bound)
    if not wrong.any():
        return Cause(describe_wrong_outputs([o], say.WEIGHTS_RIGHT))
    visible = np.broadcast_to(seen_pairs(implementation.operation, o.inputs), law.shape)
    leaks, lost = wrong & ~visible, visible & (own == 0) & (law > 1e3 * bound)
    if leaks.any() and np.isfinite(own).all():
        rows = visible.any(axis=-1, keepdims=True)
        some = (wrong & rows).any()
        hides = hidden_by(implementation.operation, o.inputs, leaks)
        template = say.HIDDEN_KEY_WEIGHED if some else say.EMPTY_ROWS_WEIGHED
        return Cause(template.format(hides=hides, where=describe_indices(leaks, others=others)))
    if lost.any():
        return Cause(say.VISIBLE_KEY_LOST.format(where=describe_indices(lost, others=others)))
    if (undefined := np.isnan(own) & wrong).any():
        return Cause(say.NAN_WEIGHTS.format(where=describe_indices(undefined, others=others)))
    if are_alike(own, law, visible, bound):
        return Cause(say.ALL_ALIKE.format(where=describe_indices(wrong, others=others)))
    sums = own.sum(axis=-1)
    off = exceeds_bound(sums, law.sum(axis=-1), bound.sum(axis=-1))
    if off.any() and ratios_agree(own, law, bound):
        where = describe_indices(wrong, others=others)
        told = {"least": sums[off].min(), "most": sums[off].max(), "where": where}
        times = counted_sinks(implementation.operation, o.inputs, off, sums, law.sum(axis=-1))
        return Cause(say.ROW_FACTOR.format(sinks=times, **told))
    if not budget.affords(calls, 1):
        return Cause(say.WEIGHTS_WRONG.format(where=describe_indices(wrong, others=others)))
    return localize_in_scores(implementation, o, wrong, others)


def hidden_by(operation: Operation, inputs: Inputs, pairs: ndarray) -> str:
    """
    Name the option that alone hides these pairs, so that without it they would be seen; a mask only
    where others are given beside it.
    """
    given = [name for name in HIDERS if not is_absent(inputs.get(name))]
    for name in given if len(given) > 1 else {*given} - {*MASKS}:
        rest = {other: x for other, x in inputs.items() if other != name}
        seen = seen_pairs(operation, rest, partial(visible_without, name))
        if np.broadcast_to(seen, pairs.shape)[pairs].all():
            return say.HIDDEN_BY.format(name=name)
    return ""


def visible_without(name: str, B: int, N: int, M: int, **options: Any) -> ndarray:
    """What options leave visible without one of them, the rows where they were."""
    placed = {"offset": real_offset({"B": B, "N": N, "M": M, **options})} if options else {}
    return visible_keys(B, N, M, **{k: x for k, x in (options | placed).items() if k != name})


HIDERS = (*MASKS, *HIDING)
"""What hides keys, each without the others."""


def localize_in_scores(
    implementation: Implementation, o: Observation, wrong: ndarray, others: Sequence[ndarray]
) -> Cause:
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
        return Cause(
            say.WRONG_BY_SCORES.format(zero=zero, where=describe_indices(wrong, others=others))
        )
    alike = say.BIASES_ALONE if biased else say.ALL_EQUAL
    return Cause(
        say.WRONG_WITHOUT_SCORES.format(alike=alike, where=describe_indices(without, others=others))
    )


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
    given = with_unit_vectors(inputs)
    law = specified_weights(implementation.operation, inputs)
    with np.errstate(all="ignore"):
        bound, *_ = arrays(
            bounds.bound(implementation.operation.name, given, implementation.precision(o.dtype))
        )
    own: list[ndarray] = []
    for start in range(0, M, E):
        value = np.broadcast_to(np.eye(M, start + E)[:, start:], shape)
        own += observe_answer(implementation, o, inputs | {"value": value})[:1]
    return np.concatenate(own, axis=-1)[..., :M], law, bound


def counted_sinks(
    operation: Operation, inputs: Inputs, off: ndarray, own: ndarray, law: ndarray
) -> str:
    """
    Say how often the rows that are off count a sink, where all of them agree, by the sums of their
    own weights and of the specified ones.
    """
    if is_absent(inputs.get("sink")):
        return ""
    keys = specified_weights(operation, without_draw(inputs)).sum(axis=-1)[off]
    with np.errstate(all="ignore"):
        times = (law[off] / (keys * own[off]) - 1) / (1 / keys - 1)
    clear = times[(keys < 1 - SINK) & (keys > SINK)]
    agree = clear.size and np.ptp(clear) <= SINK * max(np.abs(clear).max(), 1)
    return say.SINKS_COUNTED.format(times=clear.mean() + 0.0) if agree else ""


SINK = 1e-3
"""So much of a row at least must belong to the sink, and to keys, for it to be told."""


def with_unit_vectors(inputs: Inputs) -> Inputs:
    *lead, M, _ = inputs["value"].shape
    return inputs | {"value": np.broadcast_to(np.eye(M), (*lead, M, M))}


def specified_weights(operation: Operation, inputs: Inputs) -> ndarray:
    law, *_ = arrays(evaluate_spec(operation, with_unit_vectors(inputs)))
    return law


def are_alike(own: ndarray, law: ndarray, visible: ndarray, bound: ndarray) -> bool:
    """Whether all that a row sees has one weight, in every row, where the weights should differ."""
    with np.errstate(all="ignore"):
        apart = [
            np.where(visible, x, -inf).max(-1) - np.where(visible, x, inf).min(-1)
            for x in (own, law)
        ]
    rows = visible.sum(-1) > 1
    most = 2 * bound.max(-1)
    return bool(rows.any() and (apart[0] <= most)[rows].all() and (apart[1] > 2 * most)[rows].any())


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
