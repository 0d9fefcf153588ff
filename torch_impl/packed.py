"""
Sequences laid end to end: the specification is :mod:`spec.packed`.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnverify.contract.packed import check_packed

from .arrays import TENSORS
from .grouped import bias_and_pairs, spelled_out
from .scores import wide
from .transforms.autocast import lowered

__all__ = ["packed_attention"]

Starts = Int[Tensor, "B+1"]


@lowered
def packed_attention(
    query: Float[Tensor, "T H D"],
    key: Float[Tensor, "U G D"],
    value: Float[Tensor, "U G E"],
    query_starts: Starts,
    key_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "T H E"], Float[Tensor, "T H"]]:
    """
    As :func:`spec.packed.packed_attention`: a grouped attention for each sequence, one after the
    other, and what lies between them. The starts are read first, which waits for the device.
    """
    check_packed(
        TENSORS, query, key, value, query_starts, key_starts, soft_cap, sink, scale, **options
    )
    (sink,), parts = wide(sink), []  # once, so that its gradient is summed wide
    for b, t, u in pieces(query_starts, key_starts, len(query)):
        if t.start < t.stop and u.start == u.stop:
            parts.append(without_a_key(query[t], value, sink))
        elif t.start < t.stop:
            q, k, v = (x.transpose(0, 1)[None] for x in (query[t], key[u], value[u]))
            own = {name: x[b, None] if isinstance(x, Tensor) else x for name, x in options.items()}
            _, visible = bias_and_pairs(q, k, None, own)
            output, lse = spelled_out(q, k, v, None, visible, soft_cap, sink, scale, None, 0.0)
            parts.append((output[0].transpose(0, 1), lse[0].transpose(0, 1)))
    outputs, lses = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(lses)


def pieces(query_starts: Tensor, key_starts: Tensor, T: int) -> Iterator[tuple[int, slice, slice]]:
    """The sequences with their queries and keys, and the queries before and behind all of them."""
    rows, keys = query_starts.tolist(), key_starts.tolist()
    yield -1, slice(0, rows[0]), slice(0, 0)
    for b, (t, u) in enumerate(zip(pairwise(rows), pairwise(keys), strict=True)):
        yield b, slice(*t), slice(*u)
    yield -1, slice(rows[-1], T), slice(0, 0)


def without_a_key(query: Tensor, value: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """What rows are that see nothing: zeros, and the sink or minus infinity."""
    never = torch.zeros((), dtype=torch.bool, device=query.device)
    none = query[..., :1].where(never, 0)  # so that a gradient of 0 arrives at the query
    lse = torch.full_like(wide(query)[0][..., 0], -torch.inf)
    output = none.expand(*none.shape[:2], value.shape[-1])
    return output, lse if sink is None else sink.expand(lse.shape)
