"""Faults of dropout: its factor, its place, its draw, and the backward pass."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.changes import with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, layers

FACTOR, GIVEN = "dropout: w / (1 - p)", "dropout, clause 1"


def factored(factor: Any) -> Any:
    return lambda weights, keep, p: np.where(True if keep is None else keep, weights * factor(p), 0)


def without_factor(weights: ndarray, keep: Any, p: float) -> ndarray:
    return factored(lambda p: 1.0)(weights, keep, p)


def renormalised(weights: ndarray, keep: Any, p: float) -> ndarray:
    kept = np.where(True if keep is None else keep, weights, 0)
    total = kept.sum(axis=-1, keepdims=True)
    return (
        kept / np.where(total == 0, 1, total) * weights.sum(axis=-1, keepdims=True) if p else kept
    )


@fault("dropout", "dropout on the weights and on the output",
       source="xformers commit 72f969f2", clause="scaled_dot_product_attention",
       reveals="p > 0")  # fmt: skip
def scaled_dot_product_attention_dropped_twice(
    keep: Any = None, p: float = 0.0, **given: Any
) -> Any:
    output = attention.scaled_dot_product_attention(keep=keep, p=p, **given)
    return output if keep is None else attention.drop(output, np.resize(keep, output.shape), p)


def shifted(weights: ndarray, keep: Any, p: float, block: int = 64) -> ndarray:
    return attention.drop(
        weights,
        keep if keep is None or keep.shape[-1] <= block else np.roll(keep, block, axis=-1),
        p,
    )


@fault("dropout", "what arrives at the weights passes no dropout",
       source="this project", clause="multi_head_attention_grad, clause 4",
       reveals="p > 0")  # fmt: skip
def multi_head_attention_grad_around_dropout(**given: Any) -> Any:
    grad = CATALOGUE["multi_head_attention_grad"].reference
    alone = given | {"d_output": 0 * given["d_output"]}
    dropped, whole = grad(**alone), grad(**alone | {"keep": None, "p": 0.0})
    *inputs, d_parameters = grad(**given)[:4]
    d_query = inputs[0] - dropped[0] + whole[0]
    return d_query, *inputs[1:], d_parameters, *grad(**given)[4:]


add_faults("dropout", (
    ("dropout_factor_two", "the factor 2 whatever p is", "this project", FACTOR,
     "p other than 0.5", {"drop": factored(lambda p: 2.0 if p else 1.0)}),
    ("dropout_without_draw_at_zero", "the draw ignored where p = 0", "this project", GIVEN,
     "p = 0 and a draw that drops",
     lambda weights, keep, p: attention.dropout(weights, keep if p else None, p)),
    ("additive_attention_draw_of_first_batch", "the first batch's draw for all", "this project",
     GIVEN, "keep, B > 1",
     lambda keep=None, **given: attention.additive_attention(keep=None if keep is None else
      keep[:1], **given)),
    ("scaled_dot_product_attention_grad_draw_shifted",
     "a backward pass with the next tile's draw", "xformers commit 70161e55",
     "gradients under dropout", "keep, M > 64", {"drop": shifted, "drop_back": shifted}),
    ("scaled_dot_product_attention_grad_unscaled_back", "a backward pass without the factor",
     "this project", "gradients under dropout", "p > 0", {"drop_back": without_factor}),
    ("scaled_dot_product_attention_grad_values_undropped",
     "values whose gradient forgets the draw", "this project", "gradients under dropout", "p > 0",
     {"drop": lambda weights, keep, p: weights}),
    ("relative_multi_head_attention_dropout_unscaled", "kept weights of a layer are not scaled",
     "this project", FACTOR, "p > 0", {"drop": without_factor}),
    ("transformer_xl_first_draw", "the first layer's draw for all layers", "this project",
     "transformer_xl, clause 5", "p > 0, L > 1",
     lambda keep=None, **given: layers.transformer_xl(**given, keep=None if keep is None else
      keep[:1])),
    ("self_attention_grad_without_draw", "a layer's backward pass without its draw",
     "this project", "attend_grad, clause 1", "p > 0",
     lambda **given: CATALOGUE["self_attention_grad"].reference(**given | {"keep": None, "p":
      0.0})),
    ("dropout_renormalised", "kept weights scaled back to a sum of one", "this project",
     "dropout, clause 2", "p > 0", {"drop": renormalised}),
    ("scaled_dot_product_attention_dropped_scores", "dropped keys hidden before the softmax",
     "this project", "dropout acts on the weights", "p > 0", lambda keep=None, p=0.0, **given:
     attention.scaled_dot_product_attention( **given, weigh=lambda score, visible:
     ( attention.weigh(score, visible if keep is None else visible & keep) / (1 - p) ), )),
    ("scaled_dot_product_attention_draw_transposed", "the transposed draw where N = M",
     "this project", GIVEN, "keep, N = M > 1", lambda keep=None, **given:
     attention.scaled_dot_product_attention(keep=keep.mT if (
     keep is not None and keep.shape[-1] == keep.shape[-2]) else keep, **given)),
    ("alibi_multi_head_attention_first_draw", "the first entry's draw for the whole batch",
     "this project", "alibi_multi_head_attention, clause 4", "p > 0, B > 1", lambda keep=None,
     **given: layers.alibi_multi_head_attention(**given, keep=None if keep is None else keep[:1])),
    ("multi_head_attention_weights_undropped",
     "the weights returned are those before the dropout", "this project",
     "multi_head_attention, clause 5", "p > 0",
     with_outputs(layers.multi_head_attention, {1: lambda w, x: layers.multi_head_attention(**x |
      {"keep": None, "p": 0.0})[1]})),
))  # fmt: skip
