"""Conventions of sequences that lie end to end: who sees whom, and what rows of none are."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import POOLS, apart, heads_first, packed_pairs
from attnverify.conventions.grouping import in_turns, rows_of_results
from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.conventions.visibility import both_ways, counting_itself
from attnverify.spec.packed import OfSequences

packed_attention = reference_of("packed_attention")
changed = partial(with_arguments, packed_attention)
grouped = {name: reference_of(f"grouped_attention{name}") for name in ("", "_grad")}
LEFT_OUT = (
    *("query_starts", "key_starts", "page_table", *POOLS.values()),
    *OfSequences.__annotations__,
)
"""What the pairs are made of."""


def seeing(pairs: Callable[[Options], ndarray], gradient: bool = False, once: bool = False) -> Any:
    """
    The attention, or its gradient, of all tokens in which these pairs [T U] see each other; of a
    pool each slot is a token, ``once`` however often a sequence sees its page.
    """

    def attention(**given: Any) -> Any:
        x = given if once else dict(apart(given))
        whole = {name: y for name, y in heads_first(x).items() if name not in LEFT_OUT}
        found = grouped["_grad" if gradient else ""](**whole, mask=pairs(x))
        return tuple(y if y.ndim == 1 else y[0].swapaxes(0, 1) for y in found)

    return attention


def sizes(x: Options) -> tuple[ndarray, ndarray]:
    """The queries and the keys of each sequence."""
    return np.diff(x["query_starts"]), np.diff(x["key_starts"])


def starts_aligned(x: Options) -> ndarray:
    given: ndarray | None = x.get("offset")
    return 0 * sizes(x)[0] if given is None else given


def ends_of_all_keys(x: Options) -> Any:
    """Rows that stand where they would with every key of their sequence there."""
    n, m = sizes(x)
    return m - n if x.get("offset") is None else x["offset"]


def as_the_longest(x: Options) -> Any:
    """The rows of each sequence where those of the most queries stand before the most keys."""
    n, m = sizes(x)
    m = m if x.get("lengths") is None else x["lengths"]
    longest = m.max(initial=0) - n.max(initial=0)
    return np.full(len(n), longest) if x.get("offset") is None else x["offset"]


def in_the_whole_array(x: Options) -> ndarray:
    """Pairs of a sequence whose positions are those in the two arrays."""
    plain = {"causal": False, "window": None, "chunk": None, "pinned": 0}
    p, j = np.arange(len(x["query"]))[:, None], np.arange(len(x["key"]))
    p = p + len(j) - len(p)
    seen = packed_pairs(x | plain)
    left, right = x.get("window") or (None, None)
    if x.get("causal"):
        seen = seen & (j <= p)
    if left is not None:
        seen = seen & ((j >= p - left) | (j < x.get("pinned", 0)))
    if right is not None:
        seen = seen & (j <= p + right)
    return seen if x.get("chunk") is None else seen & (j // x["chunk"] == p // x["chunk"])


AS_ONE: dict[str, Callable[[Options], Any]] = {
    "query_starts": lambda x: np.array([0, len(x["query"])]),
    "key_starts": lambda x: np.array([0, len(x["key"])]),
    "lengths": lambda x: None,
    "offset": lambda x: None,
}
"""All tokens as one sequence."""


def cut_once(**given: Any) -> Any:
    """Those behind the first sequence as one, where they are several."""
    names, several = ("query_starts", "key_starts"), len(given["query_starts"]) > 3
    starts = {name: np.r_[given[name][:2], given[name][-1:]] for name in names}
    merged = given | starts | {"lengths": None, "offset": None}
    return packed_attention(**merged if several else given)


PACKING: tuple[Row, ...] = (
    ("sequences", "one", "sequences that see each other", changed(**AS_ONE)),
    ("sequences", "the first alone", "sequences behind the first that see each other",
     cut_once),
    ("alignment", "starts", "each sequence aligned at its start", changed(offset=starts_aligned)),
    ("alignment", "ends of all keys", "rows aligned at the end of all keys, whatever the lengths",
     changed(offset=ends_of_all_keys)),
    ("alignment", "of the longest", "each sequence aligned as the longest ones of the call, at "
     "max(M) - max(N)", changed(offset=as_the_longest)),
    ("positions", "in the whole array", "positions counted through all sequences",
     seeing(in_the_whole_array)),
    ("lengths", "ignored", "lengths ignored", changed(lengths=lambda x: None)),
    ("shared heads", "in turn", "query heads that read the heads of keys in turn",
     changed(**in_turns("key", "value"))),
    ("window counts", "the row's own key too", "a window that counts the row's own key",
     changed(window=counting_itself)),
    ("window counts", "both sides", "a left window on both sides", changed(window=both_ways)),
    ("window counts", "nothing", "windows ignored", changed(window=lambda x: None)),
    *rows_of_results(packed_attention),
    ("a scale", "ignored", "a given scale ignored", changed(scale=lambda x: None)),
)  # fmt: skip

PACKING_ANSWERS = {
    "sequences": "each alone",
    "alignment": "ends of the lengths",
    "positions": "in the sequence",
    "lengths": "used",
    "shared heads": "neighbours",
    "window counts": "other keys",
    "soft cap": "scores alone",
    "sink": "a logit",
    "sink in the lse": "in it",
    "lse base": "e",
    "a row of no key": "0 and minus infinity",
    "a scale": "used",
}
"""What the specification answers."""
