"""Sequences whose keys and values lie in pages of a shared pool, wherever there was room."""

from typing import Annotated, Any, TypedDict, Unpack

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.contract.paged import check_paged, check_pages

from .arrays import ARRAYS
from .domains import Integers
from .grouped import Scale, Sink, SoftCap, grouped_attention
from .masks import Causal, Chunk, Pinned, Window, visible_keys
from .packed import QueryStarts, heads_first, of_sequence, rows_without_a_key, tokens_first

__all__ = ["paged_attention"]

PageTable = Annotated[Int[ndarray, "B Y"], Integers(-1, "Z")]
Lengths = Annotated[Int[ndarray, "B"], Integers(0, "WY", ("below", "above"))]


class OfPagedSequences(TypedDict, total=False):
    """The options of visibility, where the lengths are always given."""

    causal: Causal
    window: Window
    chunk: Chunk
    offset: Annotated[Int[ndarray, "B"] | None, Integers("-T", "WY")]
    pinned: Pinned


def paged_attention(
    query: Float[ndarray, "T H D"],
    key_pages: Float[ndarray, "Z W G D"],
    value_pages: Float[ndarray, "Z W G E"],
    page_table: PageTable,
    lengths: Lengths,
    query_starts: QueryStarts,
    soft_cap: SoftCap = None,
    sink: Sink = None,
    scale: Scale = None,
    **options: Unpack[OfPagedSequences],
) -> tuple[Float[ndarray, "T H E"], Float[ndarray, "T H"]]:
    r"""
    Attention of B sequences over a cache: their T rows lie end to end, their keys and values in
    Z pages of W slots, and a table says which pages are whose. The output, and the log-sum-exp of
    each row.

    .. math:: k_{bj} = K_{z w}, \quad v_{bj} = V_{z w}, \qquad z = \text{page\_table}_{b y}, \quad
              y = \lfloor j / W \rfloor, \quad w = j - y W

    .. math:: \big(o_t, \ell_t\big)_{x_b \le t < x_{b+1}} = \text{grouped\_attention} \big(
              (q_t)_{x_b \le t < x_{b+1}}, (k_{bj}, v_{bj})_{0 \le j < m_b} \big)

    1. Key j of sequence b stands in slot j mod W of the page ``page_table[b, j // W]``, and so does
       its value.
    2. Sequence b has the first ``lengths[b]`` of these keys, whether or not that is a multiple of
       W, and the queries from ``query_starts[b]`` to ``query_starts[b + 1]``, the last left out:
       one each when a model decodes, more when it reads a prompt.
    3. Positions are those within the sequence, and its last query stands at its last key unless
       ``offset`` [B] says otherwise: causality, windows, chunks and pinned keys are those of
       :func:`attnverify.spec.masks.visible_keys`.
    4. A slot that no row of the sequence sees is not looked at, NaN included: slots behind the
       length, pages that nobody names, pages that windows have left.
    5. An entry of the table is looked at where a row sees a key of its page. Elsewhere it may be
       any number; there it is one from 0 to Z - 1, or it is a ValueError.
    6. Sequences may share pages. A page that stands twice in one row of the table is read twice,
       and its keys count twice.
    7. A length may be 0, and a sequence may have no query. A row without a key, a row of no
       sequence too, gives 0, and its lse is the sink, or minus infinity without one.
    8. A length below 0 or above W Y, and starts that fall or lie beyond the rows: ValueError.
    9. Cap, sink and scale are those of :func:`attnverify.spec.grouped.grouped_attention`, and so is
       the width of the lse.

    >>> pages = np.array([9.0, np.nan, 1.0, 3.0]).reshape(2, 2, 1, 1)
    >>> table, lengths = np.array([[1, 0], [1, 77]]), np.array([3, 1])
    >>> query, starts = np.zeros((2, 1, 1)), np.array([0, 1, 2])
    >>> output, lse = paged_attention(query, 0 * pages, pages, table, lengths, starts)
    >>> output.ravel().round(9).tolist(), np.exp(lse).ravel().round(9).tolist()
    ([4.333333333, 1.0], [3.0, 1.0])
    >>> output, lse = paged_attention(query, 0 * pages, pages, table, 0 * lengths, starts)
    >>> output.ravel().tolist(), lse.ravel().tolist()
    ([0.0, 0.0], [-inf, -inf])

    Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with
    PagedAttention, 2023; FlashAttention's ``page_table`` and ``cache_seqlens``.

    Errata: vLLM's first kernel keeps keys as [Z G D/x W x] and values as [Z G E W]. FlashInfer
    has no table: ``kv_indices`` holds the pages of all sequences end to end, ``kv_indptr`` where
    each begins, and ``last_page_len`` counts from 1 to W, so that an empty sequence is one without
    pages.
    """
    at = check_paged(ARRAYS, query, key_pages, value_pages, page_table, lengths, query_starts,
                     soft_cap, sink, scale, **options)  # fmt: skip
    numbers: Any = {"soft_cap": soft_cap, "sink": sink, "scale": scale}
    output, lse = rows_without_a_key(query, key_pages, value_pages, sink)
    for b, m in enumerate(lengths.tolist()):
        t = slice(*query_starts[b : b + 2])
        if t.start == t.stop or m == 0:
            continue
        own = of_sequence(b, **options)
        seen = visible_keys(1, t.stop - t.start, m, **own)[0].any(axis=0)
        key, value = np.zeros((m, at["G"], at["D"])), np.zeros((m, at["G"], at["E"]))
        for j in [j for j in range(m) if seen[j]]:
            z, w = page_table[b, j // at["W"]], j % at["W"]
            check_pages(page_table[b, j // at["W"], None], at["Z"])
            key[j], value[j] = key_pages[z, w], value_pages[z, w]
        q, k, v = heads_first(query[t], key, value)
        output[t], lse[t] = tokens_first(*grouped_attention(q, k, v, **numbers, **own))
    return output, lse
