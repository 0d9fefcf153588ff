"""
Scores, weights and shifts of :mod:`tests.support.scalar_oracle`, each with its outputs in a list;
and the derivatives of all that is computed so, by a step of 1e-200 in the imaginary direction.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray

from tests.support.scalar_oracle import (
    COMPLEX,
    LONG,
    Inputs,
    Matrix,
    add_up,
    additive,
    exponentials,
    learned,
    masked,
    scaled,
    shifted_left,
    shifted_right,
    tables_of,
    transformer_xl,
)

STEP = LONG(1e-200)


def each_head(x: Inputs, score: Callable[[Any, Any, int], Matrix]) -> list[Any]:
    q, k = x["query"], x["key"]
    return [
        np.array([[score(q[b, h], k[b, h], h) for h in range(len(q[b]))] for b in range(len(q))])
    ]


def softmax(x: Inputs) -> list[Any]:
    mask = x.get("mask")
    whole = None if mask is None else np.broadcast_to(mask, x["score"].shape)
    s, seen = masked(x["score"], whole)
    return [np.array([exponentials(*each) for each in zip(s, seen, strict=True)])]


def dropout(x: Inputs) -> list[Any]:
    keep = np.broadcast_to(x["keep"], x["weights"].shape)
    share = 1 - LONG(x["p"])
    rows = zip(x["weights"], keep, strict=True)
    return [
        np.array([[w / share if k else LONG(0) for w, k in zip(*row, strict=True)] for row in rows])
    ]


PARTS: dict[str, Callable[[Inputs], list[Any]]] = {
    "additive_score": lambda x: [
        np.array(additive(*(x[n] for n in ("query", "key", "w_query", "w_key", "w_score"))))
    ],
    "scaled_dot_product_score": lambda x: [np.array(scaled(x["query"], x["key"]))],
    "transformer_xl_score": lambda x: each_head(
        x, lambda q, k, h: transformer_xl(q, k, *(x[name][h] for name in ("position", "u", "v")))
    ),
    "learned_relative_score": lambda x: each_head(
        x, lambda q, k, h: learned(q, k, *tables_of(x, h))
    ),
    "softmax": softmax,
    "dropout": dropout,
    "shift_right": lambda x: [np.array(shifted_right(x["x"]))],
    "rel_shift": lambda x: [np.array(shifted_left(x["x"]))],
}


def arrays(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], ndarray]]:
    """Every long array of a tree, and the names and places that lead to it."""
    if isinstance(tree, (dict, list)):
        for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from arrays(branch, (*path, key))
    elif isinstance(tree, ndarray) and tree.dtype == LONG:
        yield path, tree


def replaced(tree: Any, path: tuple[Any, ...], array: ndarray) -> Any:
    """The same tree with another array at the end of this path."""
    if not path:
        return array
    copy = tree.copy()
    copy[path[0]] = replaced(tree[path[0]], path[1:], array)
    return copy


def gradients(compute: Callable[[Inputs], list[Any]], x: Inputs, *d: ndarray) -> list[ndarray]:
    """
    By every float array: what a step in an imaginary direction adds to the outputs, each weighted
    by what arrives at it. A memory is a constant.
    """
    found = []
    for path, array in arrays(x):
        by = np.zeros(array.shape, LONG)
        for place in () if path[0] in ("mem", "mems") else np.ndindex(array.shape):
            moved = array.astype(COMPLEX)
            moved[place] += 1j * STEP if np.isfinite(array[place]) else 0
            outputs = zip(d, compute(replaced(x, path, moved)), strict=False)
            by[place] = np.imag(add_up(add_up((w * y).ravel()) for w, y in outputs)) / STEP
        found.append(by)
    return found
