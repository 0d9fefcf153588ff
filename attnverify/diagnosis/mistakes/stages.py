"""
Mistakes in one stage of an attention: masks multiplied or at a sentinel, dropout in the wrong
place, a softmax over another axis, weights rounded, terms of the gradient left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import largest, round_to
from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.conventions.stage_changes import float_mask
from attnverify.diagnosis.mistakes.sentinels import sentinel_mistakes, stored
from attnverify.reference import attention
from attnverify.reference.staged_attention import Change, StagedAttention, dropped

Applies = Callable[[Operation], bool]


def stage_mistakes(operation: Operation) -> Iterator[tuple[str, Change]]:
    """Words and change of each mistake that the operation can show."""
    if operation.is_score:
        return
    if operation.forward.mask:
        yield from sentinel_mistakes(operation.forward)
    for applies, words, change in STAGE_MISTAKES:
        if applies(operation.forward):
            yield words, change
    if operation.is_gradient:
        yield from (
            (words, change) for applies, words, change in GRADIENT_MISTAKES if applies(operation)
        )


def boolean_mask(s: StagedAttention) -> Any:
    mask = s.inputs.get("mask", s.inputs.get("visible"))
    return mask if mask is not None and mask.dtype == bool else None


def with_scores_multiplied(s: StagedAttention) -> StagedAttention:
    mask = boolean_mask(s)
    return (
        s if mask is None else replace(s, visible=None, rescore=lambda score: score * (1.0 * mask))
    )


def with_sentinel(number: float) -> Change:
    """Return the number added to hidden scores, and stored."""

    def change(s: StagedAttention) -> StagedAttention:
        if s.visible is None:
            return s
        shift = np.where(s.visible, 0.0, number)
        return replace(s, visible=None, rescore=lambda score: round_to(score + shift, s.dtype))

    return change


def masked_after_softmax(s: StagedAttention) -> StagedAttention:
    mask = boolean_mask(s)
    if mask is None:
        return s
    causal = True if s.causal is None else s.causal

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        before = np.broadcast_to(causal, score.shape)
        return np.where(visible, attention.weigh(score, before), 0.0)

    return replace(s, weigh=weigh)


def over_axis(axis: int) -> Change:
    """Return a softmax over another axis than the keys."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        if score.ndim < -axis:
            return attention.weigh(score, visible)
        moved = (np.moveaxis(x, axis, -1) for x in (score, visible))
        return np.moveaxis(attention.weigh(*moved), -1, axis)

    return lambda s: replace(s, weigh=weigh)


def dropped_scores(s: StagedAttention) -> StagedAttention:
    keep = s.inputs.get("keep")
    if keep is None:
        return s
    return replace(without_draw(s), scale=s.scale * s.kept * keep)


def dropped_keys_hidden(s: StagedAttention) -> StagedAttention:
    keep = s.inputs.get("keep")
    if keep is None:
        return s
    visible = keep if s.visible is None else s.visible & keep
    return replace(without_draw(s), visible=visible)


def without_draw(s: StagedAttention) -> StagedAttention:
    return replace(s, inputs=s.inputs | {"keep": None}, kept=1.0)


def without_maximum(empty: float, dtype: str = "") -> Change:
    """
    Return the exponentials of the scores as they are, as the dtype holds them, by default one that
    is wide enough for the inputs; ``empty`` stands for a sum of 0.
    """

    def change(s: StagedAttention) -> StagedAttention:
        held = dtype or ("float64" if s.dtype == "float64" else "float32")

        def weigh(score: ndarray, visible: ndarray) -> ndarray:
            weights = np.where(visible, round_to(np.exp(score), held), 0.0)
            total = weights.sum(axis=-1, keepdims=True)
            shares = weights / np.where(total == 0, empty, total)
            return np.where(visible.any(axis=-1, keepdims=True), shares, 0.0)

        return replace(s, weigh=weigh)

    return change


def stored_in(dtype: str) -> Change:
    return lambda s: replace(s, stored=lambda weights: round_to(weights, dtype))


def scale_of(size: Callable[[StagedAttention], int]) -> Change:
    return lambda s: replace(s, scale=s.scale * size(s) ** -0.5)


def with_backward(**stages: Any) -> Change:
    return lambda s: replace(s, backward=stages)


def everywhere(weights: ndarray, visible: ndarray, d_weights: ndarray, mean: ndarray) -> ndarray:
    """The gradient of the scores, of hidden ones too."""
    return weights * (d_weights - mean)


def kept_in_storage(**stages: Any) -> Change:
    """
    Return the gradient of the weights kept in the dtype of the inputs: where that of a hidden
    weight overflows, the row mean is 0 times infinity.
    """

    def change(s: StagedAttention) -> StagedAttention:
        def drop_back(d: ndarray, keep: Any, p: float) -> ndarray:
            return stored(dropped(s, stored(d, s.dtype)), s.dtype)

        return replace(s, backward={"drop_back": drop_back, "row_mean": mean_of_all, **stages})

    return change


def mean_of_all(weights: ndarray, d_weights: ndarray) -> ndarray:
    return (weights * d_weights).sum(axis=-1, keepdims=True)


def draw_forgotten(s: StagedAttention) -> StagedAttention:
    return replace(s, backward={"drop_back": lambda d, keep, p: d})


def mean_over_queries(weights: ndarray, d_weights: ndarray) -> ndarray:
    both: ndarray = np.where(weights == 0, 0, weights * d_weights)
    return both.sum(axis=-2, keepdims=True)


def value_gradient_unmasked(s: StagedAttention) -> StagedAttention:
    if boolean_mask(s) is None and s.bias is None and s.visible is None:
        return s

    def weigh_all(score: ndarray) -> ndarray:
        bare = score if s.bias is None else score - s.bias
        causal = np.broadcast_to(True if s.causal is None else s.causal, score.shape)
        weights = attention.weigh(bare, causal)
        keep = s.inputs.get("keep")
        return weights * s.kept if keep is None else np.where(keep, weights * s.kept, 0.0)

    from_scores: dict[str, ndarray] = {}

    def remember(score: ndarray) -> ndarray:
        from_scores["weights"] = weigh_all(score)
        return score

    def value_grad(weights: ndarray, visible: ndarray, d_output: ndarray) -> ndarray:
        return from_scores["weights"].mT @ d_output

    return replace(s, rescore=remember, backward={"value_grad": value_grad})


def overflowing_beside(operation: Operation) -> Iterator[tuple[tuple[str, Change], ...]]:
    """Numbers in place of minus infinity, each beside such a gradient."""
    if operation.is_gradient and operation.forward.mask:
        for sentinel in sentinel_mistakes(operation.forward):
            yield (OVERFLOWING_GRADIENT, kept_in_storage()), sentinel


def unguarded() -> Iterator[tuple[str, Change]]:
    """What a softmax as it stands in a textbook shows besides NaN in rows that see no key."""
    for dtype in ("", "float16"):
        yield OVERFLOWING[dtype], without_maximum(0.0, dtype)


OVERFLOWS = {dtype: float(np.log(largest(dtype))) for dtype in ("float16", "float32", "float64")}
"""The largest number whose exponential is finite."""
OVERFLOWING = {
    "": "exponentials without the maximum subtracted, which overflow from a score of "
    f"{OVERFLOWS['float32']:.3g} on ({OVERFLOWS['float64']:.3g} in float64)",
    "float16": "exponentials in float16 without the maximum subtracted, which overflow from a "
    f"score of {OVERFLOWS['float16']:.3g} on",
}

OVERFLOWING_GRADIENT = "0 times infinity, which is NaN, where a hidden weight's gradient overflows"

ANY: Applies = lambda op: True
MASKED: Applies = lambda op: op.mask is not None
FLOATS: Applies = lambda op: op.mask == "mask"
DROPPED: Applies = lambda op: "keep" in op.arguments
VALUED: Applies = lambda op: "value" in op.arguments
WIDE: Applies = lambda op: "D" in op.sizes and "value" in op.arguments

STAGE_MISTAKES: tuple[tuple[Applies, str, Change], ...] = (
    (MASKED, "scores multiplied by a boolean mask, so that hidden scores are 0",
     with_scores_multiplied),
    *(
        (MASKED, f"hidden keys at {number:g}, which is a number and not minus infinity",
         with_sentinel(number))
        for number in (-1e4, -1e9)
    ),
    (MASKED, "boolean masks applied after the softmax, so that rows do not sum to 1",
     masked_after_softmax),
    (FLOATS, "NaN in rows that a float mask empties",
     float_mask(lambda s: replace(s, empty=np.nan))),
    (ANY, "a softmax over the queries", over_axis(-2)),
    (ANY, "a softmax over the heads", over_axis(-3)),
    *(
        row
        for empty in (0.0, 1.0)
        for row in (
            (ANY, OVERFLOWING[""], without_maximum(empty)),
            (ANY, OVERFLOWING["float16"], without_maximum(empty, "float16")),
        )
    ),
    (DROPPED, "dropout on the scores, before the softmax", dropped_scores),
    (DROPPED, "dropped keys hidden before the softmax, so that kept weights are renormalised",
     dropped_keys_hidden),
    (VALUED, "weights rounded to bfloat16", stored_in("bfloat16")),
    (VALUED, "weights rounded to float16", stored_in("float16")),
    (WIDE, "scores scaled by 1/sqrt(D) and by 1/sqrt(M)", scale_of(lambda s: s.shape[-1])),
    (WIDE, "scores scaled by 1/sqrt(M), the number of keys",
     lambda s: replace(s, scale=s.shape[-1] ** -0.5)),
    (WIDE, "scores scaled by the width of the values, 1/sqrt(E)",
     lambda s: replace(s, scale=s.inputs["value"].shape[-1] ** -0.5)),
    (lambda op: "w_score" in op.arguments, "an additive score that is scaled by 1/sqrt(A)",
     lambda s: replace(s, scale=len(s.inputs["w_score"]) ** -0.5)),
)  # fmt: skip

GRADIENT_MISTAKES: tuple[tuple[Applies, str, Change], ...] = (
    (ANY, "a gradient without delta, the row mean of the softmax",
     with_backward(row_mean=lambda weights, d_weights: 0.0)),
    (ANY, "a delta that is summed over the queries instead of the keys",
     with_backward(row_mean=mean_over_queries)),
    (lambda op: "D" in op.sizes, "gradients by query and key that are not scaled",
     lambda s: replace(s, d_scale=1.0)),
    (DROPPED, "a gradient of the weights that forgets dropout", draw_forgotten),
    (MASKED, "a gradient by value that ignores the mask", value_gradient_unmasked),
    (lambda op: op.forward.mask == "mask",
     "NaN in rows that a float mask empties, which reaches hidden keys too",
     float_mask(lambda s: replace(s, empty=np.nan, backward={"score_grad": everywhere}))),
    (ANY, OVERFLOWING_GRADIENT, kept_in_storage()),
    (ANY, f"{OVERFLOWING_GRADIENT}, which reaches hidden keys too",
     kept_in_storage(score_grad=everywhere)),
)  # fmt: skip
