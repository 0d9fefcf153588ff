"""Bounds for the gradients of layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.attention import masked_products
from attnverify.bounds.error_rules import gamma, rounding_error, storage_error
from attnverify.bounds.gradients.heads import (
    HeadsBackward,
    Pair,
    Scores,
    counted_scores,
    dot_scores,
    heads_gradients,
    learned_scores,
    parameter_gradients,
)
from attnverify.bounds.gradients.scores import dot_gradients, projection
from attnverify.bounds.gradients.steps import (
    backward,
    mask_gradient,
    scaled_gradient,
    score_gradient_error,
)
from attnverify.bounds.layers import (
    LABML,
    MULTI_HEAD,
    ProjectedHeads,
    affine,
    linear_error,
    merged_masks,
    projected_heads,
)
from attnverify.bounds.scores import products
from attnverify.bounds.softmax_rows import Precisions, total
from attnverify.bounds.weighted_mean import weighted_mean
from attnverify.precision import Precision

Parameters = Mapping[str, ndarray]


def self_attention_grad(
    d_output: ndarray,
    x: ndarray,
    parameters: Parameters,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[Any, ...]:
    """
    Return the errors of the gradients of x, of the three weights, and of a float mask.

    Queries, keys and values have the errors of their projections and are kept in `stage`, and so
    are their gradients dq, dk, dv, by `score_gradient_error` and two products; then
    `summed_projections`.
    """
    names = ("w_query", "w_key", "w_value")
    weights = [parameters[name] for name in names]
    q, k, v = (affine(x, w, None) for w in weights)
    at = products(q, k)

    def bound(P: Precision) -> tuple[Any, ...]:
        Eq, Ek, Ev = (linear_error((x, None), w, None, P, P.stage) for w in weights)
        chain, Es = masked_products(at, mask, Eq, Ek.swapaxes(-1, -2))
        back = backward(weighted_mean(chain, v, keep, p), d_output)
        within = replace(P, storage=P.stage)
        E_dS, E_dv = score_gradient_error(back, Es(P), within, Ev, output=P.storage)
        s, E = scaled_gradient(back.dS, E_dS, at.scale, chain, P)
        E_dq, E_dk = dot_gradients(at, s, E, within, Eq, Ek)
        dq, dk = s @ at.kT.swapaxes(-1, -2), s.swapaxes(-1, -2) @ at.q
        dv = back.w.swapaxes(-1, -2) @ d_output
        parts = ((dq, E_dq), (dk, E_dk), (dv, E_dv))
        E_x, *E_weights = summed_projections(x, weights, parts, P)
        named = dict(zip(names, E_weights, strict=True))
        E_mask = mask_gradient(back.dS, E_dS, mask, P)
        return E_x, in_order(named, parameters), *E_mask

    return total(bound, precision)


def summed_projections(
    x: ndarray,
    weights: list[ndarray],
    parts: tuple[tuple[ndarray, ndarray], ...],
    P: Precision,
) -> list[ndarray]:
    """
    Return the errors of dx = sum_i dz_i W_i and of each dW_i = dz_i^T x, stored.

    Each product is rounded to `stage`, or goes on with the next: then every term passes the
    additions of all. So is each sum of two, g(parts - 1, u_stage) sum |dz_i W_i| in any order.
    """
    within, terms = replace(P, storage=P.stage), sum(dz.shape[-1] for dz, _ in parts)
    whole, E, size, found = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x), []
    for w, (dz, E_dz) in zip(weights, parts, strict=True):
        E_dx, E_dW = projection(dz, E_dz, x, w, within, terms)
        dx, dW = dz @ w, np.einsum("bng,bnf->gf", dz, x)
        whole, E, size = whole + dx, E + E_dx, size + np.abs(dx)
        found.append(storage_error(dW, E_dW, P.stage, P.storage))
    E = E + gamma(len(parts) - 1, P.stage.u) * (size + E)
    return [rounding_error(whole, E, P.storage), *found]


def in_order(grads: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Order what belongs to the parameters as these are; an absent bias has no gradient."""
    return {name: grads[name] for name in parameters if name in grads}


def multi_head_attention_grad(
    d_output: ndarray,
    d_weights: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Parameters,
    num_heads: int,
    attn_mask: ndarray | None = None,
    key_padding_mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[Any, ...]:
    """
    Bound the errors of the gradients of query, key, value, the parameters, and of a float mask:
    `heads_gradients` between the projections, then each projection's own.
    """
    mask = merged_masks(attn_mask, key_padding_mask, num_heads)
    inputs = dict(zip(MULTI_HEAD, (query, key, value), strict=False))
    layer = projected_heads(inputs, parameters, MULTI_HEAD, num_heads, mask)
    scores = dot_scores(layer.q, layer.k, mask)

    def bound(P: Precision) -> tuple[Any, ...]:
        back = heads_gradients(layer, scores, d_output, P, d_weights, keep, p)
        E_inputs, found = input_gradients(layer, back, P)
        E_mask = merged_mask_gradient(back.dS, attn_mask, P)
        return *E_inputs, in_order(found, parameters), *E_mask

    return total(bound, precision)


def multi_head_self_attention_grad(
    d_output: ndarray,
    d_weights: ndarray,
    x: ndarray,
    parameters: Parameters,
    num_heads: int,
    attn_mask: ndarray | None = None,
    key_padding_mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[Any, ...]:
    """Bound the errors of the same, x the sum over the three: `summed_projections`."""
    mask = merged_masks(attn_mask, key_padding_mask, num_heads)
    inputs = dict.fromkeys(MULTI_HEAD[:3], x)
    layer = projected_heads(inputs, parameters, MULTI_HEAD, num_heads, mask)
    scores = dot_scores(layer.q, layer.k, mask)

    def bound(P: Precision) -> tuple[Any, ...]:
        back = heads_gradients(layer, scores, d_output, P, d_weights, keep, p)
        _, found = input_gradients(layer, back, P)
        weights = [layer.net[name][0] for name in inputs]
        E_x, *_ = summed_projections(x, weights, tuple(back.dz.values()), P)
        E_mask = merged_mask_gradient(back.dS, attn_mask, P)
        return E_x, in_order(found, parameters), *E_mask

    return total(bound, precision)


def merged_mask_gradient(dS: Pair, attn_mask: ndarray | None, P: Precision) -> tuple[ndarray, ...]:
    """Bound the error of the gradient of attn_mask, whose first axis may be batch and heads."""
    per_head = attn_mask is not None and attn_mask.ndim == 3
    x, E = (y.reshape(-1, *y.shape[-2:]) if per_head else y for y in dS)
    return mask_gradient(x, E, attn_mask, P)


def input_gradients(
    layer: ProjectedHeads, back: HeadsBackward, P: Precision
) -> tuple[list[ndarray], dict[str, ndarray]]:
    """
    Return the errors of the gradients of query, key and value, stored, and of all projections'
    parameters.

    Exactly zero are those of a query that sees no key, and of a key or value that no query sees, in
    any head.
    """
    E_inputs, found = [], dict(back.found)
    for (name, x), counts in zip(layer.inputs.items(), layer.present, strict=True):
        weight = layer.net[name][0]
        E, grads = parameter_gradients(name, layer.net[name], back.dz[name], x, P)
        E = storage_error(back.dz[name][0] @ weight, E, P.stage, P.storage)
        E_inputs.append(np.where(counts[..., None] | np.isinf(E), E, 0.0))
        found |= grads
    return E_inputs, found


def relative_multi_head_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Parameters,
    num_heads: int,
    align: str,
    visible: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[Any, ...]:
    """
    Bound the errors of the gradients of query, key, value and the parameters: `heads_gradients`
    with `learned_scores`, then each projection's own.
    """
    inputs = dict(zip(LABML, (query, key, value), strict=False))
    layer = projected_heads(inputs, parameters, LABML, num_heads, visible)
    scores = learned_scores(layer.q, layer.k, parameters, align, visible)
    given = layer, scores, d_output, parameters
    return total(lambda P: labml_gradients(*given, P, keep, p), precision)


def alibi_multi_head_attention_grad(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    value: ndarray,
    parameters: Parameters,
    num_heads: int,
    visible: ndarray,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[Any, ...]:
    """Bound the same with `counted_scores`."""
    inputs = dict(zip(LABML, (query, key, value), strict=False))
    layer = projected_heads(inputs, parameters, LABML, num_heads, visible)
    scores = counted_scores(layer.q, layer.k, num_heads, visible)
    given = layer, scores, d_output, parameters
    return total(lambda P: labml_gradients(*given, P, keep, p), precision)


def labml_gradients(
    layer: ProjectedHeads,
    scores: Scores,
    d_output: ndarray,
    parameters: Parameters,
    P: Precision,
    keep: ndarray | None,
    p: float,
) -> tuple[Any, ...]:
    """Return the errors of the gradients of query, key, value and of the parameters."""
    back = heads_gradients(layer, scores, d_output, P, keep=keep, p=p)
    E_inputs, found = input_gradients(layer, back, P)
    return *E_inputs, in_order(found, parameters)
