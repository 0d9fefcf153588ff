"""
Faults of blocks: tails of keys, queries and widths, and paths that are taken for some sizes alone.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import along, first, of_part, where_given, with_outputs, written
from attnverify.faults.registry import add_faults, fault
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, gradients

TAIL = "the sum runs over the keys that the row sees"


def padded_weigh(to: int) -> Any:
    """
    Softmax whose sum takes in the zeros behind the last key, up to the next multiple of ``to``.
    """

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        more = -score.shape[-1] % to
        wide = np.pad(score, [(0, 0)] * (score.ndim - 1) + [(0, more)])
        seen = np.pad(visible, [(0, 0)] * (score.ndim - 1) + [(0, more)], constant_values=True)
        return attention.weigh(wide, seen)[..., : score.shape[-1]]

    return weigh


@fault("blocks",
       "the last key lost where M is one more than a multiple of 32 and a stride is 0",
       source="pytorch #191937", clause=TAIL,
       reveals="expanded keys, M of 33, 65, ...", raw=True)  # fmt: skip
def scaled_dot_product_attention_expanded_tail(**given: Any) -> Any:
    key = given["key"]
    lost = key.shape[2] % 32 == 1 and key.shape[2] > 1 and 0 in key.strides
    wide = {
        name: x.astype(np.float64) if getattr(x, "dtype", None) not in (None, bool) else x
        for name, x in given.items()
    }
    if not lost:
        return attention.scaled_dot_product_attention(**wide)

    def see(score: ndarray, mask: Any) -> Any:
        score, visible = attention.see(score, mask)
        return score, visible & (np.arange(score.shape[-1]) < score.shape[-1] - 1)

    return attention.scaled_dot_product_attention(**wide, see=see)


def without(end: Any) -> Any:
    """Softmax over the first ``end(M)`` keys."""
    return lambda score, visible: attention.weigh(
        score, visible & (np.arange(score.shape[-1]) < end(score.shape[-1]))
    )


def overrun(d_value: ndarray, given: Inputs) -> ndarray:
    d_value[:, 1:, : -d_value.shape[2] % 64] = 0
    return d_value


def clipped_distance(query: Any, key: Any) -> Any:
    return attention.alibi_score(
        query, key, distances=lambda N, M: np.maximum(attention.distances(N, M), -128)
    )


add_faults("blocks", (
    ("transformer_xl_score_first_64_columns", "a product over the first 64 columns",
     "triton #621", "transformer_xl_score", "D > 64",
     {"products": lambda q, k: q[..., :64] @ k[..., :64].mT}),
    ("scaled_dot_product_attention_tail_in_the_sum",
     "a sum over keys padded to 256 where no mask is given", "flashinfer #3716", TAIL, "no mask",
     lambda mask=None, **given: attention.scaled_dot_product_attention(mask=mask, **given,
      weigh=padded_weigh(256) if mask is None else attention.weigh)),
    ("scaled_dot_product_attention_output_of_key_width", "an output of the key's width",
     "pytorch #176767", "[B H N E]", "E other than D",
     lambda value, key, **given: np.resize(attention.scaled_dot_product_attention(value=value,
      key=key, **given), (*given["query"].shape[:3], key.shape[3]))),
    ("alibi_attention_lone_key", "the last key lost where M is one more than a multiple of 64",
     "this project", TAIL, "M of 65, 129",
     {"weigh": without(lambda M: M - (M % 64 == 1 and M > 1))}),
    ("additive_attention_lone_key", "the last key lost where M is one more than a multiple of 64",
     "this project", TAIL, "M of 65, 129",
     {"weigh": without(lambda M: M - (M % 64 == 1 and M > 1))}),
    ("scaled_dot_product_attention_uneven_splits", "four splits of M // 4 keys, the rest lost",
     "this project", TAIL, "M >= 64, no multiple of 4",
     {"weigh": without(lambda M: M // 4 * 4 if M >= 64 else M)}),
    ("softmax_first_1024", "a row's sum over its first 1024 keys", "this project", "softmax",
     "M > 1024", {"weigh": without(lambda M: min(M, 1024))}),
    ("learned_relative_attention_first_1024", "keys beyond 1024 left out", "this project", TAIL,
     "M > 1024", {"weigh": without(lambda M: min(M, 1024))}),
    ("causal_mask_by_blocks", "diagonal blocks of 16 that are not masked within", "this project",
     "causal_mask", "N > 1",
     lambda N, M: np.arange(M) // 16 <= (np.arange(N)[:, None] + M - N) // 16),
    ("additive_score_first_8_units", "hidden units beyond 8 left out", "this project",
     "additive_score", "A > 8",
     lambda w_score, **given: attention.additive_score(w_score=np.where(np.arange(len(w_score)) <
      8, w_score, 0), **given)),
    ("scaled_dot_product_score_keys_of_first_batch", "batches that all read the first one's keys",
     "this project", "every batch has its own keys", "B > 1",
     lambda query, key: attention.scaled_dot_product_score(query, np.broadcast_to(key.reshape(-1,
      *key.shape[-2:])[0], key.shape))),
    ("scaled_dot_product_attention_vector_tail",
     "a last block of 32 keys read past its end for few queries", "pytorch PR #169222", TAIL,
     "M no multiple of 32, N <= 8, D of 64, 96 or 128", lambda query, **given:
     attention.scaled_dot_product_attention(query, **given, weigh=padded_weigh(32)
     if (query.shape[2] <= 8 and query.shape[3] in (64, 96, 128)) else attention.weigh )),
    ("scaled_dot_product_attention_first_64_columns", "a product over the first 64 columns",
     "triton #621", "scaled_dot_product_score", "D > 64", lambda **given:
     attention.scaled_dot_product_attention( **given, products=lambda q, k: q[..., :64] @ k[...,
     :64].mT )),
    ("scaled_dot_product_attention_grad_key_tail",
     "a backward pass whose last 128 keys reach past the end", "flash-attention commit a4f148b6",
     TAIL, "N a multiple of 128, M not", lambda query, **given:
     gradients.scaled_dot_product_attention_grad(query=query, **given, weigh=padded_weigh(128)
     if (query.shape[2] % 128 == 0) else attention.weigh )),
    ("alibi_attention_clipped_distance", "distances beyond 128 taken for 128", "this project",
     "alibi_attention: the bias", "M > 129", {"score": clipped_distance}),
    ("alibi_attention_first_64_values", "values beyond column 64 left out", "this project", TAIL,
     "E > 64", with_outputs(attention.alibi_attention, {0: written(64, -1)})),
    ("scaled_dot_product_attention_grad_overrun",
     "rows rounded up to 64 that overwrite the next head's gradient", "FlagGems PR #898",
     "gradients by value", "M no multiple of 64, H > 1",
     with_outputs(gradients.scaled_dot_product_attention_grad, {2: overrun})),
    ("transformer_xl_attention_unwritten_rows",
     "a grid of N // 16 blocks, the last rows never written", "this project", "[B H N E]",
     "N > 16, no multiple of 16",
     with_outputs(attention.transformer_xl_attention, {0: lambda y, x: along(2, lambda i, N:
      i < (N // 16 * 16 if N > 16 else N))(y)})),
    ("alibi_attention_grad_first_512", "gradients of keys beyond 512 never written",
     "this project", "gradients by key", "M > 512",
     with_outputs(gradients.alibi_attention_grad, {1: written(512, 2)})),
    ("transformer_xl_attention_grad_first_64_queries",
     "gradients that add up the first 64 queries", "this project", "gradients by key", "N > 64",
     of_part(gradients.transformer_xl_attention_grad, range(1, 6), first(64, 2))),
    ("scaled_dot_product_attention_long_mask", "the mask forgotten beyond key 512",
     "pytorch #162588", "softmax, clause 1", "a mask, M > 512",
     where_given(attention.scaled_dot_product_attention, mask=lambda mask, x:
      np.where(np.arange(mask.shape[-1]) < 512, mask, mask.dtype.type(mask.dtype == bool)))),
    ("alibi_attention_long_mask", "the mask forgotten beyond key 64", "pytorch #162588",
     "alibi_attention: visible", "visible, M > 64",
     where_given(attention.alibi_attention, visible=lambda visible, x: visible |
      (np.arange(visible.shape[-1]) >= 64))),
))  # fmt: skip
