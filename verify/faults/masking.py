"""Faults of masks: polarity, fill, broadcast, merging, and paths that forget one."""

from typing import Any

import numpy as np
from numpy import ndarray

from verify.faults import base, base_layers, fault
from verify.faults.base import HIDDEN
from verify.faults.softmaxes import empty_rows

VISIBLE, MERGED = "softmax, clauses 1 and 2", "merge_masks, clause 1"


def as_float(mask: ndarray, hidden: float) -> ndarray:
    return np.where(mask, 0.0, hidden) if mask.dtype == bool else mask


def added(hidden: float, factor: float = 1.0) -> Any:
    """See with a boolean mask that is only added, as a large negative number."""

    def see(score: ndarray, mask: Any) -> Any:
        return base.see(score, None if mask is None else factor * np.maximum(as_float(mask, hidden), -1e300))

    return see


@fault("masks", "a mask times 1e-9", source="nine public Transformer-XL files", clause=VISIBLE, reveals="any mask")
def scaled_dot_product_attention_mask_times_tiny(**given: Any) -> Any:
    return base.scaled_dot_product_attention(
        **given, see=lambda s, m: base.see(s, None if m is None else np.nan_to_num(as_float(m, -1.0)) * 1e-9)
    )


@fault("masks", "the mask dropped", source="DI-engine #333", clause=VISIBLE, reveals="any mask")
def scaled_dot_product_attention_mask_dropped(mask: Any = None, **given: Any) -> Any:
    return base.scaled_dot_product_attention(**given)


@fault("masks", "the mask dropped", source="tensorflow #512", clause=VISIBLE, reveals="any mask")
def additive_attention_mask_dropped(mask: Any = None, **given: Any) -> Any:
    return base.additive_attention(**given)


@fault("masks", "hidden keys at -1e4 instead of hidden", source="transformers PR #17306", clause=VISIBLE, reveals="a row that sees no key")
def scaled_dot_product_attention_minus_ten_thousand(**given: Any) -> Any:
    return base.scaled_dot_product_attention(**given, see=added(-1e4))


@fault("masks", "hidden keys at -1e9 instead of hidden", source="seed 001, section 2.3", clause=VISIBLE, reveals="a row that sees no key")
def additive_attention_minus_a_billion(**given: Any) -> Any:
    return base.additive_attention(**given, see=added(-1e9))


@fault(
    "masks",
    "a hidden row that overflows to NaN",
    source="transformers PR #17306",
    clause="softmax, clause 3",
    reveals="a row that sees no key",
)
def self_attention_overflowing_row(**given: Any) -> Any:
    return base_layers.self_attention(**given, weigh=empty_rows(lambda M: np.nan))


@fault(
    "masks",
    "two planes of the lowest number, added",
    source="NeMo Automodel PR #2658",
    clause="merge_masks, clause 5",
    reveals="rows whose keys are all hidden",
)
def multi_head_attention_two_planes(attn_mask: Any = None, key_padding_mask: Any = None, **given: Any) -> Any:
    lowest = float(np.finfo(np.float32).min)

    def merge(attn_mask: Any, padding: Any, H: int) -> ndarray:
        planes = [base.merge_masks(attn_mask, None, H, hidden=lowest), base.merge_masks(None, padding, H, hidden=lowest)]
        return (planes[0] + planes[1]).astype(np.float32).astype(np.float64)

    return base_layers.multi_head_attention(
        attn_mask=attn_mask, key_padding_mask=key_padding_mask, **given, merge_masks=merge, weigh=empty_rows(lambda M: np.nan)
    )


@fault(
    "masks",
    "NaN in an empty row on the path with dropout, 0 on the other",
    source="pytorch PR #190486",
    clause="softmax, clause 3",
    reveals="a row that sees no key, keep given",
)
def scaled_dot_product_attention_nan_under_dropout(keep: Any = None, **given: Any) -> Any:
    weigh = base.weigh if keep is None else empty_rows(lambda M: np.nan)
    return base.scaled_dot_product_attention(keep=keep, **given, weigh=weigh)


@fault("masks", "padding that hides queries as well as keys", source="pytorch #63271", clause=MERGED, reveals="padding, N = M")
def multi_head_self_attention_padded_queries(key_padding_mask: Any = None, **given: Any) -> Any:
    def merge(attn_mask: Any, padding: Any, H: int) -> ndarray:
        merged = base.merge_masks(attn_mask, padding, H)
        return merged if padding is None else np.where(padding[:, None, :, None], HIDDEN, merged)

    return base_layers.multi_head_self_attention(key_padding_mask=key_padding_mask, **given, merge_masks=merge)


def head_major(attn_mask: ndarray, H: int) -> ndarray:
    if attn_mask.ndim == 2:
        return attn_mask[None, None]
    return attn_mask.reshape(H, -1, *attn_mask.shape[1:]).swapaxes(0, 1)


@fault(
    "masks",
    "a mask per head read with the heads in front",
    source="attention-is-all-you-need-keras #36",
    clause="merge_masks, clause 2",
    reveals="a mask of three axes, B > 1, H > 1",
)
def multi_head_attention_head_major_mask(**given: Any) -> Any:
    merge = lambda a, k, H: base.merge_masks(a, k, H, four_axes=head_major)  # noqa: E731
    return base_layers.multi_head_attention(**given, merge_masks=merge)


@fault(
    "masks",
    "a mask per head read with the heads in front",
    source="attention-is-all-you-need-keras #36",
    clause="merge_masks, clause 2",
    reveals="a mask of three axes, B > 1, H > 1",
)
def merge_masks_head_major(**given: Any) -> Any:
    return base.merge_masks(**given, four_axes=head_major)


@fault(
    "masks", "no causal mask where no other is given", source="xformers #103", clause="alibi_attention: always causal", reveals="no visible"
)
def alibi_attention_causal_with_a_mask_alone(visible: Any = None, **given: Any) -> Any:
    causal = base.causal_mask if visible is not None else lambda N, M: np.ones((N, M), bool)
    return base.alibi_attention(visible=visible, **given, causal=causal)


@fault("masks", "padding ignored in self-attention", source="x-transformers #187", clause=MERGED, reveals="padding")
def multi_head_self_attention_without_padding(key_padding_mask: Any = None, **given: Any) -> Any:
    return base_layers.multi_head_self_attention(**given)


@fault(
    "masks",
    "a mask of one head read as if it had them all",
    source="x-transformers commit 503fd48",
    clause="softmax, clause 1",
    reveals="a mask [B 1 N M], H > 1, B > 1",
)
def scaled_dot_product_attention_mask_of_all_heads(query: Any, key: Any, mask: Any = None, **given: Any) -> Any:
    shape = (*query.shape[:3], key.shape[2])
    if mask is not None and mask.ndim == 4 and mask.shape[2] == shape[2]:
        mask = np.resize(mask, shape)
    return base.scaled_dot_product_attention(query, key, mask=mask, **given)


@fault("masks", "a float mask read as truth values", source="xformers commit f8c86ca8", clause="softmax, clause 1", reveals="a float mask")
def scaled_dot_product_attention_float_as_bool(mask: Any = None, **given: Any) -> Any:
    return base.scaled_dot_product_attention(mask=None if mask is None else mask.astype(bool), **given)


@fault(
    "masks",
    "padding taken for an attention mask where B = N",
    source="xformers commit afe1e3c9",
    clause=MERGED,
    reveals="padding, B = N > 1",
)
def multi_head_self_attention_padding_as_attention(key_padding_mask: Any = None, **given: Any) -> Any:
    def merge(attn_mask: Any, padding: Any, H: int) -> ndarray:
        if padding is None or padding.shape[0] != padding.shape[1]:
            return base.merge_masks(attn_mask, padding, H)
        return np.where(padding, HIDDEN, base.merge_masks(attn_mask, None, H))

    return base_layers.multi_head_self_attention(key_padding_mask=key_padding_mask, **given, merge_masks=merge)


@fault("masks", "padding forgotten where it comes alone", source="fairseq commit 68dd3e17", clause=MERGED, reveals="padding, no attn_mask")
def merge_masks_forgets_padding_alone(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    return base.merge_masks(attn_mask, None if attn_mask is None else key_padding_mask, num_heads)


@fault("masks", "the opposite polarity", source="x-transformers commit d1f5d6b", clause=MERGED, reveals="a boolean attn_mask")
def merge_masks_polarity(attn_mask: Any, **given: Any) -> Any:
    return base.merge_masks(~attn_mask if attn_mask is not None and attn_mask.dtype == bool else attn_mask, **given)


@fault(
    "masks",
    "a float mask whose numbers padding wipes out",
    source="this project",
    clause="merge_masks: attn_mask where it is float",
    reveals="a float attn_mask and padding",
)
def merge_masks_wipes_numbers(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    if key_padding_mask is not None and attn_mask is not None and attn_mask.dtype != bool:
        attn_mask = attn_mask == HIDDEN
    return base.merge_masks(attn_mask, key_padding_mask, num_heads)


@fault(
    "masks",
    "the lowest finite number for hidden",
    source="seed 001, section 4.2",
    clause="merge_masks, clause 3",
    reveals="anything hidden",
)
def merge_masks_lowest_number(**given: Any) -> Any:
    return base.merge_masks(**given, hidden=-65504.0)


@fault("masks", "a boolean times minus infinity", source="this project", clause="merge_masks, clause 5", reveals="a boolean attn_mask")
def merge_masks_zero_times_infinity(attn_mask: Any, **given: Any) -> Any:
    return base.merge_masks(attn_mask * HIDDEN if attn_mask is not None and attn_mask.dtype == bool else attn_mask, **given)


@fault(
    "masks",
    "padding added with its sign lost where attn_mask is -inf",
    source="this project",
    clause="merge_masks, clause 5",
    reveals="a pair that both masks hide",
)
def merge_masks_infinities_cancel(attn_mask: Any, key_padding_mask: Any, num_heads: int) -> Any:
    merged = base.merge_masks(attn_mask, None, num_heads)
    if key_padding_mask is None:
        return merged
    padded = key_padding_mask[:, None, None, :]
    return np.where(padded & (merged == HIDDEN), np.nan, np.where(padded, HIDDEN, merged))


@fault(
    "masks",
    "hidden keys at -1e4, lifted out of minus infinity",
    source="this project",
    clause="softmax, clause 2",
    reveals="a row that sees no key",
)
def softmax_clamped_mask(score: ndarray, mask: Any = None) -> Any:
    mask = None if mask is None else np.maximum(as_float(mask, HIDDEN), -1e4)
    return base.softmax(score, mask)


@fault(
    "masks",
    "numbers below -9000 hide",
    source="libraries that fill with -1e4",
    clause="softmax, clause 2: no finite number hides a key",
    reveals="rows that are low throughout",
)
def softmax_low_numbers_hide(score: ndarray, mask: Any = None) -> Any:
    if mask is not None and mask.dtype != bool:
        mask = np.where(mask < -9e3, HIDDEN, mask)
    return base.softmax(score, mask)


@fault(
    "masks",
    "a cross-attention made causal",
    source="TransformerEngine #629",
    clause="learned_relative_attention, clause 1",
    reveals="M > 1",
)
def learned_relative_attention_causal(visible: Any = None, **given: Any) -> Any:
    return base.learned_relative_attention(visible=behind(visible, given), **given)


def behind(visible: Any, given: Any) -> Any:
    causal = base.causal_mask(given["query"].shape[2], given["key"].shape[2])
    return causal if visible is None else causal & visible


@fault("masks", "visible ignored", source="this project", clause="transformer_xl_attention, clause 1", reveals="visible")
def transformer_xl_attention_without_visible(visible: Any = None, **given: Any) -> Any:
    return base.transformer_xl_attention(**given)


@fault(
    "masks",
    "visible in place of the causal mask",
    source="this project",
    clause="alibi_attention: visible hides further keys",
    reveals="visible that shows the future",
)
def alibi_attention_visible_alone(visible: Any = None, **given: Any) -> Any:
    causal = base.causal_mask if visible is None else lambda N, M: np.ones((N, M), bool)
    return base.alibi_attention(visible=visible, **given, causal=causal)


@fault("masks", "the first batch's mask for all", source="this project", clause="softmax, clause 1", reveals="a mask [B N M], B > 1")
def self_attention_mask_of_first_batch(mask: Any = None, **given: Any) -> Any:
    return base_layers.self_attention(mask=mask[:1] if mask is not None and mask.ndim == 3 else mask, **given)


@fault(
    "masks",
    "a mask of keys applied to queries where N = M",
    source="this project",
    clause="softmax, clause 1",
    reveals="a mask [B 1 M], N = M",
)
def additive_attention_mask_of_queries(mask: Any = None, query: Any = None, **given: Any) -> Any:
    if mask is not None and mask.ndim == 3 and mask.shape[1] == 1 and mask.shape[2] == query.shape[1]:
        mask = mask.mT
    return base.additive_attention(query=query, mask=mask, **given)


@fault(
    "masks",
    "the transposed mask where N = M",
    source="this project",
    clause="softmax, clause 1",
    reveals="a mask that is not symmetric, N = M",
)
def scaled_dot_product_attention_mask_transposed(mask: Any = None, **given: Any) -> Any:
    square = mask is not None and mask.shape[-1] == mask.shape[-2]
    return base.scaled_dot_product_attention(mask=mask.mT if square else mask, **given)


@fault(
    "masks",
    "a key hidden from all where it is hidden from the first query",
    source="this project",
    clause="softmax, clause 2",
    reveals="a key that the first query alone does not see",
)
def learned_relative_attention_first_row_mask(visible: Any = None, **given: Any) -> Any:
    if visible is not None:
        visible = np.broadcast_to(visible[..., :1, :], visible.shape)
    return base.learned_relative_attention(visible=visible, **given)


@fault("masks", "the mask of head 0 for all heads", source="this project", clause="softmax, clause 1", reveals="a mask [B H N M], H > 1")
def scaled_dot_product_attention_mask_of_first_head(mask: Any = None, **given: Any) -> Any:
    return base.scaled_dot_product_attention(mask=mask[:, :1] if mask is not None and mask.ndim == 4 else mask, **given)


@fault(
    "masks",
    "padding read from the other end",
    source="llm-foundry commit 2302ab992",
    clause=MERGED,
    reveals="padding that is not symmetric",
)
def multi_head_attention_padding_reversed(key_padding_mask: Any = None, **given: Any) -> Any:
    reverse = None if key_padding_mask is None else key_padding_mask[:, ::-1]
    return base_layers.multi_head_attention(key_padding_mask=reverse, **given)
