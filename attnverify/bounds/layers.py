"""
Bounds for whole layers: the errors of projection, attention and normalisation handed on from stage
to stage.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy import ndarray

from attnverify.bounds.alibi import alibi_error, slopes
from attnverify.bounds.attention import dropped_weights_error, masked_products
from attnverify.bounds.error_rules import dot_error, operand_error, rounding_error, start_error
from attnverify.bounds.relative import learned_error, learned_relative_terms
from attnverify.bounds.scores import products
from attnverify.bounds.softmax_rows import Precisions, Rows, rows, total
from attnverify.bounds.weighted_mean import WeightedMean, weighted_mean, weighted_mean_error
from attnverify.precision import Format, Precision

Parameters = Mapping[str, ndarray]
Pair = tuple[ndarray, ndarray | None]  # a value and its error


def affine(x: ndarray, weight: ndarray, bias: ndarray | None) -> ndarray:
    """Compute x W^T + b."""
    return x @ weight.T if bias is None else x @ weight.T + bias


def linear_error(
    x: Pair,
    weight: ndarray,
    bias: ndarray | None,
    P: Precision,
    fmt: Format,
    residual: Pair | None = None,
) -> ndarray:
    """
    Compute rounded(rounded(x W^T, dot), + b), both to `fmt`; a fused bias drops one of the two.

    The sum may begin with the bias, or with the residual that the result is added to afterwards:
    acc(n) of their sizes, n the terms with them. Zero where the result is no number: who reads it
    is told by its value, and an infinite error of a key would be one of rows that do not see it.
    """
    value, E = x
    y, n = value @ weight.T, value.shape[-1] + (bias is not None) + (residual is not None)
    factors = operand_error(value, E, P), operand_error(weight.T, None, P)
    E = dot_error(value, factors[0], weight.T, factors[1], P, n)
    if bias is not None:
        E = E + start_error(np.abs(bias), n, P)
    if residual is not None:
        E = E + start_error(
            np.abs(residual[0]) + (0.0 if residual[1] is None else residual[1]), n, P
        )
    E = rounding_error(y, E, fmt)
    E = E if bias is None else rounding_error(y + bias, E, fmt)
    return E if np.isfinite(y.sum()) else np.where(np.isfinite(y), E, 0.0)


def split(x: ndarray, num_heads: int) -> ndarray:
    """Split [B N F] into [B H N D]."""
    return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-2, -3)


def merge(x: ndarray) -> ndarray:
    """Merge [B H N D] into [B N F]."""
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], -1)


def zero_unseen_keys(x: ndarray, visible: ndarray | None) -> ndarray:
    """
    Keys or values [B M F] with zeros for what no query of any head sees; `visible` broadcasts to
    [B H N M].

    A hidden key is absent before the projection already: behind it, NaN would be an unbounded error
    of every key that is left.
    """
    if visible is None:
        return x
    seen: ndarray = np.any(visible[(None,) * (4 - visible.ndim)], axis=(1, 2))
    return np.where(seen[..., None], x, 0.0)


def self_attention(
    x: ndarray,
    parameters: Parameters,
    mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> ndarray:
    """Three projections kept in `stage`, then the attention with their errors."""
    weights = [parameters[f"w_{name}"] for name in ("query", "key", "value")]
    q, k, v = (affine(x, w, None) for w in weights)
    at = products(q, k)

    def error(P: Precision) -> ndarray:
        Eq, Ek, Ev = (linear_error((x, None), w, None, P, P.stage) for w in weights)
        chain, Es = masked_products(at, mask, Eq, Ek.swapaxes(-1, -2))
        return weighted_mean_error(weighted_mean(chain, v, keep, p), Es(P), Ev, P, P.storage)

    return total(error, precision)


MULTI_HEAD = ("q_proj", "k_proj", "v_proj", "out_proj")
LABML = ("query.linear", "key.linear", "value.linear", "output")
"""The names of projections, the output's last."""
TABLES = ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")


@dataclass(frozen=True)
class ProjectedHeads:
    """
    Inputs by the names of their projections, hidden keys and values zero; weight and bias of each
    projection and of the output's; queries, keys and values in heads, in float64.
    """

    inputs: dict[str, ndarray]
    net: dict[str, tuple[ndarray, ndarray | None]]
    output: str
    heads: int
    q: ndarray
    k: ndarray
    v: ndarray
    present: tuple[ndarray, ndarray, ndarray]
    """Which queries see a key, and which keys and values are seen, in some head."""


def projected_heads(
    inputs: Mapping[str, ndarray],
    parameters: Mapping[str, ndarray],
    names: Sequence[str],
    heads: int,
    mask: ndarray | None,
) -> ProjectedHeads:
    """Project query, key and value; `names` are those of the projections, the output's last."""
    visible = mask if mask is None or mask.dtype == bool else mask > -np.inf
    (query, key, value), (*_, output) = inputs.values(), names
    found = dict(
        zip(inputs, (query, *(zero_unseen_keys(x, visible) for x in (key, value))), strict=True)
    )
    net = {name: (parameters[f"{name}.weight"], parameters.get(f"{name}.bias")) for name in names}
    q, k, v = (split(affine(x, *net[name]), heads) for name, x in found.items())
    pairs = np.ones((len(q), 1, q.shape[-2], k.shape[-2]), bool)
    pairs = pairs if visible is None else pairs & visible
    sees, seen = np.asarray(pairs.any((1, 3))), np.asarray(pairs.any((1, 2)))
    return ProjectedHeads(found, net, output, heads, q, k, v, (sees, seen, seen))


def heads_forward(
    layer: ProjectedHeads,
    mix: WeightedMean,
    score_error: Callable[[Precision, ndarray, ndarray], ndarray | None],
    P: Precision,
) -> tuple[list[ndarray], ndarray | None, tuple[ndarray, ndarray]]:
    """
    Compute the errors of the projections, which are kept in `stage`, and of the scores, from those
    of queries and transposed keys; and what the heads give, kept in `stage` too, with its error.
    """
    Eq, Ek, Ev = errors = [
        split(linear_error((x, None), *layer.net[name], P, P.stage), layer.heads)
        for name, x in layer.inputs.items()
    ]
    Es = score_error(P, Eq, Ek.swapaxes(-1, -2))
    E_heard = merge(weighted_mean_error(mix, Es, Ev, P, P.stage))
    return errors, Es, (merge(mix.o), E_heard)


def output_error(
    layer: ProjectedHeads,
    mix: WeightedMean,
    score_error: Callable[[Precision, ndarray, ndarray], ndarray | None],
    P: Precision,
) -> ndarray:
    """Bound the error of what the output projection makes of the heads, in storage."""
    heard = heads_forward(layer, mix, score_error, P)[2]
    return linear_error(heard, *layer.net[layer.output], P, P.storage)


def merged_masks(
    attn_mask: ndarray | None, key_padding_mask: ndarray | None, num_heads: int
) -> ndarray | None:
    """Compute what merge_masks adds: 0, -inf, or the float mask's own numbers."""
    mask = None
    if attn_mask is not None:
        mask = np.where(attn_mask, -np.inf, 0.0) if attn_mask.dtype == bool else attn_mask
        mask = mask.reshape(-1, num_heads if mask.ndim == 3 else 1, *mask.shape[-2:])
    if key_padding_mask is not None:
        padding = np.where(key_padding_mask, -np.inf, 0.0)[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask


def multi_head_attention(
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
) -> tuple[ndarray, ndarray]:
    """
    Projections in `stage`, attention, output projection in storage; the weights with the scores'
    errors, behind the dropout, in storage.
    """
    mask = merged_masks(attn_mask, key_padding_mask, num_heads)
    inputs = dict(zip(MULTI_HEAD, (query, key, value), strict=False))
    layer = projected_heads(inputs, parameters, MULTI_HEAD, num_heads, mask)
    at = products(layer.q, layer.k)
    mix = weighted_mean(masked_products(at, mask)[0], layer.v, keep, p)

    score_error = lambda P, Eq, Ek: masked_products(at, mask, Eq, Ek)[1](P)

    def error(P: Precision) -> tuple[ndarray, ndarray]:
        _, Es, heard = heads_forward(layer, mix, score_error, P)
        E = linear_error(heard, *layer.net[layer.output], P, P.storage)
        return E, dropped_weights_error(mix, Es, P)

    return total(error, precision)


def multi_head_self_attention(
    x: ndarray,
    parameters: Parameters,
    num_heads: int,
    attn_mask: ndarray | None = None,
    key_padding_mask: ndarray | None = None,
    keep: ndarray | None = None,
    p: float = 0.0,
    *,
    precision: Precisions,
) -> tuple[ndarray, ndarray]:
    """Bound `multi_head_attention` of x with itself."""
    return multi_head_attention(
        x, x, x, parameters, num_heads, attn_mask, key_padding_mask, keep, p, precision=precision
    )


def relative_multi_head_attention(
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
) -> ndarray:
    """Projections in `stage`, learned relative attention, output projection in storage."""
    inputs = dict(zip(LABML, (query, key, value), strict=False))
    layer = projected_heads(inputs, parameters, LABML, num_heads, visible)
    embeddings, bias, query_bias = (parameters[name] for name in TABLES)
    at = learned_relative_terms(layer.q, layer.k, embeddings, bias, query_bias, align)
    mix = weighted_mean(rows(at.s, visible, at.lost), layer.v, keep, p)
    scores = partial(learned_error, at)
    return total(lambda P: output_error(layer, mix, scores, P), precision)


def alibi_multi_head_attention(
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
) -> ndarray:
    """
    Projections in `stage`, attention with slope times the count of visible keys, output projection
    in storage.
    """
    inputs = dict(zip(LABML, (query, key, value), strict=False))
    layer = projected_heads(inputs, parameters, LABML, num_heads, visible)
    chain, score_error = counted_scores(layer.q, layer.k, num_heads, visible)
    mix = weighted_mean(chain, layer.v, keep, p)
    return total(lambda P: output_error(layer, mix, score_error, P), precision)


def counted_scores(
    q: ndarray, k: ndarray, heads: int, visible: ndarray
) -> tuple[Rows, Callable[[Precision, ndarray, ndarray], ndarray]]:
    """
    Compute the rows of q.k / sqrt(D) + slope times the count of visible keys, and their error.
    """
    at, m, count = products(q, k), slopes(heads), np.cumsum(visible, -1)
    s = at.raw * at.scale + m[:, None, None] * count
    return rows(s, visible, at.lost), partial(alibi_error, at, m, count)
