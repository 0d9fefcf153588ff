"""
Sequences that lie end to end, as one entry of a batch in which some rows see some keys, and a
latent as the one head of keys and values that it is: what is known of heads in front of positions
holds of them too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.spec.masks import visible_keys
from attnverify.spec.packed import OfSequences, of_sequence, sequences
from attnverify.spec.paged import OfPagedSequences

Inputs = dict[str, Any]
Visible = Callable[..., ndarray]
"""What sees what, of B, N, M and the options of :func:`attnverify.spec.masks.visible_keys`."""

TOKENS = ("query", "key", "value", "d_output", "d_lse")
"""The arrays whose first axis is that of tokens."""

POOLS = {"key": "key_pages", "value": "value_pages"}
"""Pools, each slot of which is a token."""


def heads_first(inputs: Inputs) -> Inputs:
    """
    Views of tokens [T H D] as heads [1 H T D], and of a pool's slots under the name of keys; of a
    latent the keys with both parts, of which its values are a view.
    """
    if "latent" in inputs:
        key = np.concatenate([inputs["latent"], inputs["key_rope"]], axis=-1)[:, None]
        query = np.concatenate([inputs["query"], inputs["query_rope"]], axis=-1)
        value = key[..., : inputs["latent"].shape[-1]]
        return inputs | {"query": query, "key": key, "value": value}
    pools = {name: inputs[pool] for name, pool in POOLS.items() if pool in inputs}
    inputs = inputs | {name: x.reshape(-1, *x.shape[2:]) for name, x in pools.items()}
    turned = {name: inputs[name].swapaxes(0, 1)[None] for name in TOKENS if name in inputs}
    return inputs | turned


def tokens_first(inputs: Inputs) -> Inputs:
    """And back, in one piece; a latent is what its values have become."""
    if "latent" in inputs:
        E, q, k = inputs["latent"].shape[-1], inputs["query"], inputs["key"][:, 0]
        parts = {"query": q[..., :E], "query_rope": q[..., E:], "key_rope": k[..., E:]}
        parts["latent"] = inputs["value"][:, 0]
        return inputs | {name: np.ascontiguousarray(x) for name, x in parts.items()}
    turned = {name: inputs[name][0].swapaxes(0, 1) for name in TOKENS if name in inputs}
    found = inputs | {name: np.ascontiguousarray(x) for name, x in turned.items()}
    for name, pool in POOLS.items():
        if pool in inputs:
            tokens = found.pop(name)
            found[pool] = tokens.reshape(*inputs[pool].shape[:2], *tokens.shape[1:])
    return found


def packed_pairs(inputs: Mapping[str, Any], visible: Visible = visible_keys) -> ndarray:
    """
    Which tokens see each other [T U], or which slots of a pool [T Z*W]; in either form. What is
    visible in a sequence may be told otherwise.
    """
    if "page_table" in inputs:
        return paged_pairs(inputs, visible)
    options: Any = {name: inputs[name] for name in OfSequences.__annotations__ if name in inputs}
    seen = np.zeros((token_count(inputs["query"]), token_count(inputs["key"])), bool)
    for b, t, u in sequences(inputs["query_starts"], inputs["key_starts"]):
        N, M = t.stop - t.start, u.stop - u.start
        seen[t, u] = visible(B=1, N=N, M=M, **of_sequence(b, **options))[0]
    return seen


def paged_pairs(inputs: Mapping[str, Any], visible: Visible = visible_keys) -> ndarray:
    """Which rows see which slots; of a page that stands twice in what one sees, where either is."""
    Z, W = inputs["key_pages"].shape[:2]
    seen = np.zeros((token_count(inputs["query"]), Z * W), bool)
    for b, t, own in seen_of_pages(inputs, visible):
        slots = (inputs["page_table"][b][:, None] * W + np.arange(W)).ravel()[: own.shape[1]]
        used = own.any(0)
        np.logical_or.at(seen[t].T, slots[used], own[:, used].T)
    return seen


def apart(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """
    The same call with a copy at the pool's end for each further time that a sequence sees a page:
    where a page counts twice, its slots are two tokens.
    """
    if "page_table" not in inputs:
        return inputs
    table, copies = inputs["page_table"].copy(), list[int]()
    for row, mine in zip(table, pages_seen(inputs), strict=True):
        taken = set[int]()
        for y in np.flatnonzero(mine):
            if (z := int(row[y])) in taken:
                row[y] = len(inputs["key_pages"]) + len(copies)
                copies.append(z)
            taken.add(z)
    pools = {name: inputs[name] for name in POOLS.values() if copies}
    grown = {name: np.concatenate([x, x[copies]]) for name, x in pools.items()}
    return dict(inputs) | grown | {"page_table": table}


def seen_of_pages(
    inputs: Mapping[str, Any], visible: Visible = visible_keys
) -> Iterator[tuple[int, slice, ndarray]]:
    """Each sequence's number, its rows, and which of its keys they see."""
    options: Any = {name: inputs.get(name) for name in OfPagedSequences.__annotations__}
    options = {name: x for name, x in options.items() if x is not None}
    starts = inputs["query_starts"]
    for b, length in enumerate(inputs["lengths"].tolist()):
        t = slice(*starts[b : b + 2].tolist())
        if length and t.start < t.stop:
            N = t.stop - t.start
            yield b, t, visible(B=1, N=N, M=length, **of_sequence(b, **options))[0]


def pages_seen(inputs: Mapping[str, Any]) -> ndarray:
    """Which entries of the table are looked at [B Y]."""
    W, (B, Y) = inputs["key_pages"].shape[1], inputs["page_table"].shape
    slots = np.zeros((B, Y * W), bool)
    for b, _, own in seen_of_pages(inputs):
        slots[b, : own.shape[1]] = own.any(0)
    return np.asarray(slots.reshape(B, Y, W).any(2))


def fit_pages(inputs: Inputs, anything: bool) -> Inputs:
    """
    Let a sequence have no more keys than the pool has slots, and each entry of the table that is
    looked at name a page of its own in its row; the others name any page, or ``anything``. In one
    table of three the last page of a row is its first one, too.
    """
    if "page_table" not in inputs:
        return inputs
    Z, W = inputs["key_pages"].shape[:2]
    inputs = inputs | {"lengths": np.minimum(inputs["lengths"], Z * W)}
    used, table = pages_seen(inputs), inputs["page_table"].copy()
    repeated = int(np.abs(table).sum()) % 3 == 0
    for row, mine in zip(table, used, strict=True):
        free, taken = sorted(set(range(Z)) - set(row[mine].tolist())), set[int]()
        for y in np.flatnonzero(mine):
            if not 0 <= row[y] < Z or row[y] in taken:
                row[y] = free.pop()
            taken.add(int(row[y]))
        if repeated and mine.any():
            row[np.flatnonzero(mine)[-1]] = row[np.flatnonzero(mine)[0]]
    others = table if anything else np.clip(table, 0, Z - 1)
    return inputs | {"page_table": np.where(used, table, others)}


def fit_selection(inputs: Inputs) -> Inputs:
    """
    Let choices, drawn as keys, be the blocks of these, each named by a row where it was first
    drawn.
    """
    if "selection" not in inputs:
        return inputs
    drawn, M = inputs["selection"], inputs["key"].shape[2]
    blocks = np.minimum(drawn, M - 1) // inputs["block"]
    earlier = np.tri(drawn.shape[-1], k=-1, dtype=bool)
    again = ((blocks[..., :, None] == blocks[..., None, :]) & earlier).any(-1)
    return inputs | {"selection": np.where(again, -1, blocks)}


def token_count(x: ndarray) -> int:
    return int(x.shape[0] if x.ndim == 3 else x.shape[2])


def of_no_sequence(starts: ndarray, count: int) -> ndarray:
    """Tell of each token whether it lies before the first or behind the last sequence."""
    at = np.arange(count)
    return np.logical_or(at < starts[0], at >= starts[-1])


def fit_lengths(inputs: Inputs) -> Inputs:
    """Let no length be more than the keys of its sequence."""
    if "key_starts" not in inputs or inputs.get("lengths") is None:
        return inputs
    return inputs | {"lengths": np.minimum(inputs["lengths"], np.diff(inputs["key_starts"]))}
