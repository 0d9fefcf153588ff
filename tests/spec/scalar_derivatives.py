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


def merge(x: Inputs) -> list[Any]:
    """Output and log-sum-exp of each row, over the parts that are there."""
    shape = x["lses"].shape[1:]
    lse, output = np.empty(shape, object), np.empty(x["outputs"].shape[1:], object)
    for row in np.ndindex(shape):
        there = [c for c in range(len(x["lses"])) if np.real(x["lses"][c][row]) > -np.inf]
        sizes = [np.exp(x["lses"][c][row]) for c in there]
        lse[row] = np.log(add_up(sizes)) if there else -LONG(np.inf)
        for e in range(output.shape[-1]):
            terms = [w * x["outputs"][c][row][e] for w, c in zip(sizes, there, strict=True)]
            output[row][e] = add_up(terms) / add_up(sizes) if there else LONG(0)
    kind = np.result_type(*(np.asarray(y).dtype for y in lse.ravel()), LONG)
    return [
        output.astype(np.result_type(kind, *(np.asarray(y).dtype for y in output.ravel()))),
        lse.astype(kind),
    ]


def grouped(x: Inputs) -> list[Any]:
    """Output and log-sum-exp of each row, one visible key after the other, the sink first."""
    query, key, value, mask = x["query"], x["key"], x["value"], x["mask"]
    (B, H, N, D), (G, M) = query.shape, key.shape[1:3]
    kind = np.result_type(*(v.dtype for v in x.values() if isinstance(v, ndarray)), LONG)
    output, lse = np.zeros((B, H, N, value.shape[-1]), kind), np.zeros((B, H, N), kind)
    for b, h, i in np.ndindex(B, H, N):
        g, last = h // (H // G), M - N + i
        seen = [j for j in range(M) if j <= last and np.real(mask[i, j]) > -np.inf]
        logits = [x["sink"][h]]
        for j in seen:
            product = add_up([query[b, h, i, d] * key[b, g, j, d] for d in range(D)])
            capped = x["soft_cap"] * np.tanh(product / np.sqrt(LONG(D)) / x["soft_cap"])
            logits.append(capped + mask[i, j])
        sizes = [np.exp(t) for t in logits]
        lse[b, h, i] = np.log(add_up(sizes))
        for e in range(value.shape[-1]):
            terms = [z * value[b, g, j, e] for z, j in zip(sizes[1:], seen, strict=True)]
            output[b, h, i, e] = add_up([LONG(0), *terms]) / add_up(sizes)
    return [output, lse]


def packed(x: Inputs) -> list[Any]:
    """Each sequence by :func:`grouped`; the rows between have their sink alone."""
    T, H = x["query"].shape[:2]
    kind = np.result_type(*(v.dtype for v in x.values() if isinstance(v, ndarray)), LONG)
    output, lse = np.zeros((T, H, x["value"].shape[-1]), kind), np.zeros((T, H), kind)
    lse[:] = x["sink"]
    rows, keys = x["query_starts"], x["key_starts"]
    for b in range(len(rows) - 1):
        t, u = slice(rows[b], rows[b + 1]), slice(keys[b], keys[b + 1])
        n, m = t.stop - t.start, u.stop - u.start
        if n and m:
            cut = {"query": x["query"][t], "key": x["key"][u], "value": x["value"][u]}
            own = {name: np.moveaxis(y, 1, 0)[None] for name, y in cut.items()}
            found = grouped({**x, **own, "mask": np.zeros((n, m), LONG)})
            output[t], lse[t] = (np.moveaxis(y[0], 1, 0) for y in found)
    return [output, lse]


def latent(x: Inputs) -> list[Any]:
    """Both parts of each row and key side by side, by :func:`grouped`; the latent is the values."""
    key = np.concatenate([x["latent"], x["key_rope"]], -1)[:, None]
    own = {"query": np.concatenate([x["query"], x["query_rope"]], -1), "key": key}
    pairs = np.zeros((x["query"].shape[2], key.shape[2]), LONG)
    return grouped({**x, **own, "value": x["latent"][:, None], "mask": pairs})


def selected(x: Inputs) -> list[Any]:
    """Each entry, group and row of :func:`grouped` apart, over the keys of its blocks alone."""
    query, key, size = x["query"], x["key"], x["block"]
    (B, H, N), (G, M) = query.shape[:3], key.shape[1:3]
    kind = np.result_type(*(v.dtype for v in x.values() if isinstance(v, ndarray)), LONG)
    output, lse = np.zeros((B, H, N, x["value"].shape[-1]), kind), np.zeros((B, H, N), kind)
    lse[:] = x["sink"][:, None]
    for b, g, i in np.ndindex(B, G, N):
        named = [j for c in x["selection"][b, g, i] if c >= 0 for j in range(c * size, M)[:size]]
        seen = [j for j in named if j <= M - N + i]
        h, one = slice(g * (H // G), (g + 1) * (H // G)), (slice(b, b + 1), slice(g, g + 1))
        if seen:
            own = {"query": query[b : b + 1, h, i : i + 1], "sink": x["sink"][h]}
            own |= {name: x[name][one][:, :, seen] for name in ("key", "value")}
            found = grouped({**x, **own, "mask": np.zeros((1, len(seen)), LONG)})
            output[b, h, i], lse[b, h, i] = found[0][0, :, 0], found[1][0, :, 0]
    return [output, lse]


def rotary(x: Inputs) -> list[Any]:
    """Every pair of channels turned, number by number."""
    D, f = x["x"].shape[-1], x.get("frequencies")
    y = x["x"].astype(np.result_type(x["x"], LONG(0) if f is None else f))
    width = D if x.get("rotary_dim") is None else x["rotary_dim"]
    for b, h, i, r in np.ndindex(*y.shape[:3], width // 2):
        by_base = np.exp(-np.log(LONG(x.get("base", 10000.0))) * LONG(2 * r) / width)
        theta = (by_base if f is None else f[r]) * LONG(int(x["positions"][b, i]))
        two = (r, r + width // 2) if x["pairing"] == "halves" else (2 * r, 2 * r + 1)
        first, second = (x["x"][b, h, i, channel] for channel in two)
        y[b, h, i, two[0]] = first * np.cos(theta) - second * np.sin(theta)
        y[b, h, i, two[1]] = second * np.cos(theta) + first * np.sin(theta)
    return [y]


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
    "grouped_attention": grouped,
    "latent_attention": latent,
    "selected_attention": selected,
    "packed_attention": packed,
    "merge_attention": merge,
    "rotary_embedding": rotary,
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
