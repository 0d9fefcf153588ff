"""
Bounds for the backward pass of an attention in heads between projections, which the layers share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.bounds import layers
from attnverify.bounds.attention import masked_products
from attnverify.bounds.error_rules import rounding_error, storage_error, sum_error
from attnverify.bounds.gradients.relative import (
    first_place,
    learned_gradients,
    place_rows,
    places_of,
)
from attnverify.bounds.gradients.scores import dot_gradients, projection
from attnverify.bounds.gradients.steps import (
    at_seeing_queries,
    at_seen_keys,
    backward,
    nan_to_inf,
    scaled_gradient,
    score_gradient_error,
    shared_gradient,
)
from attnverify.bounds.layers import TABLES, ProjectedHeads, heads_forward, merge, split
from attnverify.bounds.relative import learned_error, learned_relative_terms
from attnverify.bounds.scores import products
from attnverify.bounds.softmax_rows import Rows, rows
from attnverify.bounds.weighted_mean import weighted_mean
from attnverify.precision import Precision

Linear = tuple[ndarray, ndarray | None]  # weight and bias
Pair = tuple[ndarray, ndarray]  # a value and its error


def bias_gradient(dz: ndarray, E: ndarray, P: Precision) -> ndarray:
    """
    Bound the error of the sum of dz over batch and positions, stored: one sum, or one for each
    batch element, rounded to `joined`, and their sum.
    """
    each = dz.sum(1)
    E = rounding_error(each, sum_error(dz, E, (1,), P, dz.shape[0] * dz.shape[1]), P.joined)
    return shared_gradient(each, E, (0,), P)


def parameter_gradients(
    name: str,
    net: Linear,
    dz: Pair,
    x: ndarray,
    P: Precision,
    Ex: ndarray | None = None,
    terms: int | None = None,
) -> tuple[ndarray, dict[str, ndarray]]:
    """
    Return the errors of dx = dz W, and of weight and bias under their names; all are rounded to
    `stage` before they are stored. `terms`: how many dx sums, where it goes on with other products.
    """
    within, (weight, bias) = replace(P, storage=P.stage), net
    E_x, E_W = projection(*dz, x, weight, within, terms, Ex)
    dW = np.einsum("bng,bnf->gf", dz[0], x)
    found = {f"{name}.weight": storage_error(dW, E_W, P.stage, P.storage)}
    if bias is not None:
        E_b = bias_gradient(*dz, within)
        found[f"{name}.bias"] = storage_error(dz[0].sum((0, 1)), E_b, P.stage, P.storage)
    return E_x, found


@dataclass(frozen=True)
class Scores:
    """
    The scores of queries and keys in float64, and what becomes of errors on the way to them and
    back.

    error      the scores' error, from those of queries and transposed keys
    gradients  the gradients of queries and keys with their errors, from scale dS and its error; and
               those of parameters that the score has of its own, by their names
    placed     the error of such a gradient, its rows among those that nobody reads
    """

    rows: Rows
    scale: float
    error: Callable[[Precision, ndarray, ndarray], ndarray | None]
    gradients: Callable[
        [ndarray, ndarray, Precision, ndarray, ndarray], tuple[Pair, Pair, dict[str, Pair]]
    ]
    placed: Callable[[str, ndarray], ndarray] = lambda name, E: E


def dot_scores(q: ndarray, k: ndarray, mask: ndarray | None) -> Scores:
    """Compute the scores q.k / sqrt(D) under a mask."""
    at = products(q, k)

    def gradients(
        s: ndarray, E: ndarray, P: Precision, Eq: ndarray, Ek: ndarray
    ) -> tuple[Pair, Pair, dict[str, Pair]]:
        E_dq, E_dk = dot_gradients(at, s, E, P, Eq, Ek)
        dq, dk = s @ at.kT.swapaxes(-1, -2), s.swapaxes(-1, -2) @ at.q
        return (dq, E_dq), (dk, E_dk), {}

    error = lambda P, Eq, Ek: masked_products(at, mask, Eq, Ek)[1](P)
    return Scores(masked_products(at, mask)[0], at.scale, error, gradients)


def counted_scores(q: ndarray, k: ndarray, heads: int, visible: ndarray) -> Scores:
    """Compute the scores q.k / sqrt(D) and slope times the count of visible keys."""
    chain, error = layers.counted_scores(q, k, heads, visible)
    return replace(dot_scores(q, k, None), rows=chain, error=error)


def learned_scores(
    q: ndarray,
    k: ndarray,
    parameters: Mapping[str, ndarray],
    align: str,
    visible: ndarray | None,
) -> Scores:
    """Compute the learned relative scores, whose tables have gradients of their own."""
    embeddings, bias, query_bias = (parameters[name] for name in TABLES)
    at = learned_relative_terms(q, k, embeddings, bias, query_bias, align)
    place, low = places_of(at), first_place(embeddings, at.s.shape, align)

    def gradients(
        s: ndarray, E: ndarray, P: Precision, Eq: ndarray, Ek: ndarray
    ) -> tuple[Pair, Pair, dict[str, Pair]]:
        E_dq, E_dk, *errors = learned_gradients(at, s, E, place, P, Eq, Ek)
        ta, _, qt, *_ = place(s, E, P, Eq)
        content, rows_read = s @ at.kT.swapaxes(-1, -2), at.index.max() + 1
        at_rows = [np.bincount(at.index.ravel(), x.ravel(), minlength=rows_read) for x in s.sum(0)]
        values = qt.sum(0).swapaxes(0, 1), np.stack(at_rows, -1), content.sum((0, 2))
        own = dict(zip(TABLES, zip(values, errors, strict=True), strict=True))
        return (content + ta, E_dq), (s.swapaxes(-1, -2) @ (at.q + at.b), E_dk), own

    placed = lambda name, E: E if name == TABLES[2] else place_rows(E, parameters[name], low)
    chain, error = rows(at.s, visible, at.lost), partial(learned_error, at)
    return Scores(chain, at.scale, error, gradients, placed)


@dataclass(frozen=True)
class HeadsBackward:
    """
    What leaves the heads: the gradient behind each projection with its error, that of the scores,
    and the errors of those of parameters.
    """

    dz: dict[str, Pair]
    dS: Pair
    found: dict[str, ndarray]


def heads_gradients(
    layer: ProjectedHeads,
    scores: Scores,
    d_output: ndarray,
    P: Precision,
    d_weights: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
) -> HeadsBackward:
    """
    Bound the backward pass from the layer's output to the results of its projections, each kept in
    `stage`: queries, keys and values have the errors of theirs, and so has the gradient that the
    output projection hands to the heads, whose attention kept its own output in `stage`.
    """
    within, w_out = replace(P, storage=P.stage), layer.net[layer.output][0]
    mix = weighted_mean(scores.rows, layer.v, keep, p)
    (Eq, Ek, Ev), Es, heard = heads_forward(layer, mix, scores.error, P)
    given = d_output, np.zeros_like(d_output)
    E_heads, found = parameter_gradients(
        layer.output, layer.net[layer.output], given, heard[0], P, heard[1]
    )
    d_heads = split(d_output @ w_out, layer.heads)
    back = backward(mix, d_heads, d_weights)
    E_dS, E_dv = score_gradient_error(back, Es, within, Ev, split(E_heads, layer.heads), P.stage)
    s, E = scaled_gradient(back.dS, E_dS, scores.scale, scores.rows, P)
    (dq, E_dq), (dk, E_dk), own = scores.gradients(s, E, within, Eq, Ek)
    E_dq = at_seeing_queries(scores.rows, E_dq)
    E_dk = at_seen_keys(scores.rows, nan_to_inf(E_dk))
    parts = (dq, E_dq), (dk, E_dk), (back.w.swapaxes(-1, -2) @ d_heads, E_dv)
    dz = {name: (merge(d), merge(E_d)) for name, (d, E_d) in zip(layer.inputs, parts, strict=True)}
    for name, (value, E) in own.items():
        found[name] = scores.placed(name, storage_error(value, E, P.stage, P.storage))
    return HeadsBackward(dz, (back.dS, E_dS), found)
