"""
Faults of the additive attention: where the tanh stands, which projection, axes that a squeeze takes
away, and its gradients.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import along, first, of_part
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention, gradients

SCORE, GRAD = "additive_score: w . tanh(W q + W k)", "additive_attention_grad"
BACK = gradients.additive_attention_grad


@fault("additive", "an output squeezed and broadcast back",
       source="OpenNMT-py PR #109", clause="[B N E]", reveals="N = 1, B > 1")  # fmt: skip
def additive_attention_squeezed_queries(query: ndarray, key: ndarray, **given: Any) -> Any:
    def score(*inputs: ndarray) -> ndarray:
        s = attention.additive_score(*inputs)
        return np.broadcast_to(s[:1], s.shape) if query.shape[1] == 1 else s

    return attention.additive_attention(query, key, **given, score=score)


@fault("additive", "gradients of the two projections exchanged where they fit",
       source="this project", clause=GRAD, reveals="Q = K")  # fmt: skip
def additive_attention_grad_projections_exchanged(**given: Any) -> Any:
    grads = list(gradients.additive_attention_grad(**given))
    if grads[3].shape == grads[4].shape:
        grads[3], grads[4] = grads[4], grads[3]
    return tuple(grads)


add_faults("additive", (
    ("additive_score_tanh_last", "the tanh behind the last projection",
     "Attentive-Statistics-Pooling #3", SCORE, "any",
     lambda **given: np.tanh(attention.additive_score(**given, bend=lambda z: z))),
    ("additive_attention_without_tanh", "no tanh", "this project", SCORE,
     "sums that are not small", {"score": partial(attention.additive_score, bend=lambda z: z)}),
    ("additive_score_logistic", "a logistic function for tanh", "this project", SCORE, "any",
     {"bend": lambda z: 1 / (1 + np.exp(-z))}),
    ("additive_score_squeezed", "a squeeze without an axis", "mead-baseline PR #703",
     "additive_score: [... N M]", "a size of 1",
     lambda **given: np.squeeze(attention.additive_score(**given))),
    ("additive_attention_one_projection", "the query's projection for the keys where it fits",
     "OpenNMT-py PR #110", SCORE, "Q = K",
     lambda w_query, w_key, **given: attention.additive_attention(w_query=w_query, w_key=w_query
      if w_query.shape == w_key.shape else w_key, **given)),
    ("additive_score_mean_of_units", "the hidden layer averaged over its units", "this project",
     SCORE, "A > 1", {"last": lambda t, w: t @ w / len(w)}),
    ("additive_attention_hard_tanh", "units bent at 3", "this project", SCORE,
     "sums between 0.5 and 3",
     {"score": partial(attention.additive_score, bend=lambda z: np.clip(z, -1, 1))}),
    ("additive_attention_grad_slope_of_argument", "the slope of tanh at its argument's square",
     "flash-attention commit 14f3627d", GRAD, "sums that are not small",
     {"slope": lambda z, t: 1 - z * z}),
    ("additive_attention_grad_without_slope", "no slope of the tanh", "this project", GRAD,
     "sums that are not small", {"slope": lambda z, t: np.ones_like(t)}),
    ("additive_attention_grad_first_batch", "a gradient by w_score of the first batch alone",
     "this project", GRAD, "B > 1", of_part(BACK, [5], first(1))),
    ("additive_attention_grad_without_last_query", "a gradient by key that lacks the last query",
     "this project", GRAD, "any", of_part(BACK, [1], along(1, lambda i, N: i < N - 1))),
))  # fmt: skip
