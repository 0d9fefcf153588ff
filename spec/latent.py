"""Attention whose keys and values are one latent array that all heads share."""

from typing import Annotated, Any, Unpack

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attnverify.contract.attention import D_WITH_LSE, check_latent
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .domains import Choices, Refused
from .grouped import Sink, SoftCap, attended, grouped_attention_grad, visible_pairs
from .masks import Visibility

__all__ = ["latent_attention", "latent_attention_grad"]

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
    q, k, v = absorbed(query, query_rope, latent, key_rope)
    seen = visible_pairs(q, k, None, **options)
    return attended(q, k, v, None, sink, seen, soft_cap, scale, None, 0.0)


def absorbed(
    query: ndarray, query_rope: ndarray, latent: ndarray, key_rope: ndarray
) -> tuple[ndarray, ndarray, ndarray]:
    """Queries [q, q^r] and one head of keys [c, k^r] and values c, as grouped heads have them."""
    q, k = np.concatenate([query, query_rope], -1), np.concatenate([latent, key_rope], -1)
    return q, k[:, None], latent[:, None]


def latent_attention_grad(
    d_output: Float[ndarray, "B H N E"],
    d_lse: Float[ndarray, "B H N"],
    query: Float[ndarray, "B H N E"],
    query_rope: Float[ndarray, "B H N D"],
    latent: Float[ndarray, "B M E"],
    key_rope: Float[ndarray, "B M D"],
    scale: GivenScale,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    **options: Unpack[Visibility],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`latent_attention` by both parts of the query, by the latent and by what
    carries the position, and by the sink if there is one, of what arrives at both of its results.

    .. math:: \big( [\bar q, \bar q^r], [\bar c^k, \bar k^r], \bar c^v \big) =
              \text{grouped\_attention\_grad} \big( \bar o, \bar \ell, [q, q^r], [c, k^r], c \big)

    .. math:: \bar c = \bar c^k + \bar c^v

    1. The latent receives twice: as the keys, through the scores, and as the values. Both are
       added.
    2. Latent and ``key_rope`` receive the sum over all heads.
    3. What carries the position receives through the scores alone, by the one scale.
    4. What arrives at ``lse`` reaches the latent as the keys alone. Cap and sink are those of
       :func:`attnverify.spec.grouped.grouped_attention_grad`.
    5. A key that no row sees receives exactly 0, its latent and its position, and so do both parts
       of the query of a row that sees no key, whatever stands there.

    >>> latent, key_rope = np.array([[[1.0], [3.0]]]), np.zeros((1, 2, 1))
    >>> query, query_rope = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    >>> call = {"query": 0 * query, "query_rope": query, "latent": latent, "key_rope": key_rope}
    >>> found = latent_attention_grad(query, query[..., 0], **call, scale=2.0)
    >>> [x.ravel().tolist() for x in found]
    [[6.0], [0.0], [0.5, 0.5], [0.0, 2.0]]
    >>> call |= {"query": query}
    >>> latent_attention_grad(0 * query, query[..., 0], **call, scale=0.0)[2].ravel().tolist()
    [0.0, 0.0]

    Source: the formula, differentiated. Training multiplies the projections out, for which these
    are the gradients by what was absorbed.
    """
    at = check_latent(ARRAYS, query, query_rope, latent, key_rope, scale, soft_cap, sink)
    check(ARRAYS, D_WITH_LSE, d_output, d_lse, **at)
    q, k, v = absorbed(query, query_rope, latent, key_rope)
    numbers: Any = {"soft_cap": soft_cap, "sink": sink, "scale": scale}
    d_q, d_k, d_v, *by_sink = grouped_attention_grad(d_output, d_lse, q, k, v, **numbers, **options)
    E = latent.shape[-1]
    d_latent = d_k[:, 0, :, :E] + d_v[:, 0]
    return d_q[..., :E], d_q[..., E:], d_latent, d_k[:, 0, :, E:], *by_sink
