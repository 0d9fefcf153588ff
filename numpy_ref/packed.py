"""Sequences laid end to end, as one attention in which blocks along a diagonal see each other."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attnverify.contract.packed import D_PACKED, check_packed
from attnverify.contract.shapes import check

from .arrays import ARRAYS
from .grouped import attended, gradients
from .masks import seen_by
from .rounding import keeps_wide

__all__ = ["packed_attention", "packed_attention_grad"]

Starts = Int[ndarray, "B+1"]


@keeps_wide(1)
def packed_attention(
    query: Float[ndarray, "T H D"],
    key: Float[ndarray, "U G D"],
    value: Float[ndarray, "U G E"],
    query_starts: Starts,
    key_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[ndarray, "T H E"], Float[ndarray, "T H"]]:
    """
    See :func:`spec.packed.packed_attention`.

    One grouped attention of all rows over all keys, of which each row sees its own sequence's.
    """
    check_packed(
        ARRAYS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    seen = seen_pairs(query, key, query_starts, key_starts, options)
    q, k, v = heads_first(query, key, value)
    return tokens_first(*attended(q, k, v, None, sink, seen, soft_cap, scale))


@keeps_wide()
def packed_attention_grad(
    d_output: Float[ndarray, "T H E"],
    d_lse: Float[ndarray, "T H"],
    query: Float[ndarray, "T H D"],
    key: Float[ndarray, "U G D"],
    value: Float[ndarray, "U G E"],
    query_starts: Starts,
    key_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[ndarray, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[ndarray, ...]:
    """See :func:`spec.packed.packed_attention_grad`."""
    at = check_packed(
        ARRAYS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    check(ARRAYS, D_PACKED, d_output, d_lse, **at)
    seen = seen_pairs(query, key, query_starts, key_starts, options)
    arriving, (q, k, v) = heads_first(d_output, d_lse), heads_first(query, key, value)
    found = gradients(arriving, q, k, v, None, sink, seen, soft_cap, scale)
    return *tokens_first(*found[:3]), *found[3:]


def seen_pairs(
    query: ndarray, key: ndarray, query_starts: ndarray, key_starts: ndarray, options: Any
) -> ndarray:
    """Which pairs see each other [1 H T U]: those of one sequence, by its options."""
    seen = np.zeros((len(query), len(key)), bool)
    for b in range(len(query_starts) - 1):
        t, u = slice(*query_starts[b : b + 2]), slice(*key_starts[b : b + 2])
        own = {name: x[b : b + 1] if isinstance(x, ndarray) else x for name, x in options.items()}
        seen[t, u] = seen_by(1, t.stop - t.start, u.stop - u.start, **own)[0]
    return np.broadcast_to(seen, (1, query.shape[1], *seen.shape))


def heads_first(*tokens: ndarray) -> tuple[Any, ...]:
    """Tokens [T H ...] as heads of one entry [1 H T ...]."""
    return tuple(x.swapaxes(0, 1)[None] for x in tokens)


def tokens_first(*heads: ndarray) -> tuple[Any, ...]:
    """And back."""
    return tuple(x[0].swapaxes(0, 1) for x in heads)
