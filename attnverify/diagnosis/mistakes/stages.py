"""
Mistakes in one stage of an attention: masks multiplied or at a sentinel, dropout in the wrong
place, a softmax over another axis, weights rounded, terms of the gradient left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import largest, round_to
from attnverify.catalogue.operation import Operation
from attnverify.conventions.convention import conventions
from attnverify.conventions.slopes import below
from attnverify.conventions.stage_changes import behind_causal, float_mask
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.mistakes.arithmetic import describe_rounding
from attnverify.diagnosis.mistakes.gradients import dropped_for_weights
from attnverify.diagnosis.mistakes.sentinels import (
    NUMBERS,
    Sentinel,
    no_lower_than,
    sentinel_mistakes,
    stored,
)
from attnverify.reference import attention, gradients
from attnverify.reference.staged_attention import Change, StagedAttention, dropped, scores

Applies = Callable[[Operation], bool]
Rounding = Callable[[ndarray], ndarray]


def stage_mistakes(operation: Operation) -> Iterator[tuple[str, Change]]:
    """Words and change of each mistake that the operation can show."""
    if operation.is_score:
        return
    if operation.forward.mask:
        yield from sentinel_mistakes(operation.forward)
    yield from rounded_stages(operation.forward)
    for applies, words, change in STAGE_MISTAKES:
        if applies(operation.forward):
            yield words, change
    if operation.is_gradient:
        yield from recomputing(operation)
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


def from_the_offset(s: StagedAttention) -> StagedAttention:
    """A loop over the keys that begins at the offset of the queries."""
    N, M = s.shape[-2:]
    read = np.arange(M) >= M - N
    return replace(s, visible=read if s.visible is None else s.visible & read)


def with_sentinel(number: float, s: StagedAttention) -> StagedAttention:
    """Return the number added to hidden scores, and stored."""
    if s.visible is None:
        return s
    shift = np.where(s.visible, 0.0, number)
    return replace(s, visible=None, rescore=lambda score: round_to(score + shift, s.dtype))


def masked_after_softmax(s: StagedAttention) -> StagedAttention:
    mask = boolean_mask(s)
    if mask is None:
        return s
    causal = True if s.causal is None else s.causal

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        before = np.broadcast_to(causal, score.shape)
        return np.where(visible, attention.weigh(score, before), 0.0)

    return replace(s, weigh=weigh)


def inverted_and_guarded(shown: Change, s: StagedAttention) -> StagedAttention:
    """
    Return a boolean mask taken the other way round, and rows that it hides wholly as it was given
    set to 0 all the same; ``shown`` says what the others are that then see no key.
    """
    mask = boolean_mask(s)
    if mask is None:
        return s
    guarded = np.broadcast_to(~mask.any(axis=-1, keepdims=True), (*s.shape[:-1], 1))
    made = shown(replace(s, visible=~mask))
    own = attention.weigh if made.weigh is None else made.weigh
    return replace(
        made,
        weigh=lambda score, visible: np.where(guarded, 0.0, own(score, visible)),
        empty=np.where(guarded, 0.0, made.empty),
    )


def over_axes(axes: tuple[int, ...], score: ndarray, visible: ndarray) -> ndarray:
    """A softmax over other axes than the keys alone."""
    if score.ndim < -min(axes):
        return attention.weigh(score, visible)
    last = range(-len(axes), 0)
    moved = [np.moveaxis(np.broadcast_to(x, score.shape), axes, last) for x in (score, visible)]
    shape = moved[0].shape
    flat = (x.reshape(*shape[: -len(axes)], -1) for x in moved)
    return np.moveaxis(attention.weigh(*flat).reshape(shape), last, axes)


def over_root_of_squares(score: ndarray, visible: ndarray) -> ndarray:
    weights = attention.weigh(score, visible)
    return weights / np.maximum(np.sqrt((weights**2).sum(axis=-1, keepdims=True)), 1e-300)


def over_maximum(score: ndarray, visible: ndarray) -> ndarray:
    weights = attention.weigh(score, visible)
    return weights / np.maximum(weights.max(axis=-1, keepdims=True), 1e-300)


def along_columns(of_top: bool, of_sum: bool, score: ndarray, visible: ndarray) -> ndarray:
    """
    Maxima and sums of rows that are broadcast along the rows, in square tiles of all rows one after
    the other, as wide as the next power of two: column j has those of row j of its tile.
    """
    M = score.shape[-1]
    W = 1 << max(M - 1, 0).bit_length()
    rows = np.where(visible, score, -np.inf).reshape(-1, M)
    full = np.full((-(-len(rows) // W) * W, W), -np.inf)
    full[: len(rows), :M] = rows
    tiles = full.reshape(-1, W, W)
    top = tiles.max(axis=-1)
    top = np.where(np.isneginf(top), 0, top)
    e = np.exp(tiles - (top[:, None, :] if of_top else top[..., None]))
    total = e.sum(axis=-1)
    total = np.where(total == 0, 1, total)
    found = e / (total[:, None, :] if of_sum else total[..., None])
    return found.reshape(-1, W)[: len(rows), :M].reshape(score.shape)


OTHER_SOFTMAXES: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    **{
        f"a softmax over the {words}": partial(over_axes, axes)
        for words, axes in (
            ("queries", (-2,)),
            ("heads", (-3,)),
            ("heads and keys together", (-3, -1)),
            ("queries and keys together", (-2, -1)),
        )
    },
    "a softmax over an axis of length 1, so that every weight is 1": lambda score, visible: (
        attention.weigh(*(x[..., None] for x in np.broadcast_arrays(score, visible)))[..., 0]
    ),
    "exponentials that are not divided by their sum, the largest of a row 1": over_maximum,
    "weights divided by the root of the sum of their squares": over_root_of_squares,
    "sigmoids of the scores in place of a softmax": lambda score, visible: np.where(
        visible, 1 / (1 + np.exp(-score)), 0.0
    ),
    "a softmax of the weights once more": lambda score, visible: attention.weigh(
        attention.weigh(score, visible), visible
    ),
    **{
        f"{what} of each row broadcast along the rows: column j has that of row j of its tile": (
            partial(along_columns, *which)
        )
        for what, which in (
            ("maximum and sum", (True, True)),
            ("the sum", (False, True)),
            ("the maximum", (True, False)),
        )
    },
}


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


def without_maximum(
    empty: float,
    dtype: str = "",
    subtracted: Callable[[ndarray], Any] = lambda seen: 0.0,
    flushed: bool = False,
) -> Change:
    """
    Return the exponentials of the scores less what is subtracted, as the dtype holds them, by
    default one that is wide enough for the inputs; ``empty`` stands for a sum of 0. GPUs take
    subnormal exponentials for 0, ``flushed``.
    """

    def change(s: StagedAttention) -> StagedAttention:
        held = dtype or ("float64" if s.dtype == "float64" else "float32")

        def weigh(score: ndarray, visible: ndarray) -> ndarray:
            seen = np.where(visible, score, -np.inf)
            exponentials = stored(np.exp(score - subtracted(seen)), held)
            if flushed:
                exponentials = np.where(exponentials < np.finfo(held).tiny, 0, exponentials)
            weights = np.where(visible, exponentials, 0.0)
            total = weights.sum(axis=-1, keepdims=True)
            shares = weights / np.where(total == 0, empty, total)
            return np.where(visible.any(axis=-1, keepdims=True), shares, 0.0)

        return replace(s, weigh=weigh)

    return change


def maximum_from(number: float, seen: ndarray) -> ndarray:
    return np.maximum(seen.max(axis=-1, keepdims=True), number)


def maximum_of_rows(so_far: bool, seen: ndarray) -> ndarray:
    """Return the maximum of all rows of a head, or of each and those before it."""
    top = seen.max(axis=-1, keepdims=True)
    top = np.maximum.accumulate(top, -2) if so_far else top.max(axis=-2, keepdims=True)
    return np.where(np.isneginf(top), 0.0, top)


def maximum_of_tile(is_first: bool, keys: int, seen: ndarray) -> ndarray:
    """Return the maximum of the first or of the last tile of so many keys."""
    last = (seen.shape[-1] - 1) // keys * keys
    own = seen[..., :keys] if is_first else seen[..., last:]
    return np.nan_to_num(own.max(axis=-1, keepdims=True), neginf=0.0)


def maximum_of_all(seen: ndarray) -> ndarray:
    return np.nan_to_num(seen.max(keepdims=True), neginf=0.0)


def maximum_scaled_again(empty: float, s: StagedAttention) -> StagedAttention:

    return without_maximum(
        empty, subtracted=lambda seen: seen.max(axis=-1, keepdims=True) * s.scale
    )(s)


def normaliser_without(key: int, empty: float) -> Change:
    """Return weights over a sum that leaves out a key; ``empty`` stands for a sum of 0."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        e = attention.exponentials(score, visible)
        total = np.delete(e, key, axis=-1).sum(axis=-1, keepdims=True)
        shares = e / np.where(total == 0, empty, total)
        return np.where(visible.any(axis=-1, keepdims=True), shares, 0.0)

    return lambda s: replace(s, weigh=weigh)


def hidden_at(number: float, s: StagedAttention) -> StagedAttention:
    """Return a number for what a boolean mask hides."""
    seen = s.visible
    if boolean_mask(s) is None:
        return s
    return replace(s, visible=None, rescore=lambda score: np.where(seen, score, number))


def averaged_or_nan(operation: Operation) -> Iterator[tuple[tuple[str, Change], ...]]:
    """A number for what a boolean mask hides, and NaN where other rows are all minus infinity."""
    if FLOATS(operation):
        nan = EMPTIED[0], partial(replace, empty=np.nan)
        for number in NUMBERS:
            yield (say.BOOLEAN_HIDDEN_AT.format(number=number), partial(hidden_at, number)), nan


def rounded_stages(operation: Operation) -> Iterator[tuple[str, Change]]:
    """Words and change of each stage that may be stored in a narrower format."""
    for dtype in ("bfloat16", "float16"):
        for applies, words, field, change in ROUNDED_STAGES:
            if applies(operation):
                told = describe_rounding(words, field, dtype)
                yield told, partial(change, lambda x, dtype=dtype: round_to(x, dtype))


def with_rounded_softmax(of_e: Rounding, of_total: Rounding, s: StagedAttention) -> StagedAttention:
    """Return the exponentials rounded before they are divided, or their sum, or both."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        e = attention.exponentials(score, visible)
        total = of_total(e.sum(axis=-1, keepdims=True))
        return of_e(e) / np.where(total == 0, 1, total)

    return replace(s, weigh=weigh)


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

        return replace(
            s,
            backward={
                "drop_back": drop_back,
                "row_mean": lambda weights, d_weights: (weights * d_weights).sum(
                    axis=-1, keepdims=True
                ),
                **stages,
            },
        )

    return change


def drawn_back(factor: Callable[[float], float], s: StagedAttention) -> StagedAttention:
    """Return the gradient of the weights with another factor on those that dropout kept."""
    if s.inputs.get("keep") is None:
        return s
    drawn = replace(s, kept=factor(s.inputs["p"]))
    return replace(s, backward={"drop_back": lambda d, keep, p: dropped(drawn, d)})


def recomputed(change: Change, own_mean: bool, s: StagedAttention) -> StagedAttention:
    """
    Return a backward that computes the scores anew with a change and takes the sums of the forward
    for them: weights that need not sum to 1, with delta of these weights or of the output.
    """
    score, visible = scores(s)
    seen = np.where(visible, score, -np.inf)
    top = seen.max(axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top)
    total = np.exp(seen - top).sum(axis=-1, keepdims=True)
    law = np.exp(seen - top) / np.where(total == 0, 1, total)

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        again = np.where(visible, score, -np.inf)
        return np.exp(again - top) / np.where(total == 0, 1, total)

    stages = (
        {}
        if own_mean
        else {"row_mean": lambda weights, d_weights: gradients.row_mean(law, d_weights)}
    )
    return replace(change(s), weigh=weigh, backward=stages)


def recomputing(operation: Operation) -> Iterator[tuple[str, Change]]:
    """Backwards that compute the scores anew in another way than the forward."""
    rows = [(c.words, c.change) for c in conventions(operation.name) if c.change is not None]
    rows.append(("no causal mask and no other", lambda s: replace(s, causal=None, visible=None)))
    if operation.traits.slopes:
        rows.append(
            (
                "no causal mask, distances |i - j|",
                lambda s: replace(s, causal=None, visible=None, distance=-np.abs(s.distance)),
            )
        )
    rows.append(("2^x for e^x", lambda s: replace(s, exponent=np.log(2.0))))
    rows.append(("scores scaled twice", lambda s: replace(s, scale=s.scale**2)))
    for words, change in rows:
        for own_mean in (False, True):
            delta = ", delta of these weights too" if own_mean else ""
            told = f"a backward that recomputes the weights with {words}{delta}"
            yield told, partial(recomputed, change, own_mean)


def mean_over_queries(weights: ndarray, d_weights: ndarray) -> ndarray:
    both: ndarray = np.where(weights == 0, 0, weights * d_weights)
    return both.sum(axis=-2, keepdims=True)


def value_gradient_unmasked(s: StagedAttention) -> StagedAttention:
    if boolean_mask(s) is None and s.bias is None and s.visible is None:
        return s

    def weigh_all(score: ndarray) -> ndarray:
        bare = score if s.bias is None else score - s.bias
        causal = np.broadcast_to(True if s.causal is None else s.causal, score.shape)
        return dropped(s, attention.weigh(bare, causal))

    from_scores: dict[str, ndarray] = {}

    def remember(score: ndarray) -> ndarray:
        from_scores["weights"] = weigh_all(score)
        return score

    def value_grad(weights: ndarray, visible: ndarray, d_output: ndarray) -> ndarray:
        return from_scores["weights"].mT @ d_output

    return replace(s, rescore=remember, backward={"value_grad": value_grad})


def value_gradient_rounded(dtype: str) -> Change:
    return lambda s: replace(s, backward={"drop": lambda w, _, p: dropped(s, round_to(w, dtype))})


def overflowing_beside(operation: Operation) -> Iterator[tuple[tuple[str, Change], ...]]:
    """Numbers in place of minus infinity, each beside such a gradient."""
    if operation.is_gradient and operation.forward.mask:
        for sentinel in sentinel_mistakes(operation.forward):
            yield (OVERFLOWING_GRADIENT, kept_in_storage()), sentinel


def unguarded() -> Iterator[tuple[str, Change]]:
    """
    What a softmax as it stands in a textbook, or with the maximum of something else, shows besides
    NaN in rows that see no key.
    """
    for dtype in ("", "float16"):
        yield OVERFLOWING[dtype], without_maximum(0.0, dtype)
    for words, what, top in MAXIMA:
        for flushed in (False, True):
            yield UNDERFLOWING.format(words, what), without_maximum(0.0, "", top, flushed)


OVERFLOWS = {dtype: float(np.log(largest(dtype))) for dtype in ("float16", "float32", "float64")}
"""The largest number whose exponential is finite."""
OVERFLOWING = {
    "": "exponentials without the maximum subtracted, which overflow from a score of "
    f"{OVERFLOWS['float32']:.3g} on ({OVERFLOWS['float64']:.3g} in float64)",
    "float16": "exponentials in float16 without the maximum subtracted, which overflow from a "
    f"score of {OVERFLOWS['float16']:.3g} on",
}

UNDERFLOWING = "a maximum {}, so that rows far below {} underflow"
OVERFLOWING_GRADIENT = "0 times infinity, which is NaN, where a hidden weight's gradient overflows"

ANY: Applies = lambda op: True
MASKED: Applies = lambda op: op.mask is not None
FLOATS: Applies = lambda op: op.mask == "mask"
DROPPED: Applies = lambda op: "keep" in op.arguments


def causal_by_one(step: int) -> Change:
    """
    Return a causal mask that ends so many keys further on, in the place of the one that is given,
    or of none where a causal one hides nothing.
    """

    def change(s: StagedAttention) -> StagedAttention:
        N, M = s.shape[-2:]
        is_open = s.visible is None and N > 1
        return s if is_open else replace(s, visible=np.tri(N, M, M - N + step, dtype=bool))

    return change


OPEN: Applies = lambda op: op.is_attention and not op.traits.causal
VALUED: Applies = lambda op: "value" in op.arguments
WIDE: Applies = lambda op: "D" in op.sizes and "value" in op.arguments

MAXIMA: tuple[tuple[str, str, Callable[[ndarray], Any]], ...] = (
    *(
        (f"whose search begins at {number:g}", f"{number:g}", partial(maximum_from, number))
        for number in (0.0, -1.0, -10.0, -100.0, -1e3, -1e4, -1e5)
    ),
    ("of all rows of a head", "it", partial(maximum_of_rows, False)),
    ("of all rows of all heads", "it", maximum_of_all),
    ("that is never lowered from row to row", "one before", partial(maximum_of_rows, True)),
)
"""What the maximum is of, below which number rows underflow, and what is subtracted."""

ROUNDED_STAGES: tuple[tuple[Applies, str, str, Callable[..., StagedAttention]], ...] = (
    (ANY, "scores", "score", lambda rounding, s: replace(s, rescore=rounding)),
    (
        ANY,
        "weights",
        "prob",
        lambda rounding, s: replace(
            s, weigh=lambda score, visible: rounding(attention.weigh(score, visible))
        ),
    ),
    (
        DROPPED,
        "weights behind the dropout",
        "prob",
        lambda rounding, s: replace(s, stored=rounding),
    ),
    (
        ANY,
        "exponentials",
        "prob",
        lambda rounding, s: with_rounded_softmax(rounding, np.asarray, s),
    ),
    (
        ANY,
        "sums of the softmax",
        "softmax",
        lambda rounding, s: with_rounded_softmax(np.asarray, rounding, s),
    ),
    (
        FLOATS,
        "float masks",
        "",
        lambda rounding, s: s if s.bias is None else replace(s, bias=rounding(s.bias)),
    ),
    (
        WIDE,
        "a scale",
        "scale_const",
        lambda rounding, s: replace(s, scale=float(rounding(np.array(s.scale)))),
    ),
)
"""What is rounded, and the field of PRECISION that says so: inputs such as masks have none."""

EMPTIED: tuple[str, Change] = (
    "NaN in rows that a float mask empties",
    partial(float_mask, lambda s: replace(s, empty=np.nan)),
)
STAGE_MISTAKES: tuple[tuple[Applies, str, Change], ...] = (
    (VALUED, "keys that are read from M - N on, the first query's own, the earlier ones left out",
     from_the_offset),
    (MASKED, "scores multiplied by a boolean mask, so that hidden scores are 0",
     with_scores_multiplied),
    *(
        (MASKED, f"hidden keys at {number:g}, which is a number and not minus infinity",
         partial(with_sentinel, number))
        for number in (-1e4, -1e9)
    ),
    *(
        (FLOATS, say.BOOLEAN_HIDDEN_AT.format(number=number), partial(hidden_at, number))
        for number in NUMBERS
    ),
    *(
        (MASKED, "a mask of which True means hidden beside rows without keys found by the mask as "
         "it was given", partial(inverted_and_guarded, shown))
        for shown in (Sentinel(partial(no_lower_than, -1e30)), lambda s: s,
                      partial(replace, empty=np.nan))
    ),
    *(
        (ANY, f"weights over a sum that leaves out the {words} key, so that rows do not sum to 1",
         normaliser_without(key, empty))
        for words, key in (("last", -1), ("first", 0))
        for empty in (1.0, 0.0)
    ),
    (MASKED, "boolean masks applied after the softmax, so that rows do not sum to 1",
     masked_after_softmax),
    (FLOATS, "a float mask multiplied with the scores in place of added",
     partial(float_mask, lambda s: s if s.bias is None else replace(s, bias=None,
      rescore=lambda score: score * s.bias))),
    (FLOATS, *EMPTIED),
    (ANY, "scores below 0 taken for 0",
     lambda s: replace(s, rescore=lambda score: np.maximum(score, 0.0))),
    (ANY, "scores of 0 taken for hidden", lambda s: replace(s, weigh=lambda score,
     seen: attention.weigh(score, seen & (score != 0)))),
    *((ANY, words, partial(replace, weigh=weigh)) for words, weigh in OTHER_SOFTMAXES.items()),
    *(
        row
        for empty in (0.0, 1.0)
        for row in (
            (ANY, OVERFLOWING[""], without_maximum(empty)),
            (ANY, OVERFLOWING["float16"], without_maximum(empty, "float16")),
        )
    ),
    *(
        (ANY, UNDERFLOWING.format(words, what),
         without_maximum(empty, subtracted=top, flushed=flushed))
        for words, what, top in MAXIMA
        for empty in (0.0, 1.0)
        for flushed in (False, True)
    ),
    *(
        (ANY, f"a maximum of the {where} keys alone, so that scores far above it overflow",
         without_maximum(empty, subtracted=partial(maximum_of_tile, where == "first", keys)))
        for where, keys in product(("first", "last"), (1, 16, 32, 64, 128))
        for empty in (0.0, 1.0)
    ),
    *(
        (WIDE, "a maximum scaled by 1/sqrt(D) once more before it is subtracted, so that rows far "
         "from 0 over- and underflow", partial(maximum_scaled_again, empty))
        for empty in (0.0, 1.0)
    ),
    (lambda op: OPEN(op) and MASKED(op), "a top-left causal mask in place of the one given",
     partial(behind_causal, lambda N, M: 0)),
    (lambda op: OPEN(op) and MASKED(op), "an end-aligned causal mask in place of the one given",
     partial(behind_causal, lambda N, M: M - N)),
    (lambda op: OPEN(op) and MASKED(op), "a causal mask that hides the query's own key",
     causal_by_one(-1)),
    (lambda op: OPEN(op) and MASKED(op), "a causal mask that shows one key beyond",
     causal_by_one(1)),
    (DROPPED, "dropout on the scores, before the softmax", dropped_scores),
    (DROPPED, "dropped keys hidden before the softmax, so that kept weights are renormalised",
     dropped_keys_hidden),
    (lambda op: op.traits.slopes, "slopes one step too small: those of the next head",
     lambda s: replace(s, slopes=s.slopes * np.exp2(-8 / below(len(s.slopes))))),
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
    (DROPPED, "a gradient of the weights that forgets dropout", lambda s: replace(s,
     backward={"drop_back": lambda d, keep, p: d})),
    *(
        (VALUED, describe_rounding("a gradient by value of weights", "prob", dtype),
         value_gradient_rounded(dtype))
        for dtype in ("bfloat16", "float16")
    ),
    (DROPPED, "a gradient by value that forgets dropout",
     with_backward(drop=lambda weights, keep, p: weights)),
    *(
        (DROPPED, f"a gradient of the weights whose dropout is {words}", partial(drawn_back,
         factor))
        for words, factor in (
            ("not scaled by 1/(1-p)", lambda p: 1.0),
            ("scaled by p in place of 1/(1-p)", lambda p: p),
            ("scaled by 1-p in place of 1/(1-p)", lambda p: 1 - p),
            ("scaled by 1/p in place of 1/(1-p)", lambda p: 1 / p if p else 1.0),
            ("scaled by 1/(1-p) twice", lambda p: (1 - p) ** -2),
        )
    ),
    *(
        (DROPPED, "the weights behind the dropout taken for the softmax's in its gradient",
         partial(dropped_for_weights, back))
        for back in (True, False)
    ),
    (ANY, "weights detached from the gradient: a constant, so that nothing reaches the scores",
     with_backward(score_grad=lambda weights, visible, d_weights, mean: 0.0 * weights)),
    (ANY, "the softmax's gradient by its diagonal alone, p (1 - p)",
     with_backward(row_mean=lambda weights, d_weights: weights * d_weights)),
    (MASKED, "a gradient by value that ignores the mask", value_gradient_unmasked),
    (lambda op: op.forward.mask == "mask",
     "NaN in rows that a float mask empties, which reaches hidden keys too",
     partial(float_mask, lambda s: replace(s, empty=np.nan, backward={"score_grad": everywhere}))),
    (ANY, OVERFLOWING_GRADIENT, kept_in_storage()),
    (ANY, f"{OVERFLOWING_GRADIENT}, which reaches hidden keys too",
     kept_in_storage(score_grad=everywhere)),
)  # fmt: skip
