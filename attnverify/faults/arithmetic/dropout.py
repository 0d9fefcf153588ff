"""Faults of dropout: its factor, its place, its draw, and the backward pass."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients, layers

FACTOR, GIVEN = "dropout: w / (1 - p)", "dropout, clause 1"


def factored(factor: Any) -> Any:
    return lambda weights, keep, p: np.where(True if keep is None else keep, weights * factor(p), 0)


def without_factor(weights: ndarray, keep: Any, p: float) -> ndarray:
    return factored(lambda p: 1.0)(weights, keep, p)


@fault(
    "dropout", "no factor on what is kept", source="this project", clause=FACTOR, reveals="p > 0"
)
def dropout_unscaled(**given: Any) -> Any:
    return attention.dropout(**given, drop=without_factor)


@fault(
    "dropout", "the factor 1 / p", source="this project", clause=FACTOR, reveals="p other than 0.5"
)
def dropout_scaled_by_p(**given: Any) -> Any:
    return attention.dropout(**given, drop=factored(lambda p: 1 / p if p else 1.0))


@fault(
    "dropout",
    "the factor 2 whatever p is",
    source="this project",
    clause=FACTOR,
    reveals="p other than 0.5",
)
def dropout_factor_two(**given: Any) -> Any:
    return attention.dropout(**given, drop=factored(lambda p: 2.0 if p else 1.0))


@fault(
    "dropout",
    "kept weights scaled back to a sum of one",
    source="this project",
    clause="dropout, clause 2",
    reveals="p > 0",
)
def dropout_renormalised(**given: Any) -> Any:
    def drop(weights: ndarray, keep: Any, p: float) -> ndarray:
        kept = np.where(True if keep is None else keep, weights, 0)
        total = kept.sum(axis=-1, keepdims=True)
        return (
            kept / np.where(total == 0, 1, total) * weights.sum(axis=-1, keepdims=True)
            if p
            else kept
        )

    return attention.dropout(**given, drop=drop)


@fault(
    "dropout", "what should be kept is dropped", source="this project", clause=GIVEN, reveals="keep"
)
def dropout_polarity(weights: ndarray, keep: Any, p: float) -> Any:
    return attention.dropout(weights, None if keep is None else ~keep, p)


@fault(
    "dropout",
    "the draw ignored where p = 0",
    source="this project",
    clause=GIVEN,
    reveals="p = 0 and a draw that drops",
)
def dropout_without_draw_at_zero(weights: ndarray, keep: Any, p: float) -> Any:
    return attention.dropout(weights, keep if p else None, p)


@fault(
    "dropout",
    "dropout on the weights and on the output",
    source="xformers commit 72f969f2",
    clause="scaled_dot_product_attention",
    reveals="p > 0",
)
def scaled_dot_product_attention_dropped_twice(
    keep: Any = None, p: float = 0.0, **given: Any
) -> Any:
    output = attention.scaled_dot_product_attention(keep=keep, p=p, **given)
    return output if keep is None else attention.drop(output, np.resize(keep, output.shape), p)


@fault(
    "dropout",
    "a draw that nobody reads",
    source="audiolm-pytorch PR #69",
    clause=GIVEN,
    reveals="p > 0",
)
def scaled_dot_product_attention_draw_unread(keep: Any = None, p: float = 0.0, **given: Any) -> Any:
    return attention.scaled_dot_product_attention(**given)


@fault(
    "dropout",
    "dropped keys hidden before the softmax",
    source="this project",
    clause="dropout acts on the weights",
    reveals="p > 0",
)
def scaled_dot_product_attention_dropped_scores(
    keep: Any = None, p: float = 0.0, **given: Any
) -> Any:
    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        return attention.weigh(score, visible if keep is None else visible & keep) / (1 - p)

    return attention.scaled_dot_product_attention(**given, weigh=weigh)


@fault(
    "dropout",
    "the transposed draw where N = M",
    source="this project",
    clause=GIVEN,
    reveals="keep, N = M > 1",
)
def scaled_dot_product_attention_draw_transposed(keep: Any = None, **given: Any) -> Any:
    square = keep is not None and keep.shape[-1] == keep.shape[-2]
    return attention.scaled_dot_product_attention(keep=keep.mT if square else keep, **given)


@fault(
    "dropout",
    "the first batch's draw for all",
    source="this project",
    clause=GIVEN,
    reveals="keep, B > 1",
)
def additive_attention_draw_of_first_batch(keep: Any = None, **given: Any) -> Any:
    return attention.additive_attention(keep=None if keep is None else keep[:1], **given)


def shifted(weights: ndarray, keep: Any, p: float, block: int = 64) -> ndarray:
    return attention.drop(
        weights,
        keep if keep is None or keep.shape[-1] <= block else np.roll(keep, block, axis=-1),
        p,
    )


@fault(
    "dropout",
    "a backward pass with the next tile's draw",
    source="xformers commit 70161e55",
    clause="gradients under dropout",
    reveals="keep, M > 64",
)
def scaled_dot_product_attention_grad_draw_shifted(**given: Any) -> Any:
    return gradients.scaled_dot_product_attention_grad(**given, drop=shifted, drop_back=shifted)


@fault(
    "dropout",
    "a backward pass without the factor",
    source="this project",
    clause="gradients under dropout",
    reveals="p > 0",
)
def scaled_dot_product_attention_grad_unscaled_back(**given: Any) -> Any:
    return gradients.scaled_dot_product_attention_grad(**given, drop_back=without_factor)


@fault(
    "dropout",
    "a backward pass that ignores the draw",
    source="this project",
    clause="gradients under dropout",
    reveals="p > 0",
)
def additive_attention_grad_draw_ignored(keep: Any = None, p: float = 0.0, **given: Any) -> Any:
    return gradients.additive_attention_grad(**given)


@fault(
    "dropout",
    "values whose gradient forgets the draw",
    source="this project",
    clause="gradients under dropout",
    reveals="p > 0",
)
def scaled_dot_product_attention_grad_values_undropped(**given: Any) -> Any:
    return gradients.scaled_dot_product_attention_grad(
        **given, drop=lambda weights, keep, p: weights
    )


@fault(
    "dropout",
    "the weights returned are those before the dropout",
    source="this project",
    clause="multi_head_attention, clause 5",
    reveals="p > 0",
)
def multi_head_attention_weights_undropped(**given: Any) -> Any:
    output, _ = layers.multi_head_attention(**given)
    return output, layers.multi_head_attention(**given | {"keep": None, "p": 0.0})[1]


@fault(
    "dropout",
    "kept weights of a layer are not scaled",
    source="this project",
    clause=FACTOR,
    reveals="p > 0",
)
def relative_multi_head_attention_dropout_unscaled(**given: Any) -> Any:
    return layers.relative_multi_head_attention(**given, drop=without_factor)


@fault(
    "dropout",
    "the first entry's draw for the whole batch",
    source="this project",
    clause="alibi_multi_head_attention, clause 4",
    reveals="p > 0, B > 1",
)
def alibi_multi_head_attention_first_draw(keep: Any = None, **given: Any) -> Any:
    first = None if keep is None else keep[:1]
    return layers.alibi_multi_head_attention(**given, keep=first)


@fault(
    "dropout",
    "the first layer's draw for all layers",
    source="this project",
    clause="transformer_xl, clause 5",
    reveals="p > 0, L > 1",
)
def transformer_xl_first_draw(keep: Any = None, **given: Any) -> Any:
    return layers.transformer_xl(**given, keep=None if keep is None else keep[:1])


@fault(
    "dropout",
    "a layer's backward pass without its draw",
    source="this project",
    clause="attend_grad, clause 1",
    reveals="p > 0",
)
def self_attention_grad_without_draw(**given: Any) -> Any:
    return CATALOGUE["self_attention_grad"].reference(**given | {"keep": None, "p": 0.0})


@fault(
    "dropout",
    "what arrives at the weights passes no dropout",
    source="this project",
    clause="multi_head_attention_grad, clause 4",
    reveals="p > 0",
)
def multi_head_attention_grad_around_dropout(**given: Any) -> Any:
    grad = CATALOGUE["multi_head_attention_grad"].reference
    alone = given | {"d_output": 0 * given["d_output"]}
    dropped, whole = grad(**alone), grad(**alone | {"keep": None, "p": 0.0})
    *inputs, d_parameters = grad(**given)[:4]
    d_query = inputs[0] - dropped[0] + whole[0]
    return d_query, *inputs[1:], d_parameters, *grad(**given)[4:]
