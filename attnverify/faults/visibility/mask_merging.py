"""
Faults of the masks of multi-head layers: which polarity, whose head, and what two masks make of one
pair.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.arithmetic.softmax import empty_rows
from attnverify.faults.registry import add_faults, fault
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


@fault("masks", "padding that hides queries as well as keys",
       source="pytorch #63271", clause=MERGED, reveals="padding, N = M")  # fmt: skip
def multi_head_self_attention_padded_queries(key_padding_mask: Any = None, **given: Any) -> Any:
    def merge(attn_mask: Any, padding: Any, H: int) -> ndarray:
        merged = attention.merge_masks(attn_mask, padding, H)
        return merged if padding is None else np.where(padding[:, None, :, None], HIDDEN, merged)

    return layers.multi_head_self_attention(
        key_padding_mask=key_padding_mask, **given, merge_masks=merge
    )


def head_major(attn_mask: ndarray, H: int) -> ndarray:
    if attn_mask.ndim == 2:
        return attn_mask[None, None]
    return attn_mask.reshape(H, -1, *attn_mask.shape[1:]).swapaxes(0, 1)


@fault("masks", "padding taken for an attention mask where B = N",
       source="xformers commit afe1e3c9", clause=MERGED,
       reveals="padding, B = N > 1")  # fmt: skip
def multi_head_self_attention_padding_as_attention(
    key_padding_mask: Any = None, **given: Any
) -> Any:
    def merge(attn_mask: Any, padding: Any, H: int) -> ndarray:
        if padding is None or padding.shape[0] != padding.shape[1]:
            return attention.merge_masks(attn_mask, padding, H)
        return np.where(padding, HIDDEN, attention.merge_masks(attn_mask, None, H))

    return layers.multi_head_self_attention(
        key_padding_mask=key_padding_mask, **given, merge_masks=merge
    )


@fault("masks", "a float mask whose numbers padding wipes out",
       source="this project", clause="merge_masks: attn_mask where it is float",
       reveals="a float attn_mask and padding")  # fmt: skip
def merge_masks_wipes_numbers(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if key_padding_mask is not None and attn_mask is not None and attn_mask.dtype != bool:
        attn_mask = attn_mask == HIDDEN
    return attention.merge_masks(attn_mask, key_padding_mask, num_heads)


@fault("masks", "padding added with its sign lost where attn_mask is -inf",
       source="this project", clause="merge_masks, clause 5",
       reveals="a pair that both masks hide")  # fmt: skip
def merge_masks_infinities_cancel(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    merged = attention.merge_masks(attn_mask, None, num_heads)
    if key_padding_mask is None:
        return merged
    padded = key_padding_mask[:, None, None, :]
    return np.where(padded & (merged == HIDDEN), np.nan, np.where(padded, HIDDEN, merged))


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
))  # fmt: skip
