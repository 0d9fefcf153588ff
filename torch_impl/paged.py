"""
Sequences in pages of a pool: the specification is :mod:`spec.paged`.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnverify.contract.paged import check_paged, check_pages

from .arrays import TENSORS
from .grouped import bias_and_pairs, spelled_out
from .packed import Starts, pieces, without_a_key
from .scores import wide
from .transforms.autocast import lowered

__all__ = ["paged_attention"]


@lowered
def paged_attention(
    query: Float[Tensor, "T H D"],
    key_pages: Float[Tensor, "Z W G D"],
    value_pages: Float[Tensor, "Z W G E"],
    page_table: Int[Tensor, "B Y"],
    lengths: Int[Tensor, "B"],
    query_starts: Starts,
    soft_cap: float | None = None,
    sink: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "T H E"], Float[Tensor, "T H"]]:
    """
    As :func:`spec.paged.paged_attention`: the pages of a sequence are gathered and a grouped
    attention follows, one sequence after the other. Starts and lengths are read first, and the
    entries of the table that are looked at, which waits for the device.
    """
    check_paged(TENSORS, query, key_pages, value_pages, page_table, lengths, query_starts,
                soft_cap, sink, scale, **options)  # fmt: skip
    (sink,), counts, parts = wide(sink), lengths.tolist(), []
    for b, t, _ in pieces(query_starts, query_starts, len(query)):
        if t.start == t.stop:
            continue
        if b < 0 or not counts[b]:
            parts.append(without_a_key(query[t], value_pages, sink))
            continue
        tokens = (gathered(pages, page_table[b], counts[b]) for pages in (key_pages, value_pages))
        q, k, v = (x.transpose(0, 1)[None] for x in (query[t], *tokens))
        own = {name: x[b, None] if isinstance(x, Tensor) else x for name, x in options.items()}
        _, visible = bias_and_pairs(q, k, None, own)
        used = visible[0, 0].any(0).nonzero()[:, 0] // key_pages.shape[1]
        check_pages(page_table[b][used], len(key_pages))
        output, lse = spelled_out(q, k, v, None, visible, soft_cap, sink, scale, None, 0.0)
        parts.append((output[0].transpose(0, 1), lse[0].transpose(0, 1)))
    outputs, lses = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(lses)


def gathered(
    pages: Float[Tensor, "Z W G C"], named: Int[Tensor, "Y"], length: int
) -> Float[Tensor, "M G C"]:
    """The first slots of the pages that are named, of some other page where there is none such."""
    return pages[named.clamp(0, len(pages) - 1)].flatten(0, 1)[:length]
