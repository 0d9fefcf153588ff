"""Attention to a latent, as whole arrays."""

from typing import Any

import cupy
from jaxtyping import Float

from attnverify.contract.attention import check_latent

from .arrays import ARRAYS, Array, ieee
from .grouped import attended, shown

__all__ = ["latent_attention"]


@ieee
def latent_attention(
    query: Float[Array, "B H N E"],
    query_rope: Float[Array, "B H N D"],
    latent: Float[Array, "B M E"],
    key_rope: Float[Array, "B M D"],
    scale: float,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    **options: Any,
) -> tuple[Float[Array, "B H N E"], Float[Array, "B H N"]]:
    """
    See :func:`spec.latent.latent_attention`.

    A row of both parts stands for each query and key; the heads of all rows share one array.
    """
    check_latent(ARRAYS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    xp = cupy.get_array_module(query)
    rows = xp.concatenate([query, query_rope], axis=-1)
    keys = xp.concatenate([latent, key_rope], axis=-1)[:, None]
    pairs = shown(rows, keys, options)
    return attended(rows, keys, latent[:, None], None, pairs, soft_cap, sink, scale)
