"""Faults of relative positions: which row of a table, which bias, which distance."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import exchanged, first, of_part, with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, gradients, layers

XL = gradients.transformer_xl_attention_grad
ROW, TERMS = "learned_relative_score: the row t", "learned_relative_score: the terms"


def rows_by(change: Any) -> Any:
    """The learned score with rows of the table that ``change(N, M, P, align)`` names."""
    return partial(attention.learned_relative_score, table_rows=change)


def clipped(t: ndarray, P: int) -> ndarray:
    return np.clip(t, 0, 2 * P - 1)


def halves_exchanged(N: int, M: int, P: int, align: str) -> ndarray:
    """The future's rows for the past's."""
    t = attention.table_rows(N, M, P, align)
    return clipped(np.where(t == P, P, (t + P) % (2 * P)), P)


def content_alone(_: ndarray, given: Inputs) -> ndarray:
    """The gradient by the query without what the position score sends."""
    by_row = lambda d, sees: (np.zeros_like(d), np.zeros_like(sees))
    return gradients.transformer_xl_attention_grad(**given, by_row=by_row)[0]


@fault("relative", "the query's bias in the position score too",
       source="this project", clause="learned_relative_score, clause 1",
       reveals="any")  # fmt: skip
def learned_relative_score_query_bias_twice(
    key_pos_embeddings: ndarray, key_pos_bias: ndarray, query_pos_bias: ndarray, **given: Any
) -> Any:
    more = np.einsum("thd,hd->th", key_pos_embeddings, query_pos_bias)
    return attention.learned_relative_score(
        key_pos_embeddings=key_pos_embeddings,
        key_pos_bias=key_pos_bias + more,
        query_pos_bias=query_pos_bias,
        **given,
    )


@fault("relative", "the gradient of a table's row from the last pair alone",
       source="this project",
       clause="learned_relative_attention_grad: the sum over pairs",
       reveals="several queries")  # fmt: skip
def learned_relative_attention_grad_last_pair(**given: Any) -> Any:
    *front, d_table, d_bias, d_query_bias = gradients.learned_relative_attention_grad(**given)
    last = given | {
        "d_output": np.where(
            np.arange(given["d_output"].shape[2])[:, None] == given["d_output"].shape[2] - 1,
            given["d_output"],
            0,
        )
    }
    *_, last_table, last_bias, _ = gradients.learned_relative_attention_grad(**last)
    return (
        *front,
        np.where(last_table == 0, d_table, last_table),
        np.where(last_bias == 0, d_bias, last_bias),
        d_query_bias,
    )


add_faults("relative", (
    ("relative_multi_head_attention_always_end", "the end alignment whatever is asked for",
     "labml's Chinese page, relative_mha", "learned_relative_score, clause 2",
     "align start, N other than M",
     lambda align, **given: layers.relative_multi_head_attention(align="end", **given)),
    ("learned_relative_score_without_query_bias", "no bias on the query", "this project",
     "learned_relative_score, clause 1", "any",
     lambda query_pos_bias, **given: attention.learned_relative_score(query_pos_bias=0 *
      query_pos_bias, **given)),
    ("learned_relative_attention_without_position_bias", "no bias of the position",
     "this project", TERMS, "M > 1",
     lambda key_pos_bias, **given: attention.learned_relative_attention(key_pos_bias=0 *
      key_pos_bias, **given)),
    ("transformer_xl_attention_one_bias", "u for both biases", "this project",
     "transformer_xl_score, clause 4", "any",
     lambda u, v, **given: attention.transformer_xl_attention(u=u, v=u, **given)),
    ("transformer_xl_score_bias_of_first_head", "head 0's u for all heads", "this project",
     "transformer_xl_score: u [H D]", "H > 1",
     lambda u, **given: attention.transformer_xl_score(u=np.broadcast_to(u[:1], u.shape),
      **given)),
    ("sinusoidal_positions_other_width", "frequencies of the width F - 2",
     "tensor2tensor, num_timescales - 1", "sinusoidal_positions", "F > 2",
     lambda M, F: attention.sinusoidal_positions(M, F, width=max(F - 2, 1))),
    ("sinusoidal_positions_from_one", "distances that begin at 1", "this project",
     "sinusoidal_positions, clause 1", "any",
     lambda M, F: attention.sinusoidal_positions(M, F, distance=np.arange(M)[::-1] + 1)),
    ("learned_relative_attention_grad_bias_unscaled",
     "a position bias whose gradient is not scaled", "x-transformers commit 4d74795",
     "learned_relative_score, clause 5", "D > 1",
     lambda query, **given: gradients.learned_relative_attention_grad(query=query, **given,
      bias_scale=query.shape[-1] ** 0.5)),
    ("transformer_xl_attention_grad_unshifted",
     "position scores whose gradient is not shifted back", "this project",
     "transformer_xl_attention_grad", "N > 1", {"by_row": lambda d, sees: (d, sees)}),
    ("learned_relative_attention_clipped_offsets", "offsets clipped at 16",
     "Shaw et al., max_relative_position", "learned_relative_score, clause 4", "M > 17",
     lambda **given: attention.learned_relative_attention( **given, score=rows_by( lambda N, M, P,
     align: P + np.clip(attention.table_rows(N, M, P, align) - P, -16, 16) ), )),
    ("learned_relative_attention_table_of_first_head", "head 0's table for all heads",
     "this project", TERMS, "H > 1", lambda key_pos_embeddings, **given:
     attention.learned_relative_attention(key_pos_embeddings=np.broadcast_to(key_pos_embeddings[:,
     :1], key_pos_embeddings.shape), **given)),
    ("transformer_xl_attention_distance_without_memory", "distances that ignore the memory",
     "candle PR #899", "transformer_xl_score, clause 2", "M > N", lambda position, query, **given:
     attention.transformer_xl_attention(position=np.roll(position, max(given["key"].shape[2]
     - query.shape[2], 0), axis=1), query=query, **given )),
    ("learned_relative_attention_halves_exchanged", "the future's rows for the past's",
     "x-transformers commit 6d0c641", ROW, "N > 1 or M > 1", {"score": rows_by(halves_exchanged)}),
    ("transformer_xl_attention_grad_first_batch",
     "the gradient by position of the first batch alone", "this project",
     "transformer_xl_attention_grad: the sum over b", "B > 1", of_part(XL, [3], first(1))),
    ("transformer_xl_attention_grad_biases_exchanged", "gradients of u and v exchanged",
     "this project", "transformer_xl_attention_grad", "any", exchanged(XL, -2, -1)),
    ("transformer_xl_attention_grad_content_alone",
     "a query whose gradient lacks the position score", "this project",
     "transformer_xl_attention_grad", "any", with_outputs(XL, {0: content_alone})),
))  # fmt: skip
