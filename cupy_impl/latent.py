"""Attention to a latent, as whole arrays."""

from typing import Any

import cupy
from jaxtyping import Float

from attnverify.contract.attention import D_WITH_LSE, check_latent
from attnverify.contract.shapes import check

from .arrays import ARRAYS, Array, ieee, narrow, wide
from .grouped import attended, gradients, shown

__all__ = ["latent_attention", "latent_attention_grad"]


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
    rows, keys, values = of_both_parts(query, query_rope, latent, key_rope)
    pairs = shown(rows, keys, options)
    return attended(rows, keys, values, None, pairs, soft_cap, sink, scale)


@ieee
def latent_attention_grad(
    d_output: Float[Array, "B H N E"],
    d_lse: Float[Array, "B H N"],
    query: Float[Array, "B H N E"],
    query_rope: Float[Array, "B H N D"],
    latent: Float[Array, "B M E"],
    key_rope: Float[Array, "B M D"],
    scale: float,
    soft_cap: float | None = None,
    sink: Float[Array, "H"] | None = None,
    **options: Any,
) -> tuple[Array, ...]:
    """
    See :func:`spec.latent.latent_attention_grad`.

    In wide numbers, so that what the latent receives twice is added before it is rounded.
    """
    size = check_latent(ARRAYS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **size)
    rows, keys, values = of_both_parts(*wide(query, query_rope, latent, key_rope))
    pairs, (d_o, d_l, logit) = shown(rows, keys, options), wide(d_output, d_lse, sink)
    d_rows, d_keys, d_values, *by_sink = gradients(
        (d_o, d_l), rows, keys, values, None, pairs, soft_cap, logit, scale
    )
    E = latent.shape[-1]
    by_latent = d_keys[:, 0, :, :E] + d_values[:, 0]
    found = (d_rows[..., :E], d_rows[..., E:], by_latent, d_keys[:, 0, :, E:], *by_sink)
    return tuple(narrow(x, query.dtype) for x in found)


def of_both_parts(
    query: Array, query_rope: Array, latent: Array, key_rope: Array
) -> tuple[Array, Array, Array]:
    """Rows, and the keys and values of their one group."""
    xp = cupy.get_array_module(query)
    keys = xp.concatenate([latent, key_rope], axis=-1)[:, None]
    return xp.concatenate([query, query_rope], axis=-1), keys, latent[:, None]
