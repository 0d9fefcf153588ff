"""
Faults of the additive attention: where the tanh stands, which projection, axes that a squeeze takes
away, and its gradients.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import attention, gradients

SCORE, GRAD = "additive_score: w . tanh(W q + W k)", "additive_attention_grad"


@fault(
    "additive",
    "the tanh behind the last projection",
    source="Attentive-Statistics-Pooling #3",
    clause=SCORE,
    reveals="any",
)
def additive_score_tanh_last(**given: Any) -> Any:
    return np.tanh(attention.additive_score(**given, bend=lambda z: z))


@fault(
    "additive", "no tanh", source="this project", clause=SCORE, reveals="sums that are not small"
)
def additive_attention_without_tanh(**given: Any) -> Any:
    return attention.additive_attention(
        **given, score=partial(attention.additive_score, bend=lambda z: z)
    )


@fault(
    "additive", "a logistic function for tanh", source="this project", clause=SCORE, reveals="any"
)
def additive_score_logistic(**given: Any) -> Any:
    return attention.additive_score(**given, bend=lambda z: 1 / (1 + np.exp(-z)))


@fault(
    "additive",
    "a squeeze without an axis",
    source="mead-baseline PR #703",
    clause="additive_score: [... N M]",
    reveals="a size of 1",
)
def additive_score_squeezed(**given: Any) -> Any:
    return np.squeeze(attention.additive_score(**given))


@fault(
    "additive",
    "an output squeezed and broadcast back",
    source="OpenNMT-py PR #109",
    clause="[B N E]",
    reveals="N = 1, B > 1",
)
def additive_attention_squeezed_queries(query: ndarray, key: ndarray, **given: Any) -> Any:
    def score(*inputs: ndarray) -> ndarray:
        s = attention.additive_score(*inputs)
        return np.broadcast_to(s[:1], s.shape) if query.shape[1] == 1 else s

    return attention.additive_attention(query, key, **given, score=score)


@fault(
    "additive",
    "the query's projection for the keys where it fits",
    source="OpenNMT-py PR #110",
    clause=SCORE,
    reveals="Q = K",
)
def additive_attention_one_projection(w_query: ndarray, w_key: ndarray, **given: Any) -> Any:
    return attention.additive_attention(
        w_query=w_query, w_key=w_query if w_query.shape == w_key.shape else w_key, **given
    )


@fault(
    "additive",
    "the hidden layer averaged over its units",
    source="this project",
    clause=SCORE,
    reveals="A > 1",
)
def additive_score_mean_of_units(**given: Any) -> Any:
    return attention.additive_score(**given, last=lambda t, w: t @ w / len(w))


@fault(
    "additive",
    "units bent at 3",
    source="this project",
    clause=SCORE,
    reveals="sums between 0.5 and 3",
)
def additive_attention_hard_tanh(**given: Any) -> Any:
    return attention.additive_attention(
        **given, score=partial(attention.additive_score, bend=lambda z: np.clip(z, -1, 1))
    )


@fault(
    "additive",
    "the slope of tanh at its argument's square",
    source="flash-attention commit 14f3627d",
    clause=GRAD,
    reveals="sums that are not small",
)
def additive_attention_grad_slope_of_argument(**given: Any) -> Any:
    return gradients.additive_attention_grad(**given, slope=lambda z, t: 1 - z * z)


@fault(
    "additive",
    "no slope of the tanh",
    source="this project",
    clause=GRAD,
    reveals="sums that are not small",
)
def additive_attention_grad_without_slope(**given: Any) -> Any:
    return gradients.additive_attention_grad(**given, slope=lambda z, t: np.ones_like(t))


@fault(
    "additive",
    "a gradient by w_score of the first batch alone",
    source="this project",
    clause=GRAD,
    reveals="B > 1",
)
def additive_attention_grad_first_batch(d_output: ndarray, **given: Any) -> Any:
    grads = list(gradients.additive_attention_grad(d_output, **given))
    first = np.where(np.arange(len(d_output))[:, None, None] == 0, d_output, 0)
    grads[5] = gradients.additive_attention_grad(first, **given)[5]
    return tuple(grads)


@fault(
    "additive",
    "gradients of the two projections exchanged where they fit",
    source="this project",
    clause=GRAD,
    reveals="Q = K",
)
def additive_attention_grad_projections_exchanged(**given: Any) -> Any:
    grads = list(gradients.additive_attention_grad(**given))
    if grads[3].shape == grads[4].shape:
        grads[3], grads[4] = grads[4], grads[3]
    return tuple(grads)


@fault(
    "additive",
    "a gradient by key that lacks the last query",
    source="this project",
    clause=GRAD,
    reveals="any",
)
def additive_attention_grad_without_last_query(d_output: ndarray, **given: Any) -> Any:
    grads = list(gradients.additive_attention_grad(d_output, **given))
    cut = np.where(np.arange(d_output.shape[1])[:, None] == d_output.shape[1] - 1, 0, d_output)
    grads[1] = gradients.additive_attention_grad(cut, **given)[1]
    return tuple(grads)
