"""Faults of the softmax: its axis, its maximum, its sum, its empty rows, and its running form."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import add_faults
from attnverify.reference import attention
from attnverify.reference.attention import HIDDEN

ROWS, EMPTY, ABSENT = "softmax: over the keys of a row", "softmax, clause 3", "softmax, clause 2"


def weigh_over(axis: int, score: ndarray, visible: ndarray) -> ndarray:
    turned = attention.weigh(score.swapaxes(axis, -1), visible.swapaxes(axis, -1))
    return turned.swapaxes(axis, -1)


def online(
    score: ndarray, visible: ndarray, block: int = 16, guarded: bool = True, rescaled: bool = True
) -> ndarray:
    """Block after block of keys: the sum so far is brought to each new maximum."""
    score = np.where(visible, score, HIDDEN)
    top, total = np.full((*score.shape[:-1], 1), HIDDEN), np.zeros((*score.shape[:-1], 1))
    weights = np.zeros_like(score)
    for start in range(0, score.shape[-1], block):
        part = score[..., start : start + block]
        new = np.maximum(top, part.max(axis=-1, keepdims=True))
        base_of = np.where(new == HIDDEN, 0, new) if guarded else new
        factor = np.exp(top - base_of) if rescaled else 1.0
        e = np.exp(part - base_of)
        total, weights = total * factor + e.sum(axis=-1, keepdims=True), weights * factor
        weights[..., start : start + block], top = e, new
    return np.where(total == 0, 0, weights / np.where(total == 0, 1, total))


def split(
    score: ndarray,
    visible: ndarray,
    value: ndarray,
    parts: int = 2,
    guarded: bool = True,
    equal: bool = False,
) -> ndarray:
    """Attention over slices of the keys, merged by their log-sum-exps."""
    edges = np.linspace(0, score.shape[-1], parts + 1).astype(int)
    outputs, lses = [], []
    for low, high in pairwise(edges):
        s, seen = score[..., low:high], visible[..., low:high]
        if high == low:
            continue
        e = attention.exponentials(s, seen)
        outputs.append(attention.mix(attention.weigh(s, seen), seen, value[..., low:high, :]))
        top = np.where(seen, s, HIDDEN).max(axis=-1, keepdims=True)
        lses.append(np.log(e.sum(axis=-1, keepdims=True)) + np.where(top == HIDDEN, 0, top))
    lse = np.stack(lses)
    top = lse.max(axis=0)
    share = (
        np.ones_like(lse)
        if equal
        else np.exp(lse - (np.where(top == HIDDEN, 0, top) if guarded else top))
    )
    total = share.sum(axis=0)
    return (np.stack(outputs) * share).sum(axis=0) / np.where(total == 0, 1, total)


def split_attention(value: ndarray, keep: Any, p: float, given: Any, **how: Any) -> Any:
    if keep is not None:
        return attention.scaled_dot_product_attention(value=value, keep=keep, p=p, **given)
    score, visible = attention.see(
        attention.scaled_dot_product_score(given["query"], given["key"]), given["mask"]
    )
    return split(score, visible, value, **how)


def exp_floor(score: ndarray, visible: ndarray) -> ndarray:
    e = np.maximum(attention.exponentials(score, visible), 2.0**-24)
    return e / e.sum(axis=-1, keepdims=True)


def without_maximum(score: ndarray, visible: ndarray) -> ndarray:
    e = np.where(visible, np.exp(score.astype(np.float32)).astype(np.float64), 0)
    return attention.over_sum(e)


def global_maximum(score: ndarray, visible: ndarray) -> ndarray:
    top = np.where(visible, score, HIDDEN).max()
    e = np.where(visible, np.exp((score - top).astype(np.float32)).astype(np.float64), 0)
    return attention.over_sum(e)


def maximum_of_all(score: ndarray, visible: ndarray) -> ndarray:
    top = score.max(axis=-1, keepdims=True)
    e = np.where(visible, np.exp(score - np.where(np.isfinite(top), top, 0)), 0)
    return np.where(visible, attention.over_sum(e), 0)


def empty_rows(fill: Any) -> Any:
    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        return np.where(
            visible.any(axis=-1, keepdims=True),
            attention.weigh(score, visible),
            fill(visible.shape[-1]),
        )

    return weigh


def with_epsilon(score: ndarray, visible: ndarray) -> ndarray:
    e = attention.exponentials(score, visible)
    return e / (e.sum(axis=-1, keepdims=True) + 1e-6)


def without_small_weights(score: ndarray, visible: ndarray) -> ndarray:
    weights = attention.weigh(score, visible)
    return np.where(weights < 1e-4, 0, weights)


add_faults("softmax", (
    ("scaled_dot_product_attention_over_queries", "weights normalised over the queries",
     "labml #146", ROWS, "N > 1 or M > 1", {"weigh": partial(weigh_over, -2)}),
    ("softmax_over_axis_two", "weights normalised over axis 2 whatever the rank", "fastNLP #254",
     ROWS, "four axes",
     lambda score, mask=None: attention.softmax(score, mask, weigh=partial(weigh_over, 2
      if score.ndim > 2
      else -1))),
    ("additive_attention_over_queries", "weights normalised over the queries", "labml #146", ROWS,
     "N > 1 or M > 1", {"weigh": partial(weigh_over, -2)}),
    ("scaled_dot_product_attention_online_unguarded",
     "an online softmax without a guard for hidden blocks", "xformers commit 540fcbfd", EMPTY,
     "the first block of a row hidden", {"weigh": lambda s, v: online(s, v, guarded=False)}),
    ("scaled_dot_product_attention_online_not_rescaled",
     "an online softmax that never rescales its sum", "this project", ROWS,
     "a larger score in a later block", {"weigh": lambda s, v: online(s, v, rescaled=False)}),
    ("alibi_attention_online_not_rescaled", "an online softmax that never rescales its sum",
     "this project", ROWS, "a larger score beyond key 64",
     {"weigh": lambda s, v: online(s, v, block=64, rescaled=False)}),
    ("scaled_dot_product_attention_merge_unguarded",
     "split keys merged without a guard for empty rows", "flash-attention commit 31920dda", EMPTY,
     "a row that sees no key",
     lambda value, keep=None, p=0.0, **given: split_attention(value, keep, p, given,
      guarded=False)),
    ("scaled_dot_product_attention_merge_unweighted", "split keys averaged without their sums",
     "this project", ROWS, "M > 1",
     lambda value, keep=None, p=0.0, **given: split_attention(value, keep, p, given, equal=True)),
    ("softmax_maximum_of_hidden", "a maximum that hidden scores take part in", "this project",
     ABSENT, "a huge hidden score", {"weigh": maximum_of_all}),
    ("learned_relative_attention_maximum_of_hidden", "a maximum that hidden scores take part in",
     "this project", ABSENT, "a huge hidden key", {"weigh": maximum_of_all}),
    ("softmax_filled_with_zero", "hidden scores filled with 0", "PsyNeuLink PR #3196", ABSENT,
     "a hidden key", {"weigh": lambda s, v: attention.weigh(np.where(v, s, 0), np.ones_like(v))}),
    ("transformer_xl_attention_hidden_late", "weights that are hidden after they were normalised",
     "this project", ROWS, "a hidden key",
     {"weigh": lambda s, v: np.where(v, attention.weigh(s, ~np.isnan(s)), 0)}),
    ("scaled_dot_product_attention_clamped_logits", "logits clamped to 50", "this project",
     "softmax", "two logits beyond 50 in one row",
     {"weigh": lambda s, v: attention.weigh(np.clip(s, -50, 50), v)}),
    ("softmax_of_one_key", "a row of one key that gets weight 1 whether it is hidden or not",
     "this project", EMPTY, "M = 1, hidden",
     {"weigh": lambda s, v: np.ones_like(s) if s.shape[-1] == 1 else attention.weigh(s, v)}),
    ("softmax_exp_floor", "an exp that never falls below 2^-24", "torch-spyre PR #4522", ABSENT,
     "hidden keys", {"weigh": exp_floor}),
    ("softmax_without_maximum",
     "exp in float32 without subtracting the maximum, which overflows from a score of 88.7 on",
     "this project", "softmax, clause 4", "logits beyond 88", {"weigh": without_maximum}),
    ("softmax_global_maximum", "the maximum of the whole array in place of the row's",
     "this project", "softmax, clause 4", "rows 104 apart", {"weigh": global_maximum}),
    ("softmax_with_epsilon", "a normaliser of the sum plus 1e-6", "this project", ROWS,
     "float32 bounds", {"weigh": with_epsilon}, {"wrong_in": ("float64", "float32")}),
    ("softmax_without_small_weights", "weights below 1e-4 set to 0", "this project",
     "softmax: weights that are positive", "a weight below 1e-4", {"weigh": without_small_weights}),
))  # fmt: skip
