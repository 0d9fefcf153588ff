"""The kernel of attention over caches, launched."""

import torch
from torch import Tensor

from .kernels.block_sizes import blocks, padded
from .kernels.cached import cached_forward
from .kernels.launch import launch
from .operators import is_aligned

__all__ = ["launch_cached"]


def launch_cached(
    dense: tuple[Tensor, Tensor, Tensor],
    rope: tuple[Tensor | None, Tensor | None],
    scales: tuple[Tensor | None, Tensor | None],
    sink: Tensor | None,
    output: Tensor,
    lse: Tensor,
    tables: tuple[Tensor, ...],
    rows: int,
    soft_cap: float | None,
    scale: float,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    chunk: int | None = None,
    pinned: int = 0,
) -> None:
    """
    Fill an output and a log-sum-exp; ``tables`` are the pages, first rows, numbers of rows and of
    keys and positions of the sequences, and a count of pages that are missing; ``rows`` the most
    rows of one. Pages of float8_e4m3fn are read as bits, which every GPU can.
    """
    query, key, value = (
        x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x for x in dense
    )
    (Z, W, G, D), E, (B, Y) = key.shape, value.shape[-1], tables[0].shape
    r = query.shape[1] // G
    F = 0 if rope[0] is None else rope[0].shape[-1]
    chosen = blocks("cached", "plain", query, (rows * r, W * Y), max(D, E))
    strided = query, rope[0], key, rope[1], value, *scales, output
    left, right = window or (None, None)
    launch(
        cached_forward,
        (B * G, max(1, -(-rows * r // chosen.queries))),
        *(query, rope[0], key, rope[1], value, sink, *scales, output, lse, *tables),
        *((0, 0, 0, 0) if x is None else (*x.stride(), 0)[:4] for x in strided),
        *(G, r, W * Y, D, F, E, W, Y, Z, scale, soft_cap, left, right, chunk, pinned),
        aligned=is_aligned(query, value, key, output, *rope, others=(*scales, sink)),
        CAUSAL=causal,
        BLOCK_N=chosen.queries,
        BLOCK_M=chosen.keys,
        BLOCK_D=padded(D),
        BLOCK_F=padded(F),
        BLOCK_E=padded(E),
        **chosen.options,
    )
