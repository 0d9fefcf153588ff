"""
Attention to a latent that all heads share: the specification is :mod:`spec.latent`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnverify.contract.attention import check_latent

from .arrays import TENSORS
from .grouped import bias_and_pairs, spelled_out
from .scores import wide
from .transforms.autocast import lowered

__all__ = ["latent_attention"]


@lowered
def latent_attention(
    query: Float[Tensor, "B H N E"],
    query_rope: Float[Tensor, "B H N D"],
    latent: Float[Tensor, "B M E"],
    key_rope: Float[Tensor, "B M D"],
    scale: float,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "B H N E"], Float[Tensor, "B H N"]]:
    """
    As :func:`spec.latent.latent_attention`, spelled out: a grouped attention of queries and keys
    with both parts. Half types are computed in float32 and rounded once; so is the gradient by the
    latent, which it receives as keys and as values.
    """
    check_latent(TENSORS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    q, q_rope, c, k_rope = wide(query, query_rope, latent, key_rope)
    q, k = torch.cat([q, q_rope], -1), torch.cat([c, k_rope], -1)[:, None]
    _, visible = bias_and_pairs(q, k, None, options)
    output, lse = spelled_out(q, k, c[:, None], None, visible, soft_cap, sink, scale, None, 0.0)
    return output.to(query.dtype), lse
