"""
Queries that are aimed at single keys: at the diagonal, one before or behind it, the first, the
last, the edges of tiles. A key that is lost, or let in, then shows.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

if TYPE_CHECKING:
    from attnverify.inputs.recipe import Inputs

EDGES = (15, 16, 31, 32, 63, 64, 127, 128)


def query_and_key(inputs: "Inputs") -> tuple[ndarray | None, ndarray | None]:
    """Query and key, where they can be multiplied."""
    query, key = inputs.get("query"), inputs.get("key")
    fitting = (
        isinstance(query, ndarray) and isinstance(key, ndarray) and query.shape[-1] == key.shape[-1]
    )
    return (query, key) if fitting else (None, None)


def aimed_keys(N: int, M: int, rng: np.random.Generator) -> ndarray:
    """
    Draw the key of each query [N]: at its place on the diagonal, one behind or before it, the
    first, the last, one at the edge of a tile, and one at an edge that is near the diagonal.
    """
    frontier = np.arange(N) + M - N
    edges = rng.choice(EDGES, size=N)
    near = frontier // 64 * 64 - rng.integers(2, size=N)
    last_edge = np.full(N, (M - 1) // 64 * 64) - rng.integers(2, size=N)
    ends = [np.zeros(N, int), np.full(N, M - 1)]
    choices = np.stack([frontier, frontier + 1, frontier - 1, *ends, edges, near, last_edge])
    return np.clip(choices[rng.integers(len(choices), size=N), np.arange(N)], 0, M - 1)


def spotlight(inputs: "Inputs", dtype: str, rng: np.random.Generator) -> None:
    """
    A key at an edge that each query likes as much as all the others together: half of the row's
    weight. Where causal rows see few keys, the key has more.
    """
    query, key = query_and_key(inputs)
    if query is not None and key is not None and key.shape[:-2] != query.shape[:-2]:
        key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    if query is not None and key is not None and query.shape[:-2] == key.shape[:-2]:
        aim_queries(query, key, rng)
    elif "w_score" in inputs and isinstance(inputs.get("key"), ndarray):
        light_hidden_units(inputs, rng)
    elif isinstance(score := inputs.get("score"), ndarray):
        aimed = aimed_keys(score.shape[-2], score.shape[-1], rng)
        raise_scores(score, aimed, np.arange(len(aimed)))


def aim_queries(query: ndarray, key: ndarray, rng: np.random.Generator) -> None:
    """
    Turn each query towards its key, in place, as far as makes the key's score the logarithm of the
    sum of all other exponentials.
    """
    (N, D), M = query.shape[-2:], key.shape[-2]
    aimed = aimed_keys(N, M, rng)
    towards = key[..., aimed, :]
    size = np.maximum((towards**2).sum(-1, keepdims=True), 0.25)
    across = query - (query * towards).sum(-1, keepdims=True) / size * towards
    others = log_sum_of_others(across @ key.mT / np.sqrt(D), aimed)
    query[...] = across + np.sqrt(D) * others / size * towards


def log_sum_of_others(score: ndarray, aimed: ndarray) -> ndarray:
    """The logarithm of the sum of the other exponentials of a row [... N 1], in 1024ths."""
    others: ndarray = score.copy()
    others[..., np.arange(len(aimed)), aimed] = -np.inf
    top = np.maximum(others.max(-1, keepdims=True), -100.0)
    total = np.exp(others - top).sum(-1, keepdims=True)
    found = top + np.log(np.maximum(total, 1e-3))
    return np.round(found * 1024) / 1024  # the last bits are each processor's own


def raise_scores(score: ndarray, aimed: ndarray, rows: Any) -> None:
    """Raise one score of each row to the logarithm of the sum of the others, in place."""
    with np.errstate(all="ignore"):
        score[..., rows, aimed] = np.clip(log_sum_of_others(score, aimed)[..., 0], -100, 100)


def light_hidden_units(inputs: "Inputs", rng: np.random.Generator) -> None:
    """
    Of an additive score, turn one key of each entry so that its hidden units stand where their
    weights have their signs, and weigh them so that they amount to log(M), in place.
    """
    key, w_key, w_score = inputs["key"], inputs["w_key"], inputs["w_score"]
    M = key.shape[-2]
    w_score *= np.log(M + 1.0) / max(float(np.abs(w_score).sum()), 0.1)
    wanted = 4 * np.sign(w_score)
    aimed = aimed_keys(1, M, rng)[0]
    key[..., aimed, :] = np.linalg.lstsq(w_key, wanted, rcond=None)[0]
