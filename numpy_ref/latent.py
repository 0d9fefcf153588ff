"""Attention to a latent, as one of grouped heads whose queries and keys have both parts."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import check_latent

from .arrays import ARRAYS
from .grouped import attended, seen_pairs
from .rounding import keeps_wide

__all__ = ["latent_attention"]


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
    q = np.concatenate([query, query_rope], axis=-1)
    k = np.concatenate([latent, key_rope], axis=-1)[:, None]
    seen = seen_pairs(q, k, None, options)
    return attended(q, k, latent[:, None], None, sink, seen, soft_cap, scale)
