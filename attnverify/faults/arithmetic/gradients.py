"""
Faults of the backward pass: NaN under a mask, terms that miss, weights of another kind, gradients
of masks.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.arithmetic.softmax import empty_rows
from attnverify.faults.changes import exchanged, with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, gradients

SOFTMAX = "the gradient of the softmax, w (dw - sum w dw)"
SDPA, ALIBI, LEARNED, XL = (
    f"{name}_grad"
    for name in (
        "scaled_dot_product_attention",
        "alibi_attention",
        "learned_relative_attention",
        "transformer_xl_attention",
    )
)


def everywhere(weights: ndarray, visible: ndarray, d_weights: ndarray, mean: ndarray) -> ndarray:
    return weights * (d_weights - mean)


def nothing(weights: ndarray, d_weights: ndarray) -> Any:
    return 0.0


@fault("backward", "a row mean of the weights before dropout",
       source="this project", clause="gradients under dropout", reveals="p > 0")  # fmt: skip
def scaled_dot_product_attention_grad_mean_undropped(**given: Any) -> Any:
    def mean(weights: ndarray, d_weights: ndarray) -> ndarray:
        d_plain = given["d_output"] @ given["value"].mT
        return gradients.row_mean(weights, d_plain)

    return gradients.scaled_dot_product_attention_grad(**given, row_mean=mean)


def mask_unsummed(d_score: ndarray, mask: Any) -> Any:
    if mask is None or mask.dtype == bool:
        return ()
    front = d_score[(0,) * (d_score.ndim - mask.ndim)]
    return (front[tuple(slice(0, size) for size in mask.shape)],)


def mask_averaged(d_score: ndarray, mask: Any) -> Any:
    return tuple(d / (d_score.size / d.size) for d in gradients.mask_grad(d_score, mask))


@fault("backward", "a mask whose gradient has the scale of the score",
       source="this project", clause="the gradient by a float mask",
       reveals="a float mask, D > 1")  # fmt: skip
def scaled_dot_product_attention_grad_mask_scaled(query: ndarray, **given: Any) -> Any:
    def mask_grad(d_score: ndarray, mask: Any) -> Any:
        return gradients.mask_grad(d_score / query.shape[-1] ** 0.5, mask)

    return gradients.scaled_dot_product_attention_grad(query=query, **given, mask_grad=mask_grad)


def stale_block(d: ndarray, visible: ndarray, key: ndarray) -> ndarray:
    stale = key.copy()
    if key.shape[2] > 16:
        stale[:, :, 16:32] = key[:, :, : key.shape[2] - 16][:, :, :16]
    return gradients.query_grad(d, visible, stale)


def hidden_share(score: ndarray, visible: ndarray) -> ndarray:
    return attention.weigh(
        np.where(visible, score, -20 + np.zeros_like(score)), np.ones_like(visible)
    )


def unscaled(d: ndarray, given: Inputs) -> Any:
    return d * given["query"].shape[-1] ** 0.5


add_faults("backward", (
    ("scaled_dot_product_attention_grad_nan_rows",
     "NaN in rows that see no key, which reaches hidden keys too", "brevitas PR #1591",
     "gradient 0 in a row that sees no key", "a row that sees no key",
     {"weigh": empty_rows(lambda M: np.nan), "score_grad": everywhere}),
    ("alibi_attention_grad_nan_rows",
     "NaN in rows that see no key, which reaches hidden keys too", "nGPT #11",
     "gradient 0 in a row that sees no key", "N > M",
     {"weigh": empty_rows(lambda M: np.nan), "score_grad": everywhere}),
    ("scaled_dot_product_attention_grad_without_mean", "no row mean in the softmax's gradient",
     "this project", SOFTMAX, "M > 1", {"row_mean": nothing}),
    ("learned_relative_attention_grad_without_mean", "no row mean in the softmax's gradient",
     "this project", SOFTMAX, "M > 1", {"row_mean": nothing}),
    ("alibi_attention_grad_plain_mean", "an unweighted row mean", "this project", SOFTMAX,
     "M > 1", {"row_mean": lambda w, d: d.mean(axis=-1, keepdims=True)}),
    ("scaled_dot_product_attention_grad_no_mask_gradient", "no gradient by a float mask",
     "this project", "the gradient by a float mask", "a float mask",
     {"mask_grad": lambda d, mask: ()}),
    ("learned_relative_attention_grad_of_the_sum", "a d_output taken for ones", "this project",
     "the gradient from d_output", "d_output that is not uniform",
     lambda d_output, **given: gradients.learned_relative_attention_grad(np.ones_like(d_output),
      **given)),
    ("transformer_xl_attention_grad_rolled_batch", "weights from keys of the wrong batch",
     "this project", XL, "B > 1",
     lambda key, **given: gradients.transformer_xl_attention_grad(key=np.roll(key, 1, axis=0),
      **given)),
    ("scaled_dot_product_attention_grad_mask_unsummed",
     "a mask whose gradient is not summed over the heads", "this project",
     "the gradient by a float mask", "a float mask with an axis of 1", {"mask_grad":
     mask_unsummed}),
    ("additive_attention_grad_mask_averaged", "a mask whose gradient is averaged over the heads",
     "this project", "the gradient by a float mask", "a float mask with an axis of 1",
     {"mask_grad": mask_averaged}),
    ("scaled_dot_product_attention_grad_mask_transposed",
     "the transposed mask in the backward pass where N = M", "pytorch #158212", SDPA,
     "a mask that is not symmetric, N = M", lambda mask=None, **given:
     gradients.scaled_dot_product_attention_grad(mask=mask.mT
     if (mask is not None and mask.shape[-1] == mask.shape[-2] and mask.dtype == bool) else mask,
     **given)),
    ("alibi_attention_grad_stale_block", "a stale block of keys in the query's gradient",
     "flash-attention commit 1c41d2b0", ALIBI, "M > 16", {"query_grad": stale_block}),
    ("learned_relative_attention_grad_hidden_share",
     "hidden keys that take a share of the value's gradient", "this project",
     "gradient 0 in hidden slots", "a hidden key", {"weigh": hidden_share}),
    ("alibi_attention_grad_keys_of_first_head",
     "head 0's keys for all heads in the query's gradient", "this project", XL, "H > 1",
     lambda **given: gradients.alibi_attention_grad( **given, query_grad=lambda d, visible, key:
     gradients.query_grad( d, visible, np.broadcast_to(key[:, :1], key.shape) ), )),
    ("scaled_dot_product_attention_grad_key_unscaled", "a key whose gradient is not scaled",
     "this project", SDPA, "D > 1",
     with_outputs(gradients.scaled_dot_product_attention_grad, {1: unscaled})),
    ("alibi_attention_grad_query_unscaled", "a query whose gradient is not scaled",
     "this project", ALIBI, "D > 1", with_outputs(gradients.alibi_attention_grad, {0: unscaled})),
    ("scaled_dot_product_attention_grad_key_and_value_exchanged", "gradients in another order",
     "this project", "one gradient per differentiable input, in their order", "D = E",
     exchanged(gradients.scaled_dot_product_attention_grad, 1, 2)),
))  # fmt: skip
