"""Attention over the blocks of keys that each row has chosen."""

from typing import Annotated, Any, Unpack

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from attnverify.contract.attention import check_once, check_selected

from .arrays import ARRAYS
from .domains import Choices, Integers, Refused
from .grouped import Scale, Sink, SoftCap, grouped_attention, grouped_attention_grad
from .masks import Visibility

__all__ = ["selected_attention", "selected_attention_grad"]

Selection = Annotated[Int[ndarray, "B G N J"], Integers(-1, "M", ("below", "above"))]
Block = Annotated[int, Choices(2, 1, 3, 16), Refused(0, -1, 1.5, None)]


def selected_attention(
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    selection: Selection,
    block: Block,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    **options: Unpack[Visibility],
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    r"""
    Attention in which each row has chosen up to J blocks of ``block`` keys, the same for all heads
    of queries that share a head of keys, and sees no other key. The output, and the log-sum-exp of
    each row.

    .. math:: (o, \ell) = \text{grouped\_attention} \big( q, k, v, \text{chosen} \big)

    .. math:: \text{chosen}_{hij} = \big[\, \lfloor j / \text{block} \rfloor \in
              \text{selection}_{gi} \,\big], \qquad g = \lfloor h\, G / H \rfloor

    1. Row i of the query heads that read head g of the keys sees key j where j // block stands in
       ``selection[b, g, i]``, and where :func:`attnverify.spec.masks.visible_keys`, with the
       options that it takes, says so too.
    2. The order of the choices means nothing, and -1, wherever it stands, chooses nothing.
    3. A choice is -1 or a block, from 0 to ceil(M / block) - 1. Any other number is a ValueError,
       and so is a block that a row names twice.
    4. Blocks are counted from key 0, and the last one has the keys that are left.
    5. Positions are those of all keys: causality, windows and lengths hold within a block too.
    6. A key that no row has chosen is absent, NaN included, and so is its value.
    7. Scale, cap, sink, and rows that see no key, as one that chooses nothing, are those of
       :func:`attnverify.spec.grouped.grouped_attention`, and so is the width of the lse.

    >>> query, key = np.zeros((1, 2, 2, 1)), np.zeros((1, 1, 5, 1))
    >>> value = np.array([1.0, 3.0, np.nan, np.nan, 7.0]).reshape(1, 1, 5, 1)
    >>> selection = np.array([[[[2, -1], [2, 0]]]])
    >>> output, lse = selected_attention(query, key, value, selection, block=2)
    >>> output[0, 0].ravel().round(9).tolist(), np.exp(lse[0, 0]).round(9).tolist()
    ([7.0, 3.666666667], [1.0, 3.0])
    >>> output, lse = selected_attention(query, key, value, 0 * selection[..., :1] - 1, block=1)
    >>> output[0, 0].ravel().tolist(), lse[0, 0].tolist()
    ([0.0, 0.0], [-inf, -inf])

    Source: Yuan et al., Native Sparse Attention, 2025, section 3.3.2; DeepSeek-V3.2, 2025, with
    blocks of one key; Lu et al., MoBA, 2025. Where they differ, this project's choices.

    Errata: kernels that gather what is chosen count a key once for each time it is named, as
    FlashMLA and flash-linear-attention do; those that write a mask count it once. FlashMLA takes
    every number below 0 or from M on for none.
    """
    check_selected(ARRAYS, query, key, value, selection, block, soft_cap, sink, scale)
    mask = chosen_pairs(query, key, selection, block)
    numbers: Any = {"soft_cap": soft_cap, "sink": sink, "scale": scale}
    return grouped_attention(query, key, value, mask, **numbers, **options)


def chosen_pairs(
    query: ndarray, key: ndarray, selection: ndarray, block: int
) -> Bool[ndarray, "B H N M"]:
    """Which rows have chosen the block of which key; ValueError for one that is named twice."""
    (B, H, N, _), (_, G, M, _) = query.shape, key.shape
    times, seen = np.zeros((B, G, N, -(-M // block)), int), np.zeros((B, H, N, M), bool)
    for b, g, i in np.ndindex(B, G, N):
        heads = slice(g * (H // G), (g + 1) * (H // G))
        for chosen in selection[b, g, i].tolist():
            if chosen >= 0:
                times[b, g, i, chosen] += 1
                seen[b, heads, i, chosen * block : (chosen + 1) * block] = True
    check_once(times)
    return seen


def selected_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    query: Float[ndarray, "B H N D"],
    key: Float[ndarray, "B G M D"],
    value: Float[ndarray, "B G M E"],
    selection: Selection,
    block: Block,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    **options: Unpack[Visibility],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`selected_attention` by query, key and value, and by the sink if there is
    one, of what arrives at both of its results.

    .. math:: \big( \bar q, \bar k, \bar v \big) = \text{grouped\_attention\_grad}
              \big( \bar o, \bar \ell, q, k, v, \text{chosen} \big)

    1. A key and its value receive from the rows that have chosen its block, and from no other; what
       the heads of these rows send is summed.
    2. The weights are those among the chosen keys, in the backward pass too. The choice itself
       receives nothing.
    3. A key that no row has chosen receives exactly 0, and so does a row that chooses nothing,
       whatever stands there. What arrives at such a row's lse goes to its sink alone, or nowhere.
    4. Cap, sink, scale and lse are those of
       :func:`attnverify.spec.grouped.grouped_attention_grad`.

    >>> query, key = np.zeros((1, 1, 1, 1)), np.array([[[[1.0], [9.0], [3.0]]]])
    >>> value, selection = np.array([[[[2.0], [9.0], [4.0]]]]), np.array([[[[2, 0]]]])
    >>> one, none = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1))
    >>> found = selected_attention_grad(one, none, query, key, value, selection, block=1)
    >>> [x.ravel().tolist() for x in found]
    [[1.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.5]]

    Source: the formula, differentiated; Yuan et al., Native Sparse Attention, 2025, section 3.4.
    """
    check_selected(ARRAYS, query, key, value, selection, block, soft_cap, sink, scale)
    mask = chosen_pairs(query, key, selection, block)
    numbers: Any = {"soft_cap": soft_cap, "sink": sink, "scale": scale}
    return grouped_attention_grad(d_output, d_lse, query, key, value, mask, **numbers, **options)
