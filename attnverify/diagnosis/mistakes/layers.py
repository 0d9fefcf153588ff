"""
Mistakes in the attention inside a layer: what becomes of a row that sees no key.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, layers

EMPTY_ROWS: dict[str, Callable[[int], float]] = {
    "NaN in rows that see no key": lambda M: np.nan,
    "rows that see no key averaging all values": lambda M: 1 / M,
}
"""The weight of each of M keys in such a row, by the words for it."""


def layer_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each, for a layer whose softmax is a stage of its own."""
    if operation.chapter == "layers" and not operation.is_gradient:
        for words, weight in EMPTY_ROWS.items():
            yield words, partial(with_empty_rows, weight)


def with_empty_rows(weight: Callable[[int], float], operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with another weight in the rows that see no key."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        own = attention.weigh(score, visible)
        sees_some = visible.any(axis=-1, keepdims=True)
        return np.where(sees_some, own, weight(visible.shape[-1]))

    return getattr(layers, operation.name)(**inputs, weigh=weigh)
