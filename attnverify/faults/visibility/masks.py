"""Faults of masks: what is filled in, what is broadcast, and paths that forget one."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.arithmetic.softmax import empty_rows
from attnverify.faults.changes import where_given
from attnverify.faults.registry import add_faults
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, layers
from attnverify.reference.attention import HIDDEN

VISIBLE = "softmax, clauses 1 and 2"


def as_float(mask: ndarray, hidden: float) -> ndarray:
    return np.where(mask, 0.0, hidden) if mask.dtype == bool else mask


def added(hidden: float, factor: float = 1.0) -> Any:
    """See with a boolean mask that is only added, as a large negative number."""

    def see(score: ndarray, mask: Any) -> Any:
        return attention.see(
            score, None if mask is None else factor * np.maximum(as_float(mask, hidden), -1e300)
        )

    return see


def of_all_heads(mask: ndarray, given: Inputs) -> ndarray:
    """A mask of one head read as if it had them all."""
    shape = (*given["query"].shape[:3], given["key"].shape[2])
    return np.resize(mask, shape) if mask.ndim == 4 and mask.shape[2] == shape[2] else mask


def of_queries(mask: ndarray, given: Inputs) -> ndarray:
    """A mask of keys [B 1 M] applied to queries where N = M."""
    of_keys = mask.ndim == 3 and mask.shape[1] == 1
    return mask.mT if of_keys and mask.shape[2] == given["query"].shape[1] else mask


add_faults("masks", (
    ("scaled_dot_product_attention_mask_times_tiny", "a mask times 1e-9",
     "cyobero/datascience and eight more files", VISIBLE, "any mask",
     {"see": lambda s, m: attention.see(s, None if m is None else np.nan_to_num(as_float(m, -1.0))
      * 1e-9)}),
    ("scaled_dot_product_attention_mask_dropped", "the mask dropped", "DI-engine #333", VISIBLE,
     "any mask", lambda mask=None, **given: attention.scaled_dot_product_attention(**given)),
    ("additive_attention_mask_dropped", "the mask dropped", "tensorflow #512", VISIBLE,
     "any mask", lambda mask=None, **given: attention.additive_attention(**given)),
    ("scaled_dot_product_attention_minus_ten_thousand", "hidden keys at -1e4 instead of hidden",
     "transformers PR #17306", VISIBLE, "a row that sees no key", {"see": added(-1e4)}),
    ("additive_attention_minus_a_billion", "hidden keys at -1e9 instead of hidden",
     "the Annotated Transformer's -1e9", VISIBLE, "a row that sees no key",
     {"see": added(-1e9)}),
    ("self_attention_overflowing_row", "a hidden row that overflows to NaN",
     "transformers PR #17306", "softmax, clause 3", "a row that sees no key",
     {"weigh": empty_rows(lambda M: np.nan)}),
    ("self_attention_mask_of_first_batch", "the first batch's mask for all", "this project",
     "softmax, clause 1", "a mask [B N M], B > 1",
     lambda mask=None, **given: layers.self_attention(mask=mask[:1] if mask is not None and
      mask.ndim == 3 else mask, **given)),
    ("scaled_dot_product_attention_nan_under_dropout",
     "NaN in an empty row on the path with dropout, 0 on the other", "pytorch PR #190486",
     "softmax, clause 3", "a row that sees no key, keep given", lambda keep=None, **given:
     attention.scaled_dot_product_attention(keep=keep, **given, weigh=attention.weigh
     if keep is None else empty_rows(lambda M: np.nan))),
    ("softmax_clamped_mask", "hidden keys at -1e4, lifted out of minus infinity", "this project",
     "softmax, clause 2", "a row that sees no key", lambda score, mask=None:
     attention.softmax(score, (None if mask is None else np.maximum(as_float(mask, HIDDEN),
     -1e4)))),
    ("scaled_dot_product_attention_mask_transposed", "the transposed mask where N = M",
     "this project", "softmax, clause 1", "a mask that is not symmetric, N = M", lambda mask=None,
     **given: attention.scaled_dot_product_attention(mask=mask.mT
     if (mask is not None and mask.shape[-1] == mask.shape[-2]) else mask, **given)),
    ("scaled_dot_product_attention_mask_of_first_head", "the mask of head 0 for all heads",
     "this project", "softmax, clause 1", "a mask [B H N M], H > 1", lambda mask=None, **given:
     attention.scaled_dot_product_attention( mask=mask[:, :1]
     if mask is not None and mask.ndim == 4 else mask, **given )),
    ("scaled_dot_product_attention_mask_of_all_heads",
     "a mask of one head read as if it had them all", "x-transformers commit 503fd48",
     "softmax, clause 1", "a mask [B 1 N M], H > 1, B > 1",
     where_given(attention.scaled_dot_product_attention, mask=of_all_heads)),
    ("softmax_low_numbers_hide", "numbers below -9000 hide", "transformers PR #17306",
     "softmax, clause 2: no finite number hides a key", "rows that are low throughout",
     where_given(attention.softmax, mask=lambda mask, x: mask if mask.dtype == bool else
      np.where(mask < -9e3, HIDDEN, mask))),
    ("additive_attention_mask_of_queries", "a mask of keys applied to queries where N = M",
     "this project", "softmax, clause 1", "a mask [B 1 M], N = M",
     where_given(attention.additive_attention, mask=of_queries)),
    ("learned_relative_attention_first_row_mask",
     "a key hidden from all where it is hidden from the first query", "this project",
     "softmax, clause 2", "a key that the first query alone does not see",
     where_given(attention.learned_relative_attention, visible=lambda visible, x:
      np.broadcast_to(visible[..., :1, :], visible.shape))),
))  # fmt: skip
