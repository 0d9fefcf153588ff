"""Bounds for the gradients of the attentions without relative positions."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.alibi import alibi_error, alibi_forms
from attnverify.bounds.attention import masked_additive, masked_products
from attnverify.bounds.gradients.scores import additive_gradients, dot_gradients
from attnverify.bounds.gradients.steps import (
    Grads,
    at_seeing_queries,
    at_seen_keys,
    attention_gradients,
    backward,
    mask_gradient,
    score_and_other_gradients,
    score_gradient_error,
)
from attnverify.bounds.scores import Products, additive, products
from attnverify.bounds.softmax_rows import Precisions, total, zero_where_hidden
from attnverify.bounds.weighted_mean import LARGE, WeightedMean, weighted_mean
from attnverify.precision import Precision


def scaled_dot_product_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> Grads:
    """
    Bound the errors of dQ, dK, dV, and of the gradient of a float mask: `attention_gradients`, of
    one product each.
    """
    (B, H, N, _), (M, E) = query.shape, value.shape[-2:]
    shared = mask is not None and mask.dtype != bool and (1, *mask.shape)[-3:][0] == 1
    if shared and H > 1 and B * N * M * E > LARGE:
        arrays = d_output, query, key, value, mask, keep
        return total(lambda P: head_by_head(arrays, p, P), precision)
    at = products(query, key)
    chain, error = masked_products(at, mask)
    back = backward(weighted_mean(chain, value, keep, p), d_output)
    own = at.scale, partial(dot_gradients, at)
    return total(lambda P: attention_gradients(back, error(P), *own, P, mask), precision)


def head_by_head(arrays: tuple[Any, ...], p: float, P: Precision) -> Grads:
    """
    Bound the same one head after the other, so that what is held at a time stays near the
    processor; the gradient of their one mask, a sum over them, from the score's of all of them.
    """
    found, mask = [], arrays[4]
    for head in range(len(arrays[1][0])):
        d_output, query, key, value, _, keep = (of_head(x, head) for x in arrays)
        at = products(query, key)
        chain, error = masked_products(at, mask)
        back = backward(weighted_mean(chain, value, keep, p), d_output)
        own = at.scale, partial(dot_gradients, at)
        found.append((back.dS, *score_and_other_gradients(back, error(P), *own, P)))
    dS, E_dS, *grads = (np.concatenate(parts, 1) for parts in zip(*found, strict=True))
    return (*grads, *mask_gradient(dS, E_dS, mask, P))


def of_head(x: Any, head: int) -> Any:
    """Cut one head out of an array [... H N M]; the whole, where it has no such axis."""
    return x if x is None or x.ndim < 3 or x.shape[-3] == 1 else x[..., head : head + 1, :, :]


def alibi_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    visible: ndarray | None = None,
    *,
    precision: Precisions,
) -> Grads:
    """Bound the errors of dQ, dK, dV, for each of the `alibi_forms`."""
    forms = alibi_forms(query, key, value, visible)

    def gradients(
        P: Precision, at: Products, m: ndarray, distance: ndarray, mix: WeightedMean
    ) -> Grads:
        own = alibi_error(at, m, distance, P), at.scale, partial(dot_gradients, at)
        return attention_gradients(backward(mix, d_output), *own, P)

    return total(
        lambda P: tuple(
            np.maximum.reduce(errors)
            for errors in zip(*(gradients(P, *form) for form in forms(P)), strict=True)
        ),
        precision,
    )


def additive_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> Grads:
    """
    Bound the errors of the gradients of query, key, value, the three weights, and of a float mask.

    dS by `score_gradient_error`, then `additive_gradients`.
    """
    at = additive(query, key, w_query, w_key, w_score)
    chain, error = masked_additive(at, mask)
    back = backward(weighted_mean(chain, value, keep, p), d_output)

    def bound(P: Precision) -> Grads:
        E_dS, dV = score_gradient_error(back, error(P), P)
        shown = zero_where_hidden(chain, np.ones_like(back.dS))
        hidden = (shown == 0) & np.isfinite(E_dS)
        dq, dk, *weights = additive_gradients(at, back.dS, E_dS, hidden, chain, P)
        grads = (at_seeing_queries(chain, dq), at_seen_keys(chain, dk), dV, *weights)
        return (*grads, *mask_gradient(back.dS, E_dS, mask, P))

    return total(bound, precision)
