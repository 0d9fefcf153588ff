"""
Faults of finite numbers that stand for "hidden": a sentinel that real scores lie below, the lowest
number of a float mask, and NaN that a mask should have covered.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.changes import with_outputs
from attnverify.faults.registry import ALL, OURS, add_faults, fault
from attnverify.reference import attention

ABSENT = "a hidden key is absent"
AT_A_NUMBER = (
    "hidden scores at {number:g}, which is a number and not minus infinity, but for rows that see "
    "no key"
)


def weigh_with(sentinel: float, score: ndarray, visible: ndarray) -> ndarray:
    """The softmax with a finite score for hidden keys; a row that sees no key gives 0."""
    filled = np.where(visible, score, sentinel)
    weights = attention.weigh(filled, np.ones_like(visible))
    return np.where(visible.any(axis=-1, keepdims=True), weights, 0)


def mixed_by_weights(weights: ndarray, visible: ndarray, value: ndarray) -> ndarray:
    return attention.mix(weights, visible | (weights != 0), value)


def value_grad_by_weights(w: ndarray, visible: ndarray, d: ndarray) -> ndarray:
    return attention.mix(w.mT, w.mT != 0, d)


FINE = ("float64",)
WIDE = (*FINE, "float32", "bfloat16")
SENTINELS = (
    ("softmax", -1e4, ALL),
    ("scaled_dot_product_attention", -1e4, ALL),
    ("scaled_dot_product_attention", -1e9, FINE),
    ("additive_attention", -1e4, ALL),
    ("alibi_attention", -1e4, ALL),
    ("transformer_xl_attention", -1e6, WIDE),
    ("transformer_xl_attention", -1e8, WIDE),
    ("learned_relative_attention", -1e7, WIDE),
)


@fault("softmax", "a first tile of 16 keys at the lowest number counted in full",
       source=OURS, clause="softmax, clause 1",
       reveals="a float mask with the lowest number over a row's first 16 keys",
       wrong_in=("float32", "float16", "bfloat16"))  # fmt: skip
def scaled_dot_product_attention_lowest_first_tile(mask: Any = None, **given: Any) -> Any:
    if mask is None or mask.dtype == bool or mask.shape[-1] <= 16:
        return attention.scaled_dot_product_attention(mask=mask, **given)

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        e = attention.exponentials(score, visible)
        stale = (score[..., :16] < -6e4).all(axis=-1, keepdims=True) & visible[..., :16]
        e[..., :16] = np.where(stale, 1.0, e[..., :16])
        return np.where(visible, attention.over_sum(e), 0)

    return attention.scaled_dot_product_attention(mask=mask, **given, weigh=weigh)


@fault("masks", "padding added to a float mask: NaN stays NaN", source=OURS,
       clause="merge_masks, clause 3",
       reveals="NaN in a float attn_mask under the padding")  # fmt: skip
def merge_masks_added_padding(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if attn_mask is None or attn_mask.dtype == bool or key_padding_mask is None:
        return attention.merge_masks(attn_mask, key_padding_mask, num_heads)
    merged = attention.merge_masks(attn_mask, None, num_heads)
    return merged + np.where(key_padding_mask[:, None, None, :], -np.inf, 0.0)


@fault("refusals", "a mask of one batch entry's heads repeated for every entry",
       source=OURS, clause="merge_masks: attn_mask is [N M] or [B*H N M]",
       reveals="attn_mask [H N M] where B > 1", unchecked=True)  # fmt: skip
def merge_masks_repeated(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    repeated = attn_mask
    if (
        isinstance(attn_mask, ndarray)
        and attn_mask.ndim == 3
        and isinstance(key_padding_mask, ndarray)
        and key_padding_mask.ndim == 2
        and len(attn_mask) == num_heads
    ):
        repeated = np.tile(attn_mask, (len(key_padding_mask), 1, 1))
    return CATALOGUE["merge_masks"].reference(repeated, key_padding_mask, num_heads)


add_faults("backward", (
    *((f"{operation}_grad_sentinel_1e8",
      AT_A_NUMBER.format(number=-1e8), OURS, ABSENT,
      "a hidden key, visible scores below -1e8 or NaN",
      {"weigh": partial(weigh_with, -1e8), "value_grad": value_grad_by_weights})
      for operation in ("scaled_dot_product_attention", "learned_relative_attention")),
))  # fmt: skip

add_faults("numerics", (
    ("scaled_dot_product_attention_overflow_at_20000", "outputs beyond 20000 are infinite", OURS,
     "the sum of weights and values", "values beyond 20000",
     with_outputs(attention.scaled_dot_product_attention, {0: lambda y, x:
      np.where(np.abs(y) > 20000, np.copysign(np.inf, y), y)})),
))  # fmt: skip

add_faults("masks", (
    *((f"{operation}_sentinel_1e{round(np.log10(-sentinel))}",
       AT_A_NUMBER.format(number=sentinel), OURS, ABSENT,
       f"a hidden key, visible scores below {sentinel:g}",
       {"weigh": partial(weigh_with, sentinel)} | ({} if operation == "softmax" else
        {"mix": mixed_by_weights}), {"wrong_in": dtypes})
      for operation, sentinel, dtypes in SENTINELS),
))  # fmt: skip
