"""Attention whose keys and values are one latent array that all heads share."""

from typing import Annotated, Unpack

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import check_latent

from .arrays import ARRAYS
from .domains import Choices, Refused
from .grouped import Sink, SoftCap, attended, visible_pairs
from .masks import Visibility

__all__ = ["latent_attention"]

GivenScale = Annotated[float, Choices(0.125, 0.75, 0.0721687836), Refused("1/8", None)]


def latent_attention(
    query: Float[ndarray, "B H N E"],
    query_rope: Float[ndarray, "B H N D"],
    latent: Float[ndarray, "B M E"],
    key_rope: Float[ndarray, "B M D"],
    scale: GivenScale,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    **options: Unpack[Visibility],
) -> tuple[Float[ndarray, "B H N E"], Float[ndarray, "B H N"]]:
    r"""
    Multi-head latent attention with its projections absorbed: all heads attend to one array of E
    channels, which is their keys and their values. D further channels of each key carry its
    position. The output, and the log-sum-exp of each row.

    .. math:: (o, \ell) = \text{grouped\_attention} \big( [q, q^r], [c, k^r], c \big)

    .. math:: t_{hij} = \text{scale} \; \big( q_{hi} \cdot c_j + q^r_{hi} \cdot k^r_j \big)

    1. Every head reads the same latent, as its keys and as its values, and the same ``key_rope``.
    2. Both products make the score, and the scale multiplies their sum.
    3. The scale has no default: it is that of the heads before absorption, not 1 / sqrt(E) and not
       1 / sqrt(E + D).
    4. The values are the latent alone: what carries the position is not in the output.
    5. With the query of head h projected by W_h, so that q = q' W_h, it is the attention of that
       head over the keys [c W_h^T, k^r], and an output projected by V_h is that over the values
       c V_h.
    6. A key is visible where :func:`attnverify.spec.masks.visible_keys` says so. A hidden key is
       absent, its latent and its position too.
    7. Cap, sink, and rows that see no key are those of
       :func:`attnverify.spec.grouped.grouped_attention`, and so is the width of the lse.

    >>> latent, key_rope = np.array([[[0.0, 2.0], [4.0, 6.0]]]), np.array([[[0.0], [1.0]]])
    >>> query, query_rope = np.zeros((1, 1, 1, 2)), np.array([[[[2.0]]]])
    >>> output, lse = latent_attention(
    ...     query, query_rope, latent, key_rope, scale=np.log(3.0) / 2
    ... )
    >>> output.ravel().round(9).tolist(), np.exp(lse).ravel().round(9).tolist()
    ([3.0, 5.0], [4.0])

    Source: DeepSeek-AI, DeepSeek-V2, 2024, section 2.1 and appendix C; FlashAttention 3, whose
    ``qv`` is the query of the latent; FlashInfer's ``q_nope, q_pe, ckv, kpe``.

    Errata: FlashMLA and vLLM take [q, q^r] and [c, k^r] as one array each, llama.cpp with the
    position in front. FlashAttention 3 takes 1 / sqrt(E + D) where no scale is given; DeepSeek's is
    1 / sqrt(128 + 64), which YaRN multiplies by the square of a number of its own.
    """
    check_latent(ARRAYS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    q, k = np.concatenate([query, query_rope], -1), np.concatenate([latent, key_rope], -1)
    key, value = k[:, None], latent[:, None]
    seen = visible_pairs(q, key, None, **options)
    return attended(q, key, value, None, sink, seen, soft_cap, scale, None, 0.0)
