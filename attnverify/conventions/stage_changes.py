"""
Changes of one stage of an attention: what another convention makes of it.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.inputs.recipe import Inputs
from attnverify.reference.staged_attention import (
    Change,
    StagedAttention,
    shift_indices,
    table_rows,
)


def scaled(s: StagedAttention, scale: float) -> StagedAttention:
    return replace(s, scale=scale)


def heads_and_width(s: StagedAttention) -> tuple[int, int]:
    """Heads and width of a head."""
    shape = s.inputs["query"].shape
    return (shape[1] if len(shape) == 4 else 1), shape[-1]


def frontier(offset: Callable[[int, int], int | None], only_unmasked: bool = False) -> Change:
    """A causal mask whose last visible key of row i is i + offset(N, M); None hides nothing."""

    def change(s: StagedAttention) -> StagedAttention:
        (N, M), masked = s.shape[-2:], s.visible is not None or s.bias is not None
        k = offset(N, M)
        return (
            s
            if only_unmasked and masked
            else replace(s, causal=None if k is None else np.tri(N, M, k, dtype=bool))
        )

    return change


def mask_of(s: StagedAttention) -> ndarray | None:
    mask: ndarray | None = s.inputs.get("mask", s.inputs.get("visible"))
    return mask


def remasked(new: Callable[[ndarray], ndarray | None], s: StagedAttention) -> StagedAttention:
    """Another mask in place of a boolean one."""
    mask = mask_of(s)
    return s if mask is None or mask.dtype != bool else replace(s, visible=new(mask))


def float_mask(
    new: Callable[[StagedAttention], StagedAttention], s: StagedAttention
) -> StagedAttention:
    mask = mask_of(s)
    return s if mask is None or mask.dtype == bool else new(s)


def added_instead(s: StagedAttention) -> StagedAttention:
    """A boolean mask added to the scores as ones and zeros."""
    mask = mask_of(s)
    return (
        s
        if mask is None or mask.dtype != bool
        else replace(s, visible=None, bias=mask.astype(float))
    )


def within_frontier(s: StagedAttention) -> StagedAttention:
    """
    Return the mean of what the frontier leaves, as a large negative number in place of minus
    infinity gives it.
    """
    seen = np.ones(s.shape[-2:]) if s.causal is None else 1.0 * s.causal
    return replace(s, empty=seen / np.maximum(seen.sum(axis=-1, keepdims=True), 1))


def unmasked_rows(s: StagedAttention) -> StagedAttention:
    """A row from which everything is hidden sees every key."""
    sees = s.sees
    return replace(s, causal=None, visible=sees | ~sees.any(axis=-1, keepdims=True))


def slopes(rule: Callable[[int], ndarray]) -> Change:
    return lambda s: replace(s, slopes=rule(s.shape[-3]))


def in_storage(s: StagedAttention) -> StagedAttention:
    """Slope times distance kept in the dtype of the inputs, slope and distance as well."""
    assert s.slopes is not None and s.distance is not None
    bias = round_to(
        round_to(s.slopes, s.dtype)[:, None, None] * round_to(s.distance, s.dtype), s.dtype
    )
    return replace(s, slopes=np.ones(1), distance=bias)


def with_table_rows(rows: Callable[[Inputs, int, int], ndarray]) -> Change:
    return lambda s: replace(s, place=rows(s.inputs, *s.shape[-2:]))


def aligned(align: str) -> Change:
    return with_table_rows(lambda x, N, M: table_rows(x, N, M, M - N if align == "end" else 0))


def clipped_rows(x: Inputs, N: int, M: int, offset: int) -> ndarray:
    """The places of the table's rows, the first or the last one for what lies beyond."""
    rows = len(x["key_pos_bias"])
    row = rows // 2 + np.arange(M) - np.arange(N)[:, None] - offset
    return np.arange(N)[:, None] * rows + np.clip(row, 0, rows - 1)


def offset_of(x: Inputs, N: int, M: int) -> int:
    return M - N if x["align"] == "end" else 0


def with_shift(shift: Callable[[ndarray], ndarray]) -> Change:
    return lambda s: replace(s, place=shift_indices(shift, *s.shape[-2:]))


def with_u_and_v_exchanged(s: StagedAttention) -> StagedAttention:
    return replace(s, inputs=s.inputs | {"u": s.inputs["v"], "v": s.inputs["u"]})


def read_backwards(x: ndarray) -> ndarray:
    """The row of the smallest distance first: the place of the mirrored table."""
    N, M = x.shape
    row = np.arange(N)[:, None] + M - N - np.arange(M)
    return np.where((row >= 0) & (row < M), x[np.arange(N)[:, None], np.clip(row, 0, M - 1)], 0.0)


def behind_causal(offset: Callable[[int, int], int], s: StagedAttention) -> StagedAttention:
    """Return a causal mask in the place of the one that is given."""
    N, M = s.shape[-2:]
    causal = np.tri(N, M, offset(N, M), dtype=bool)
    return s if s.visible is None else replace(s, visible=causal)
