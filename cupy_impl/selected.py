"""Attention over the blocks of keys that each row has chosen, as whole arrays."""

from typing import Any

import cupy
from jaxtyping import Bool, Float, Int

from attnverify.contract.attention import D_WITH_LSE, check_once, check_selected
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee
from .grouped import attended, gradients, shown

__all__ = ["selected_attention", "selected_attention_grad"]


@ieee
def selected_attention(
    query: Float[Array, "B H N D"],
    key: Float[Array, "B G M D"],
    value: Float[Array, "B G M E"],
    selection: Int[Array, "B G N J"],
    block: int,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[Array, "B H N E"], Float[Array, "B H N"]]:
    """
    See :func:`spec.selected.selected_attention`.

    Every choice is compared with every block, and what is chosen is a mask.
    """
    check_selected(ARRAYS, query, key, value, selection, block, soft_cap, sink, scale)
    pairs = shown(query, key, options) & chosen(query, key, selection, block)
    return attended(query, key, value, None, pairs, soft_cap, sink, scale)


@ieee
def selected_attention_grad(
    d_output: Float[Array, "B H N E"],
    d_lse: Float[Array, "B H N"],
    query: Float[Array, "B H N D"],
    key: Float[Array, "B G M D"],
    value: Float[Array, "B G M E"],
    selection: Int[Array, "B G N J"],
    block: int,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Array, ...]:
    """See :func:`spec.selected.selected_attention_grad`."""
    size = check_selected(ARRAYS, query, key, value, selection, block, soft_cap, sink, scale)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **size)
    arriving = (d_output, d_lse)
    pairs = shown(query, key, options) & chosen(query, key, selection, block)
    return gradients(arriving, query, key, value, None, pairs, soft_cap, sink, scale)


def chosen(query: Array, key: Array, selection: Array, block: int) -> Bool[Array, "B H N M"]:
    xp = cupy.get_array_module(query)
    (H, M), G = (query.shape[1], key.shape[2]), key.shape[1]
    blocks = xp.arange(-(-M // block))
    times = (xp.asarray(selection)[..., None, :] == blocks[:, None]).sum(axis=-1)
    check_once(times)
    return xp.repeat(xp.repeat(times > 0, H // G, axis=1), min(block, M), axis=-1)[..., :M]
