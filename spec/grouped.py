"""
Attention as it is written today: the log-sum-exp of a row is an output too, and parts that were
attended to apart are merged by it.
"""

from typing import Annotated, Any, Unpack

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from attnverify.contract.attention import D_WITH_LSE, check_grouped, check_parts
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .attention import Keep, Mask, dropout, mask_grad
from .domains import GIVEN, Choices, Refused
from .masks import Visibility, visible_keys

__all__ = [
    "grouped_attention",
    "grouped_attention_grad",
    "merge_attention",
    "merge_attention_grad",
]

SoftCap = Annotated[float | None, Choices(None, 1.5, 30.0), Refused(0.0, -2.0, "off")]
Sink = Annotated[Float[ndarray, "H"] | None, Choices(None, GIVEN)]
Scale = Annotated[float | None, Choices(None, 0.75), Refused("1/8")]


def grouped_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    mask: Mask = None,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Unpack[Visibility],
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    r"""
    Attention in which several query heads share one head of keys and values, with what is asked of
    it today: a soft cap, a sink, windows and whatever else
    :func:`attnverify.spec.masks.visible_keys` takes. The output, and the logarithm of each row's
    normaliser.

    .. math:: t_{hij} = c \tanh\!\big(\text{scale}\; q_{hi} \cdot k_{gj} / c\big) +
              \text{mask}_{hij}, \qquad g = \lfloor h\, G / H \rfloor

    .. math:: \ell_{hi} = \log \Big( e^{\text{sink}_h} + \sum_{j \text{ visible}} e^{t_{hij}}
              \Big), \qquad w_{hij} = e^{t_{hij} - \ell_{hi}}

    .. math:: o_{hie} = \sum_{j \text{ visible}} \text{dropout}(w)_{hij}\, v_{gje}

    1. Query head h reads head h // (H / G) of keys and values: neighbours share. H is a multiple
       of G.
    2. The scale is 1 / sqrt(D), or whatever number is given.
    3. The soft cap bends the scaled score, *before* a mask is added and before a key is hidden: a
       mask is not capped, and minus infinity hides. It is positive, or None.
    4. A key is visible where :func:`attnverify.spec.masks.visible_keys`, with the options that it
       takes, and the mask both say so. A hidden key is absent, its value too.
    5. The sink is one more logit of each head, without a value: neither scaled, capped, masked nor
       dropped. It counts once, and minus infinity is none.
    6. ``lse`` is the natural logarithm of the denominator, the sink in it, the dropout not.
    7. A row that sees no key gives 0. Its ``lse`` is the sink, or minus infinity without one: an
       absent part of :func:`merge_attention`.
    8. Narrow formats keep the output; an lse, and its gradient, has at least float32.
    9. A logit t of minus infinity hides its key, whether a mask or an infinite query or key made it
       so: its value is absent, and a row that has no other logit sees no key. Minus infinity under
       a cap is the number -c, and hides nothing.

    >>> query, key = np.zeros((1, 2, 1, 1)), np.zeros((1, 1, 3, 1))
    >>> value = np.array([3.0, 6.0, np.nan]).reshape(1, 1, 3, 1)
    >>> two = {"lengths": np.array([2]), "sink": np.array([-np.inf, np.log(2.0)])}
    >>> output, lse = grouped_attention(query, key, value, **two)
    >>> output.ravel().round(9).tolist(), np.exp(lse).ravel().round(9).tolist()
    ([4.5, 2.25], [2.0, 4.0])
    >>> grouped_attention(query, key, value, lengths=np.array([0]))[1].ravel().tolist()
    [-inf, -inf]
    >>> query, key = np.array([[[[100.0]]]]), np.array([[[[1.0], [-1.0]]]])
    >>> hidden = np.array([[-np.inf, 0.0]])
    >>> grouped_attention(query, key, value[:, :, :2], mask=hidden, soft_cap=1.0)[0].item()
    6.0
    >>> [x.item() for x in grouped_attention(query, -np.inf * key[:, :, :1], value[:, :, 2:])]
    [0.0, -inf]

    Source: Ainslie et al., GQA, 2023; Gemma 2 (soft cap), 2024; gpt-oss (sinks), 2025;
    FlashAttention 2 to 4. Where they differ, this project's choices.

    Errata: FlashMLA leaves the sink out of its lse. FlashAttention 2 gives plus infinity for the
    lse of a row without keys, JAX the mean of the values for its output. FlashInfer's ALiBi stands
    within the cap, ONNX's reference capped behind the mask until 2026. A cap of 0 means none in
    FlashAttention and ONNX, and zero for all scores in Megatron.
    """
    check_grouped(ARRAYS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    seen = visible_pairs(query, key, mask, **options)
    return attended(query, key, value, to_add(mask), sink, seen, soft_cap, scale, keep, p)


def attended(
    query: ndarray,
    key: ndarray,
    value: ndarray,
    mask: ndarray | None,
    sink: ndarray | None,
    seen: Bool[ndarray, "B H N M"],
    soft_cap: float | None,
    scale: float | None,
    keep: ndarray | None,
    p: float,
) -> tuple[ndarray, ndarray]:
    """
    The formula of :func:`grouped_attention`, once it is known which pairs see each other. (The
    judge's bound is derived from these lines.)
    """
    score = grouped_score(query, key, mask, seen, soft_cap, scale)
    seen = seen & (score != -np.inf)
    rest = no_sink(query) if sink is None else sink[:, None, None]
    there = seen.any(-1, keepdims=True) | np.isfinite(rest)
    top, other = largest(score, rest, there), largest(score, rest, there)
    e = np.exp(score - top)
    weights = e / np.where(there, e.sum(-1, keepdims=True) + np.exp(rest - top), 1.0)
    total = np.exp(score - other).sum(-1, keepdims=True) + np.exp(rest - other)
    lse = np.where(there, other + np.log(np.where(there, total, 1.0)), -np.inf)
    kept, share = (seen, 1.0) if keep is None else (seen & keep, 1.0 - p)
    dropped = np.where(kept, weights / share, 0.0)
    return sum_of_seen(dropped, each_head(value, query), seen), lse[..., 0]


def grouped_score(
    query: ndarray,
    key: ndarray,
    mask: ndarray | None,
    seen: ndarray,
    soft_cap: float | None,
    scale: float | None,
) -> ndarray:
    """The logits t, minus infinity where a pair does not see each other."""
    factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    score = np.einsum("bhnd,bhmd->bhnm", query, each_head(key, query)) * factor
    if soft_cap is not None:
        score = np.tanh(score / soft_cap) * soft_cap
    if mask is not None:
        score = score + mask
    return np.where(seen, score, -np.inf)


def each_head(x: ndarray, query: ndarray) -> ndarray:
    """Keys or values [B G M .] as [B H M .], one for each query head."""
    return np.repeat(x, query.shape[1] // x.shape[1], axis=1)


def no_sink(query: ndarray) -> ndarray:
    return np.zeros((query.shape[1], 1, 1)) - np.inf


def largest(score: ndarray, sink: ndarray, there: ndarray) -> ndarray:
    """The largest logit of each row that has one; 0 for the others."""
    top = np.maximum(np.max(np.real(score), -1, keepdims=True), np.real(sink))
    return np.where(there, top, 0.0)


def sum_of_seen(weights: ndarray, value: ndarray, seen: ndarray) -> ndarray:
    """The sum of the values under these weights, over the keys that each row sees."""
    if np.isfinite(value).all():
        return np.einsum("bhnm,bhme->bhne", weights, value)
    shown = np.where(seen[..., None], value[..., None, :, :], 0.0)
    return (weights[..., None] * shown).sum(-2)


def grouped_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    mask: Mask = None,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    keep: Keep = None,
    p: float = 0.0,
    **options: Unpack[Visibility],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`grouped_attention` by query, key and value, by the mask if it is float,
    and by the sink if there is one, of what arrives at both of its results.

    .. math:: \bar t_{hij} = w_{hij} \big( \bar w_{hij} - \delta_{hi} + \bar \ell_{hi} \big),
              \qquad \delta_{hi} = \sum_j w_{hij} \bar w_{hij}, \qquad
              \bar w_{hij} = \text{dropout}\big(\bar o_{hi} \cdot v_{gj}\big)

    .. math:: \overline{\text{sink}}_h = \sum_{bi} e^{\text{sink}_h - \ell_{hi}}
              \big( \bar \ell_{hi} - \delta_{hi} \big)

    1. The gradient by a key or a value is summed over the query heads that share it.
    2. Through the cap: times 1 - (t / c)^2, with the capped score t and no mask in it.
    3. What arrives at ``lse`` goes to every visible key by its weight, and to the sink by its own.
       At a row that sees no key it goes to the sink alone, or nowhere.
    4. A key that no row sees, and a row that sees no key, receive exactly 0; so does a sink of
       minus infinity. At a pair that a logit of minus infinity hides, nothing passes.

    >>> query, key = np.zeros((1, 2, 1, 1)), np.array([[[[1.0], [3.0]]]])
    >>> value, sink = np.array([[[[2.0], [4.0]]]]), np.full(2, -np.inf)
    >>> one, none = np.ones((1, 2, 1, 1)), np.zeros((1, 2, 1))
    >>> found = grouped_attention_grad(one, none, query, key, value, sink=sink)
    >>> [x.ravel().tolist() for x in found]
    [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    >>> grouped_attention_grad(0 * one, none + 1, query, key, value)[0].ravel().tolist()
    [2.0, 2.0]

    Source: the formula, differentiated.
    """
    at = check_grouped(ARRAYS, query, key, value, mask, soft_cap, sink, scale, keep, p)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **at)
    seen = visible_pairs(query, key, mask, **options)
    score = grouped_score(query, key, to_add(mask), seen, soft_cap, scale)
    seen = seen & (score != -np.inf)
    factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    slope = cap_slope(query, key, seen, soft_cap, factor)
    _, lse = attended(query, key, value, to_add(mask), sink, seen, soft_cap, scale, None, 0.0)
    d_score = np.zeros(score.shape)
    d_query, d_key, d_value = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    d_sink = None if sink is None else np.zeros(sink.shape)
    kept = dropout(np.ones(score.shape), keep, p)
    for b, h, i in np.ndindex(lse.shape):
        row, j, head = (b, h, i), seen[b, h, i], (b, h * key.shape[1] // query.shape[1])
        if lse[row] == -np.inf:
            continue
        w = np.exp(score[row][j] - lse[row])
        d_weight = kept[row][j] * (value[head][j] @ d_output[row])
        delta = w @ d_weight
        d_value[head][j] += np.outer(kept[row][j] * w, d_output[row])
        d_score[row][j] = w * (d_weight - delta + d_lse[row])
        d_product = d_score[row][j] * slope[row][j] * factor
        d_query[row] = d_product @ key[head][j]
        d_key[head][j] += np.outer(d_product, query[row])
        if sink is not None and d_sink is not None:
            d_sink[h] += np.exp(sink[h] - lse[row]) * (d_lse[row] - delta)
    by_sink = () if d_sink is None else (d_sink,)
    return d_query, d_key, d_value, *mask_grad(d_score, mask), *by_sink


def cap_slope(
    query: ndarray, key: ndarray, seen: ndarray, soft_cap: float | None, factor: float
) -> ndarray:
    """The derivative of the capped by the scaled score of each pair that sees each other."""
    if soft_cap is None:
        return np.ones(seen.shape)
    capped = grouped_score(query, key, None, seen, soft_cap, factor)
    return 1 - (np.where(seen, capped, 0.0) / soft_cap) ** 2


def to_add(mask: Any) -> Any:
    """A float mask; None for a boolean one, which is no number to add."""
    return None if mask is None or mask.dtype == bool else mask


def visible_pairs(
    query: ndarray, key: ndarray, mask: Mask, **options: Unpack[Visibility]
) -> Bool[ndarray, "B H N M"]:
    """Which pairs see each other (:func:`grouped_attention`, clause 4)."""
    B, H, N, M = (*query.shape[:3], key.shape[2])
    seen = visible_keys(B, N, M, **options)[:, None] & np.ones((B, H, N, M), bool)
    if mask is None:
        return seen
    return seen & (mask if mask.dtype == bool else mask.real > -np.inf)


def merge_attention(
    outputs: Float[ndarray, "C B H N E"], lses: Float[ndarray, "C B H N"]
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    r"""
    One attention from its C parts, which saw disjoint sets of keys: the output, and the logarithm
    of the sum of the exponentials of all scores.

    .. math:: \ell = \log \sum_c e^{\ell_c}, \qquad o = \sum_c e^{\ell_c - \ell}\, o_c

    1. A part whose lse is minus infinity is absent: its output is not looked at, NaN included.
    2. Where every part is absent the output is 0 and the lse minus infinity, which makes it an
       absent part of the next merge.
    3. The order of the parts does not matter, and merging what was merged is merging all at once.
       One part alone is itself.
    4. lse is the natural logarithm. A constant added to all of a row's is added to the merged one
       and leaves the output as it is, however far below 0 they lie.
    5. Plus infinity and NaN are no lse: ValueError.
    6. Narrow formats keep the outputs alone: an lse, its gradient too, has at least float32.

    >>> outputs = np.array([2.0, 5.0, np.nan]).reshape(3, 1, 1, 1, 1)
    >>> lses = np.array([0.0, np.log(2.0), -np.inf]).reshape(3, 1, 1, 1)
    >>> output, lse = merge_attention(outputs, lses)
    >>> output.item(), np.exp(lse).round(9).item()
    (4.0, 3.0)
    >>> [x.item() for x in merge_attention(outputs[2:], lses[2:])]
    [0.0, -inf]

    Source: Dao, Haziza, Massa and Sizov, Flash-Decoding, 2023; ``flash_attn_combine``. An empty
    row's minus infinity is this project's choice.

    Errata: FlashInfer's lse is a logarithm to base 2. FlashAttention 2 writes plus infinity for a
    row without keys, FlashMLA too. FlashInfer's ``merge_states`` begins with a part of lse -5e4
    whose output is 0, and two absent parts give NaN in ``merge_state`` and in attention-gym.
    """
    check_parts(ARRAYS, outputs, lses)
    both = np.result_type(outputs, lses)
    output, lse = np.zeros(outputs.shape[1:], both), np.zeros(lses.shape[1:], both) - np.inf
    for row in np.ndindex(lse.shape):
        there = [c for c in range(len(lses)) if lses[c][row].real > -np.inf]
        if there:
            top = max(lses[c][row].real for c in there)
            e = [np.exp(lses[c][row] - top) for c in there]
            lse[row] = top + np.log(sum(e))
            output[row] = sum(x * outputs[c][row] for x, c in zip(e, there, strict=True)) / sum(e)
    return output, lse


def merge_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    outputs: Float[ndarray, "C B H N E"],
    lses: Float[ndarray, "C B H N"],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`merge_attention` by the outputs and by the lses of its parts, of what
    arrives at both of its results.

    .. math:: \bar o_c = e^{\ell_c - \ell}\, \bar o

    .. math:: \bar \ell_c = e^{\ell_c - \ell} \big( \bar\ell + \bar o \cdot (o_c - o) \big)

    1. What arrives at the lse goes to the lses alone, to each by its weight.
    2. An absent part receives exactly 0, whatever stands in it and whatever arrives; so do all
       parts of a row in which all are absent, though the merged lse is that of the part.

    >>> outputs, lses = np.array([2.0, 4.0]).reshape(2, 1, 1, 1, 1), np.zeros((2, 1, 1, 1))
    >>> one, none = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1))
    >>> d_outputs, d_lses = merge_attention_grad(one, none, outputs, lses)
    >>> d_outputs.ravel().tolist(), d_lses.ravel().tolist()
    ([0.5, 0.5], [-0.5, 0.5])

    Source: the formula, differentiated.
    """
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **check_parts(ARRAYS, outputs, lses))
    output, lse = merge_attention(outputs, lses)
    d_outputs, d_lses = np.zeros_like(outputs), np.zeros_like(lses)
    for c, *row in np.ndindex(lses.shape):
        i = tuple(row)
        if lses[c][i].real > -np.inf:
            w = np.exp(lses[c][i] - lse[i])
            d_outputs[c][i] = w * d_output[i]
            d_lses[c][i] = w * (d_lse[i] + (d_output[i] * (outputs[c][i] - output[i])).sum())
    return d_outputs, d_lses
