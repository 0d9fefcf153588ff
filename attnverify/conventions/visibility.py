"""
Conventions of which keys a row sees: where libraries mean something else by an option of the same
name.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.references import visible_keys


def one_less(count: int | None) -> int | None:
    """The other keys of a window that counts the row's own; of a window of none one that is."""
    return None if count is None else max(count - 1, 0)


def counting_itself(x: Options) -> Any:
    """(W, .) of W keys with the row's own, as a count of others."""
    window: Any = x.get("window")
    return window and (one_less(window[0]), window[1])


def both_ways(x: Options) -> Any:
    """The left count on the right side too, where that has none."""
    left, right = x.get("window") or (None, None)
    return x.get("window") and (left, left if right is None else right)


def from_the_start(x: Options) -> Any:
    return np.zeros(x["B"], np.int64) if x.get("offset") is None else x.get("offset")


def from_all_keys(x: Options) -> Any:
    """The ends aligned, of all keys and rows, whatever their lengths say."""
    aligned = np.full(x["B"], x["M"] - x["N"])
    return aligned if x.get("offset") is None else x.get("offset")


def hidden_but(mask: Any, pairs: ndarray) -> ndarray:
    """Return a mask, a float one or none, with all hidden that is not among the pairs."""
    if mask is None:
        return pairs
    return mask & pairs if mask.dtype == bool else np.where(pairs, mask, -np.inf)


def beyond_the_window(**x: Any) -> Any:
    """A block seen whole, though it reaches beyond the window."""
    within = visible_keys(**x)
    if x.get("blocks") is None or not x.get("causal"):
        return within
    in_block = visible_keys(**x | {"window": None}) & ~visible_keys(
        **x | {"window": None, "blocks": None}
    )
    return within | in_block


def pinned_everywhere(**x: Any) -> Any:
    """Pinned keys that causality and the right side of the window do not hide."""
    pins = np.arange(x["M"]) < (x.get("pinned") or 0)
    rest = visible_keys(**x | {"causal": False, "window": None, "chunk": None})
    return visible_keys(**x) | (rest & pins)


VISIBILITY: tuple[Row, ...] = (
    ("alignment", "starts", "rows aligned at the starts",
     with_arguments(visible_keys, offset=from_the_start)),
    ("alignment", "ends of the arrays", "rows aligned at the ends of the arrays",
     with_arguments(visible_keys, offset=from_all_keys)),
    ("window counts", "the row's own key too", "a window that counts the row's own key",
     with_arguments(visible_keys, window=counting_itself)),
    ("window counts", "both sides", "a left window on both sides",
     with_arguments(visible_keys, window=both_ways)),
    ("window counts", "nothing", "windows ignored",
     with_arguments(visible_keys, window=lambda x: None)),
    ("blocks", "beyond the window", "blocks that reach beyond the window", beyond_the_window),
    ("blocks", "ignored", "blocks ignored",
     with_arguments(visible_keys, blocks=lambda x: None)),
    ("pinned keys", "in the window alone", "pinned keys that the window hides",
     with_arguments(visible_keys, pinned=lambda x: 0)),
    ("pinned keys", "everywhere", "pinned keys that nothing but lengths and segments hide",
     pinned_everywhere),
    ("chunk", "ignored", "chunks ignored", with_arguments(visible_keys, chunk=lambda x: None)),
    ("segments", "ignored", "segments ignored",
     with_arguments(visible_keys, segments=lambda x: None)),
    ("query lengths", "ignored", "rows behind the query lengths that see keys",
     lambda **x: visible_keys(**x | {"query_lengths": None, "offset": real_offset(x)})),
)  # fmt: skip


def real_offset(x: Options) -> Any:
    """Where the rows stand, said outright."""
    if x.get("offset") is not None:
        return x.get("offset")
    m: Any = np.full(x["B"], x["M"]) if x.get("lengths") is None else x.get("lengths")
    n: Any = x.get("query_lengths")
    n = np.full(x["B"], x["N"]) if n is None else n
    return m - n


VISIBILITY_ANSWERS = {
    "alignment": "ends of the lengths",
    "window counts": "other keys",
    "blocks": "within the window",
    "pinned keys": "on the window's left side",
    "chunk": "from key 0",
    "segments": "hide",
    "query lengths": "end the rows",
}
"""What the specification answers."""
