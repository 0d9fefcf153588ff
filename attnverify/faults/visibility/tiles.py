"""
Faults of blocks: tails of keys, queries and widths, and paths that are taken for some sizes alone.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import add_faults, fault
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


@fault("blocks", "values beyond column 64 left out", source="this project",
       clause=TAIL, reveals="E > 64")  # fmt: skip
def alibi_attention_first_64_values(value: Any, **given: Any) -> Any:
    output = attention.alibi_attention(value=value, **given)
    output[..., 64:] = 0
    return output


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


@fault("blocks", "rows rounded up to 64 that overwrite the next head's gradient",
       source="FlagGems PR #898", clause="gradients by value",
       reveals="M no multiple of 64, H > 1")  # fmt: skip
def scaled_dot_product_attention_grad_overrun(**given: Any) -> Any:
    d_query, d_key, d_value, *others = gradients.scaled_dot_product_attention_grad(**given)
    M = d_value.shape[2]
    d_value[:, 1:, : -M % 64] = 0
    return d_query, d_key, d_value, *others


def without(end: Any) -> Any:
    """Softmax over the first ``end(M)`` keys."""
    return lambda score, visible: attention.weigh(
        score, visible & (np.arange(score.shape[-1]) < end(score.shape[-1]))
    )


@fault("blocks", "a grid of N // 16 blocks, the last rows never written",
       source="this project", clause="[B H N E]",
       reveals="N > 16, no multiple of 16")  # fmt: skip
def transformer_xl_attention_unwritten_rows(**given: Any) -> Any:
    output = attention.transformer_xl_attention(**given)
    N = output.shape[2]
    output[:, :, N // 16 * 16 if N > 16 else N :] = 0
    return output


@fault("blocks", "gradients of keys beyond 512 never written",
       source="this project", clause="gradients by key", reveals="M > 512")  # fmt: skip
def alibi_attention_grad_first_512(**given: Any) -> Any:
    d_query, d_key, d_value = gradients.alibi_attention_grad(**given)
    d_key[:, :, 512:] = 0
    return d_query, d_key, d_value


@fault("blocks", "gradients that add up the first 64 queries",
       source="this project", clause="gradients by key", reveals="N > 64")  # fmt: skip
def transformer_xl_attention_grad_first_64_queries(d_output: Any, **given: Any) -> Any:
    cut = np.where(np.arange(d_output.shape[2])[:, None] < 64, d_output, 0)
    first = gradients.transformer_xl_attention_grad(cut, **given)
    return gradients.transformer_xl_attention_grad(d_output, **given)[0], *first[1:]


@fault("blocks", "the mask forgotten beyond key 512", source="pytorch #162588",
       clause="softmax, clause 1", reveals="a mask, M > 512")  # fmt: skip
def scaled_dot_product_attention_long_mask(mask: Any = None, **given: Any) -> Any:
    if mask is not None and mask.shape[-1] > 512:
        mask = mask.copy()
        mask[..., 512:] = mask.dtype == bool
    return attention.scaled_dot_product_attention(mask=mask, **given)


@fault("blocks", "the mask forgotten beyond key 64", source="pytorch #162588",
       clause="alibi_attention: visible", reveals="visible, M > 64")  # fmt: skip
def alibi_attention_long_mask(visible: Any = None, **given: Any) -> Any:
    if visible is not None and visible.shape[-1] > 64:
        visible = visible | (np.arange(visible.shape[-1]) >= 64)
    return attention.alibi_attention(visible=visible, **given)


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
))  # fmt: skip
