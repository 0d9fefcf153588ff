"""
Faults of the masks of multi-head layers: which polarity, whose head, and what two masks make of one
pair.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.arithmetic.softmax import empty_rows
from attnverify.faults.changes import where_given, with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, layers
from attnverify.reference.attention import HIDDEN

MERGED = "merge_masks, clause 1"


@fault("masks", "two planes of the lowest number, added",
       source="NeMo Automodel PR #2658", clause="merge_masks, clause 5",
       reveals="rows whose keys are all hidden")  # fmt: skip
def multi_head_attention_two_planes(
    attn_mask: Any = None, key_padding_mask: Any = None, **given: Any
) -> Any:
    lowest = float(np.finfo(np.float32).min)

    def merge(attn_mask: Any, padding: Any, H: int) -> ndarray:
        planes = [
            attention.merge_masks(attn_mask, None, H, hidden=lowest),
            attention.merge_masks(None, padding, H, hidden=lowest),
        ]
        return (planes[0] + planes[1]).astype(np.float32).astype(np.float64)

    return layers.multi_head_attention(
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        **given,
        merge_masks=merge,
        weigh=empty_rows(lambda M: np.nan),
    )


def over_rows(attn_mask: Any, padding: Any, H: int) -> ndarray:
    """Padding that hides queries as well as keys."""
    merged = attention.merge_masks(attn_mask, padding, H)
    return merged if padding is None else np.where(padding[:, None, :, None], HIDDEN, merged)


def as_attention(attn_mask: Any, padding: Any, H: int) -> ndarray:
    """Padding taken for an attention mask where B = N."""
    if padding is None or padding.shape[0] != padding.shape[1]:
        return attention.merge_masks(attn_mask, padding, H)
    return np.where(padding, HIDDEN, attention.merge_masks(attn_mask, None, H))


def cancelling(merged: ndarray, given: Inputs) -> ndarray:
    """NaN where padding meets a pair that attn_mask hides."""
    padding, alone = (
        given["key_padding_mask"],
        attention.merge_masks(given["attn_mask"], None, given["num_heads"]),
    )
    twice = False if padding is None else padding[:, None, None, :] & (alone == HIDDEN)
    return np.where(twice, np.nan, merged)


def head_major(attn_mask: ndarray, H: int) -> ndarray:
    if attn_mask.ndim == 2:
        return attn_mask[None, None]
    return attn_mask.reshape(H, -1, *attn_mask.shape[1:]).swapaxes(0, 1)


add_faults("masks", (
    ("merge_masks_head_major", "a mask per head read with the heads in front",
     "attention-is-all-you-need-keras #36", "merge_masks, clause 2",
     "a mask of three axes, B > 1, H > 1", {"four_axes": head_major}),
    ("merge_masks_forgets_padding_alone", "padding forgotten where it comes alone",
     "fairseq commit 68dd3e17", MERGED, "padding, no attn_mask",
     lambda attn_mask, key_padding_mask, num_heads: attention.merge_masks(attn_mask, None if
      attn_mask is None else key_padding_mask, num_heads)),
    ("merge_masks_lowest_number", "the lowest finite number for hidden", "transformers PR #17306",
     "merge_masks, clause 3", "anything hidden", {"hidden": -65504.0}),
    ("merge_masks_zero_times_infinity", "a boolean times minus infinity", "this project",
     "merge_masks, clause 5", "a boolean attn_mask",
     lambda attn_mask, **given: attention.merge_masks(attn_mask * HIDDEN if attn_mask is not None
      and attn_mask.dtype == bool else attn_mask, **given)),
    ("multi_head_attention_head_major_mask", "a mask per head read with the heads in front",
     "attention-is-all-you-need-keras #36", "merge_masks, clause 2",
     "a mask of three axes, B > 1, H > 1", lambda **given: layers.multi_head_attention(**given,
     merge_masks=lambda a, k, H: attention.merge_masks(a, k, H, four_axes=head_major))),
    ("multi_head_attention_padding_reversed", "padding read from the other end",
     "llm-foundry commit 2302ab992", MERGED, "padding that is not symmetric",
     lambda key_padding_mask=None, **given: layers.multi_head_attention(key_padding_mask=None
     if key_padding_mask is None else key_padding_mask[:, ::-1], **given)),
    ("multi_head_self_attention_padded_queries", "padding that hides queries as well as keys",
     "pytorch #63271", MERGED, "padding, N = M", {"merge_masks": over_rows}),
    ("multi_head_self_attention_padding_as_attention",
     "padding taken for an attention mask where B = N", "xformers commit afe1e3c9", MERGED,
     "padding, B = N > 1", {"merge_masks": as_attention}),
    ("merge_masks_wipes_numbers", "a float mask whose numbers padding wipes out", "this project",
     "merge_masks: attn_mask where it is float", "a float attn_mask and padding",
     where_given(attention.merge_masks, attn_mask=lambda mask, x: mask if mask.dtype == bool or
      x["key_padding_mask"] is None else mask == HIDDEN)),
    ("merge_masks_infinities_cancel",
     "padding added with its sign lost where attn_mask is -inf", "this project",
     "merge_masks, clause 5", "a pair that both masks hide",
     with_outputs(attention.merge_masks, {0: cancelling})),
))  # fmt: skip
