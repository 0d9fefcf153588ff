"""
Faults of accumulators: sums over tiles of keys whose running total is kept in a narrow type, told
as a fused kernel with a wide one.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.faults.registry import OURS, add_faults
from attnverify.reference import attention

CLAIM = 'PRECISION = "fused"'


def tiles_of(x: ndarray, axis: int, tile: int) -> Any:
    """Slices of so many places along an axis, one after the other."""
    for start in range(0, x.shape[axis], tile):
        yield (slice(None),) * (axis % x.ndim) + (slice(start, start + tile),)


def mix_in(dtype: str, tile: int) -> Any:
    """Weights times values, the running sum rounded after every tile of keys."""

    def mix(weights: ndarray, visible: ndarray, value: ndarray) -> ndarray:
        if not np.isfinite(value).all():
            return attention.mix(weights, visible, value)
        total = np.zeros((*weights.shape[:-1], value.shape[-1]))
        for start in range(0, value.shape[-2], tile):
            part = weights[..., start : start + tile] @ value[..., start : start + tile, :]
            total = round_to(total + part, dtype)
        return total

    return mix


def weigh_in(dtype: str, tile: int) -> Any:
    """The softmax with a normaliser that is rounded after every tile of keys."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        e = attention.exponentials(score, visible)
        total = np.zeros((*e.shape[:-1], 1))
        for place in tiles_of(e, -1, tile):
            total = round_to(total + e[place].sum(axis=-1, keepdims=True), dtype)
        return np.where(visible, e / np.where(total == 0, 1, total), 0)

    return weigh


def value_grad_in(dtype: str, tile: int) -> Any:
    """The value's gradient, its sum over the queries rounded after every tile of them."""
    mix = mix_in(dtype, tile)
    return lambda weights, visible, d_output: mix(weights.mT, visible.mT, d_output)


SUMS = (
    ("scaled_dot_product_attention", "bfloat16", 64),
    ("scaled_dot_product_attention", "bfloat16", 128),
    ("scaled_dot_product_attention", "float16", 64),
    ("transformer_xl_attention", "bfloat16", 64),
    ("learned_relative_attention", "bfloat16", 64),
    ("additive_attention", "bfloat16", 64),
)
NORMALISERS = (
    ("scaled_dot_product_attention", "bfloat16", 64),
    ("learned_relative_attention", "bfloat16", 64),
    ("transformer_xl_attention", "float16", 16),
)
FUSED = {"precision": "fused"}

add_faults("numerics", (
    *((f"{operation}_{dtype}_sum_of_{tile}",
       f"outputs summed in {dtype}, tile by tile of {tile} keys", OURS, CLAIM,
       "values of one sign under near-uniform weights, M > 2048", {"mix": mix_in(dtype, tile)},
       FUSED) for operation, dtype, tile in SUMS),
    *((f"{operation}_{dtype}_normaliser_of_{tile}",
       f"a normaliser in {dtype}, tile by tile of {tile} keys", OURS, CLAIM,
       "near-uniform weights, M > 2048", {"weigh": weigh_in(dtype, tile)}, FUSED)
      for operation, dtype, tile in NORMALISERS),
))  # fmt: skip

add_faults("backward", (
    *((f"{operation}_grad_bfloat16_value_sum_of_64",
       "the value's gradient summed in bfloat16, tile by tile of 64 queries", OURS, CLAIM,
       "a d_output of one sign under near-uniform weights, N > 1024",
       {"value_grad": value_grad_in("bfloat16", 64)}, FUSED)
      for operation in ("scaled_dot_product_attention", "learned_relative_attention")),
))  # fmt: skip
