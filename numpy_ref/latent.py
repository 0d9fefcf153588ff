"""Attention to a latent, as one of grouped heads whose queries and keys have both parts."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import D_WITH_LSE, check_latent
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .grouped import attended, gradients, seen_pairs
from .rounding import keeps_wide

__all__ = ["latent_attention", "latent_attention_grad"]


@keeps_wide(1)
def latent_attention(
    query: Float[ndarray, "B H N E"],
    query_rope: Float[ndarray, "B H N D"],
    latent: Float[ndarray, "B M E"],
    key_rope: Float[ndarray, "B M D"],
    scale: float,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    **options: Any,
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    """
    See :func:`spec.latent.latent_attention`.

    The parts that carry positions stand behind those of the latent; all heads are one group.
    """
    check_latent(ARRAYS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    q, k = behind(query, query_rope), behind(latent, key_rope)[:, None]
    seen = seen_pairs(q, k, None, options)
    return attended(q, k, latent[:, None], None, sink, seen, soft_cap, scale)


@keeps_wide()
def latent_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    query: Float[ndarray, "B H N E"],
    query_rope: Float[ndarray, "B H N D"],
    latent: Float[ndarray, "B M E"],
    key_rope: Float[ndarray, "B M D"],
    scale: float,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    **options: Any,
) -> tuple[ndarray, ...]:
    """
    See :func:`spec.latent.latent_attention_grad`.

    The gradients of one group, cut where its parts meet.
    """
    at = check_latent(ARRAYS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **at)
    q, k = behind(query, query_rope), behind(latent, key_rope)[:, None]
    arriving, seen = (d_output, d_lse), seen_pairs(q, k, None, options)
    d_q, d_k, d_v, *by_sink = gradients(
        arriving, q, k, latent[:, None], None, sink, seen, soft_cap, scale
    )
    (d_query, d_rope), (d_latent, d_position) = (
        np.split(x, [latent.shape[-1]], axis=-1) for x in (d_q, d_k[:, 0])
    )
    return d_query, d_rope, d_latent + d_v[:, 0], d_position, *by_sink


def behind(of_latent: ndarray, position: ndarray) -> ndarray:
    return np.concatenate([of_latent, position], axis=-1)
