"""Sequences of different lengths, laid end to end in one array."""

from collections.abc import Iterator
from typing import Annotated, Any, TypedDict, Unpack

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.contract.packed import D_PACKED, check_packed
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .domains import Integers
from .grouped import Scale, Sink, SoftCap, grouped_attention, grouped_attention_grad
from .masks import Causal, Chunk, Pinned, Window

__all__ = ["packed_attention", "packed_attention_grad"]

QueryStarts = Annotated[Int[ndarray, "B+1"], Integers(0, "T", ("below", "above"), rising=True)]
KeyStarts = Annotated[Int[ndarray, "B+1"], Integers(0, "U", ("below", "above"), rising=True)]


class OfSequences(TypedDict, total=False):
    """The options of visibility that have a meaning where sequences differ in size."""

    causal: Causal
    window: Window
    chunk: Chunk
    offset: Annotated[Int[ndarray, "B"] | None, Integers("-T", "U")]
    lengths: Annotated[Int[ndarray, "B"] | None, Integers(0, "U", ("below", "above"))]
    pinned: Pinned


def packed_attention(
    query: Float[ndarray, "T H D"],
    key: Float[ndarray, "U G D"],
    value: Float[ndarray, "U G E"],
    query_starts: QueryStarts,
    key_starts: KeyStarts,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    **options: Unpack[OfSequences],
) -> tuple[Float[ndarray, "T H E"], Float[ndarray, "T H"]]:
    r"""
    Attention within each of B sequences that lie end to end: the T rows of all of them in one
    array, the U keys in another. The output, and the log-sum-exp of each row.

    .. math:: \big(o_t, \ell_t\big)_{x_b \le t < x_{b+1}} = \text{grouped\_attention} \big(
              (q_t)_{x_b \le t < x_{b+1}}, (k_u, v_u)_{y_b \le u < y_{b+1}} \big)

    1. Sequence b has the queries from ``query_starts[b]`` to ``query_starts[b + 1]``, the last
       left out, and the keys likewise. No sequence sees another.
    2. Positions are those within the sequence: causality, windows, chunks and pinned keys count
       from its own first key, and its ends are aligned.
    3. ``lengths`` [B]: of the keys of sequence b the first ``lengths[b]`` are there, and the end of
       these is the one that is aligned. ``offset`` [B] is each sequence's own.
    4. A sequence may have no query, no key, or neither. A row without a key gives 0, and its lse is
       the sink, or minus infinity without one, as
       :func:`attnverify.spec.grouped.grouped_attention` has it.
    5. The starts may begin behind 0 and end before T or U. A row of no sequence is a row without a
       key; what stands in a token of no sequence is not looked at, NaN included.
    6. Starts that fall, or lie beyond the tokens, and a length beyond the sequence's own keys:
       ValueError.
    7. Cap, sink and scale are those of :func:`attnverify.spec.grouped.grouped_attention`, and so is
       the width of the lse.

    >>> query, key = np.zeros((4, 1, 1)), np.zeros((4, 1, 1))
    >>> value = np.array([1.0, 3.0, 5.0, np.nan]).reshape(4, 1, 1)
    >>> starts = np.array([0, 1, 2, 3]), np.array([0, 2, 2, 3])
    >>> output, lse = packed_attention(query, key, value, *starts)
    >>> output.ravel().tolist(), np.exp(lse).ravel().round(9).tolist()
    ([2.0, 0.0, 5.0, 0.0], [2.0, 0.0, 1.0, 0.0])
    >>> output, lse = packed_attention(query, key, value, *starts, sink=np.array([0.0]))
    >>> output.ravel().round(9).tolist(), lse.ravel()[1::2].tolist()
    ([1.333333333, 0.0, 2.5, 0.0], [0.0, 0.0])

    Source: FlashAttention's ``flash_attn_varlen_func``, whose ``cu_seqlens_q``, ``cu_seqlens_k``
    and ``seqused_k`` are the starts and the lengths; FlashInfer's ``qo_indptr`` and ``kv_indptr``.

    Errata: rows of no sequence are left as they were by FlashAttention. xformers'
    ``BlockDiagonalCausalMask`` aligns the starts of each sequence, here offset 0. PyTorch's nested
    tensors with ``is_causal`` do so too.
    """
    check_packed(
        ARRAYS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    numbers: Any = {"soft_cap": soft_cap, "sink": sink, "scale": scale}
    output, lse = rows_without_a_key(query, key, value, sink)
    for b, t, u in sequences(query_starts, key_starts):
        q, k, v = heads_first(query[t], key[u], value[u])
        found = grouped_attention(q, k, v, **numbers, **of_sequence(b, **options))
        output[t], lse[t] = tokens_first(*found)
    return output, lse


def rows_without_a_key(
    query: ndarray, key: ndarray, value: ndarray, sink: ndarray | None
) -> tuple[ndarray, ndarray]:
    """The results of rows that see nothing, all of them."""
    both = np.result_type(query, key, value, *([] if sink is None else [sink]))
    output = np.zeros((*query.shape[:2], value.shape[-1]), both)
    return output, np.zeros(query.shape[:2], both) + (-np.inf if sink is None else sink)


def sequences(query_starts: ndarray, key_starts: ndarray) -> Iterator[tuple[int, slice, slice]]:
    """The number, the queries and the keys of each sequence that has both."""
    for b in range(len(query_starts) - 1):
        t, u = slice(*query_starts[b : b + 2]), slice(*key_starts[b : b + 2])
        if t.start < t.stop and u.start < u.stop:
            yield b, t, u


def of_sequence(b: int, **options: Any) -> Any:
    """The options as one sequence has them."""
    own = {name: options[name][b : b + 1] for name in ("offset", "lengths") if has(options, name)}
    return options | own


def has(options: Any, name: str) -> bool:
    return options.get(name) is not None


def heads_first(*arrays: ndarray) -> list[ndarray]:
    """Tokens [N H ...] as heads of one entry [1 H N ...]."""
    return [x.swapaxes(0, 1)[None] for x in arrays]


def tokens_first(*arrays: ndarray) -> list[ndarray]:
    """And back."""
    return [x[0].swapaxes(0, 1) for x in arrays]


def packed_attention_grad(
    d_output: Float[ndarray, "T H E"],
    d_lse: Float[ndarray, "T H"],
    query: Float[ndarray, "T H D"],
    key: Float[ndarray, "U G D"],
    value: Float[ndarray, "U G E"],
    query_starts: QueryStarts,
    key_starts: KeyStarts,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    **options: Unpack[OfSequences],
) -> tuple[ndarray, ...]:
    r"""
    The gradients of :func:`packed_attention` by query, key and value, and by the sink if there is
    one, of what arrives at both of its results.

    .. math:: \big(\bar q_t, \bar k_u, \bar v_u\big)_b = \text{grouped\_attention\_grad}
              \big( (\bar o_t, \bar \ell_t, q_t, k_u, v_u)_b \big)

    .. math:: \overline{\text{sink}} = \sum_b \overline{\text{sink}}_b + \sum_{t
              \text{ without a key}} \bar \ell_t

    1. A sequence's queries, keys and values receive what arrives at its own rows alone.
    2. A token of no sequence, and a key that no row of its sequence sees, receive exactly 0.
    3. The sink receives the sum over all sequences, and what arrives at the lse of rows without a
       key, those of no sequence too. A sink of minus infinity receives 0.

    >>> one, none = np.ones((3, 1, 1)), np.zeros((3, 1))
    >>> query, key, starts = 0 * one, one, np.array([0, 1, 2])
    >>> value = np.array([2.0, 4.0, np.nan]).reshape(3, 1, 1)
    >>> found = packed_attention_grad(one, none + 1, query, key, value, starts, starts)
    >>> [x.ravel().tolist() for x in found]
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    >>> sink = np.array([0.0])
    >>> packed_attention_grad(one, none + 1, query, key, value, starts, starts, sink=sink)[
    ...     3
    ... ].item()
    0.5

    Source: the formula, differentiated.
    """
    at = check_packed(
        ARRAYS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    check(ARRAYS, D_PACKED, d_output, d_lse, **at)
    numbers: Any = {"soft_cap": soft_cap, "sink": sink, "scale": scale}
    d_query, d_key, d_value = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    d_sink, alone = np.zeros(at["H"]), np.ones(len(query), bool)
    for b, t, u in sequences(query_starts, key_starts):
        d_o, d_l = heads_first(d_output[t], d_lse[t])
        q, k, v = heads_first(query[t], key[u], value[u])
        found = grouped_attention_grad(d_o, d_l, q, k, v, **numbers, **of_sequence(b, **options))
        d_query[t], d_key[u], d_value[u] = tokens_first(*found[:3])
        d_sink += 0 if sink is None else found[3]
        alone[t] = False
    if sink is None:
        return d_query, d_key, d_value
    d_sink += np.where(sink > -np.inf, d_lse[alone].sum(0), 0)
    return d_query, d_key, d_value, d_sink
