"""
Bounds for whole layers: the errors of projection, attention and normalisation handed on from stage
to stage.
"""

from collections.abc import Mapping

import numpy as np
from numpy import ndarray

from attnverify.bounds.alibi import alibi_error, slopes
from attnverify.bounds.attention import dropped_weights_error, masked_products
from attnverify.bounds.error_rules import dot_error, operand_error, rounding_error, start_error
from attnverify.bounds.relative import learned_error, learned_relative_terms
from attnverify.bounds.scores import products
from attnverify.bounds.softmax_rows import Precisions, rows, total
from attnverify.bounds.weighted_mean import weighted_mean, weighted_mean_error
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
        E = E + start_error(np.abs(residual[0]) + _or_zero(residual[1]), n, P)
    E = rounding_error(y, E, fmt)
    E = E if bias is None else rounding_error(y + bias, E, fmt)
    return E if np.isfinite(y.sum()) else np.where(np.isfinite(y), E, 0.0)


def _or_zero(E: ndarray | None) -> ndarray | float:
    return 0.0 if E is None else E


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
    visible = None if mask is None else mask > -np.inf
    inputs = {
        "q_proj": query,
        "k_proj": zero_unseen_keys(key, visible),
        "v_proj": zero_unseen_keys(value, visible),
    }
    net = {
        name: (parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        for name in (*inputs, "out_proj")
    }
    q, k, v = (split(affine(x, *net[name]), num_heads) for name, x in inputs.items())
    at = products(q, k)

    def error(P: Precision) -> tuple[ndarray, ndarray]:
        Eq, Ek, Ev = (
            split(linear_error((x, None), *net[name], P, P.stage), num_heads)
            for name, x in inputs.items()
        )
        chain, Es = masked_products(at, mask, Eq, Ek.swapaxes(-1, -2))
        mix, Es_P = weighted_mean(chain, v, keep, p), Es(P)
        Eo = weighted_mean_error(mix, Es_P, Ev, P, P.stage)
        return linear_error(
            (merge(mix.o), merge(Eo)), *net["out_proj"], P, P.storage
        ), dropped_weights_error(mix, Es_P, P)

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


def _find_projection(parameters: Parameters, name: str) -> tuple[ndarray, ndarray | None]:
    stem = name if name == "output" else f"{name}.linear"
    return parameters[f"{stem}.weight"], parameters.get(f"{stem}.bias")


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
    inputs = {
        "query": query,
        "key": zero_unseen_keys(key, visible),
        "value": zero_unseen_keys(value, visible),
    }
    net = {name: _find_projection(parameters, name) for name in (*inputs, "output")}
    q, k, v = (split(affine(x, *net[name]), num_heads) for name, x in inputs.items())
    embeddings, key_bias, query_bias = (
        parameters[name] for name in ("key_pos_embeddings", "key_pos_bias", "query_pos_bias")
    )
    at = learned_relative_terms(q, k, embeddings, key_bias, query_bias, align)
    mix = weighted_mean(rows(at.s, visible, at.lost), v, keep, p)

    def error(P: Precision) -> ndarray:
        Eq, Ek, Ev = (
            split(linear_error((x, None), *net[name], P, P.stage), num_heads)
            for name, x in inputs.items()
        )
        Eo = weighted_mean_error(mix, learned_error(at, P, Eq, Ek.swapaxes(-1, -2)), Ev, P, P.stage)
        return linear_error((merge(mix.o), merge(Eo)), *net["output"], P, P.storage)

    return total(error, precision)


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
    inputs = {
        "query": query,
        "key": zero_unseen_keys(key, visible),
        "value": zero_unseen_keys(value, visible),
    }
    net = {name: _find_projection(parameters, name) for name in (*inputs, "output")}
    q, k, v = (split(affine(x, *net[name]), num_heads) for name, x in inputs.items())
    at, m, count = products(q, k), slopes(num_heads), np.cumsum(visible, -1)
    s = at.raw * at.scale + m[:, None, None] * count
    mix = weighted_mean(rows(s, visible, at.lost), v, keep, p)

    def error(P: Precision) -> ndarray:
        Eq, Ek, Ev = (
            split(linear_error((x, None), *net[name], P, P.stage), num_heads)
            for name, x in inputs.items()
        )
        Es = alibi_error(at, m, count, P, Eq, Ek.swapaxes(-1, -2))
        return linear_error(
            (merge(mix.o), merge(weighted_mean_error(mix, Es, Ev, P, P.stage))),
            *net["output"],
            P,
            P.storage,
        )

    return total(error, precision)
