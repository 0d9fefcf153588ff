"""
Sequences that lie end to end, as one entry of a batch in which some rows see some keys: what is
known of heads in front of positions holds of them too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.spec.masks import visible_keys
from attnverify.spec.packed import OfSequences, of_sequence, sequences

Inputs = dict[str, Any]
TOKENS = ("query", "key", "value", "d_output", "d_lse")
"""The arrays whose first axis is that of tokens."""


def heads_first(inputs: Inputs) -> Inputs:
    """Views of tokens [T H D] as heads [1 H T D]."""
    turned = {name: inputs[name].swapaxes(0, 1)[None] for name in TOKENS if name in inputs}
    return inputs | turned


def tokens_first(inputs: Inputs) -> Inputs:
    """And back, in one piece."""
    turned = {name: inputs[name][0].swapaxes(0, 1) for name in TOKENS if name in inputs}
    return inputs | {name: np.ascontiguousarray(x) for name, x in turned.items()}


def packed_pairs(inputs: Mapping[str, Any]) -> ndarray:
    """Which tokens see each other [T U], of arrays in either form."""
    options: Any = {name: inputs[name] for name in OfSequences.__annotations__ if name in inputs}
    seen = np.zeros((token_count(inputs["query"]), token_count(inputs["key"])), bool)
    for b, t, u in sequences(inputs["query_starts"], inputs["key_starts"]):
        size = t.stop - t.start, u.stop - u.start
        seen[t, u] = visible_keys(1, *size, **of_sequence(b, **options))[0]
    return seen


def token_count(x: ndarray) -> int:
    return int(x.shape[0] if x.ndim == 3 else x.shape[2])


def of_no_sequence(starts: ndarray, count: int) -> ndarray:
    """Tell of each token whether it lies before the first or behind the last sequence."""
    at = np.arange(count)
    return np.logical_or(at < starts[0], at >= starts[-1])


def fit_lengths(inputs: Inputs) -> Inputs:
    """Let no length be more than the keys of its sequence."""
    if "query_starts" not in inputs or inputs.get("lengths") is None:
        return inputs
    return inputs | {"lengths": np.minimum(inputs["lengths"], np.diff(inputs["key_starts"]))}
