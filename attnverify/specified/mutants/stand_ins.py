"""Functions that mutants call in the place of NumPy's."""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from attnverify.specified.mutants.slips import ACTIVATIONS, HALVES, TILES


def tiled(x: Any, count: int, axis: int = 0) -> Any:
    """Repeat an axis as a whole."""
    repeats = [1] * np.ndim(x)
    repeats[axis] = count
    return np.tile(x, repeats)


def mean_but_one(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Divide by one less than there are."""
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / (np.size(x) / max(np.size(total), 1) - 1)


def count_all(x: Any, axis: Any = None, keepdims: bool = False, **other: Any) -> Any:
    """How many a sum adds up, true or not."""
    total = np.sum(np.ones(tuple(x.shape)), axis=other.get("dim", axis), keepdims=keepdims)
    return float(total) if np.ndim(total) == 0 else total


def stored(x: Any, kind: Any) -> Any:
    """Round what a step gives to half precision."""
    return x.astype(kind).astype(np.float64) if x.dtype.kind == "f" else x


def running(x: Any, axis: int, *, kind: Any) -> Any:
    """Add up along an axis in half precision, as a state that is kept in it."""
    parts, state = [], 0.0
    for at in range(x.shape[axis]):
        state = stored(state + x.take([at], axis=axis), kind)
        parts.append(state)
    return np.concatenate(parts, axis=axis)


def whole_tiles(x: Any, axis: int = -1, *, tile: int) -> Any:
    """Leave what lies beyond the last whole tile of an axis out of what is summed."""
    size = x.shape[axis]
    behind = (1,) * (x.ndim - 1 - axis % x.ndim)
    seen = np.arange(size) < size // tile * tile
    return np.where(seen.reshape(-1, *behind), x, 0.0)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


STAND_INS: dict[str, Any] = {
    "_tiled": tiled,
    "_mean_but_one": mean_but_one,
    "_count_all": count_all,
    "_relu": lambda x: np.maximum(x, 0.0),
    "_gelu": gelu,
    "_silu": lambda x: x * sigmoid(x),
    "_sigmoid": sigmoid,
    "_tanh": np.tanh,
    "_softplus": lambda x: np.log1p(np.exp(x)),
    "_float16": partial(stored, kind=np.float16),
    "_bfloat16": partial(stored, kind=ml_dtypes.bfloat16),
    "_running_float16": partial(running, kind=np.float16),
    "_running_bfloat16": partial(running, kind=ml_dtypes.bfloat16),
}
STAND_INS |= {f"_tiles_of_{tile}": partial(whole_tiles, tile=tile) for tile in TILES}
WORDS = {
    "_tiled(": "np.tile(",
    "_mean_but_one(": "the mean of n - 1 of (",
    "_count_all(": "the count of all of (",
    **{f"_running_{half}(": f"the running sum in {half} of (" for half in HALVES},
    **{f"_tiles_of_{tile}(": f"whole tiles of {tile} of (" for tile in TILES},
    **{f"_{name}(": f"{name}(" for name in (*ACTIVATIONS, *HALVES)},
}
"""How they are told."""
