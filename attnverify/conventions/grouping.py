"""
Conventions of attention today: which heads share, what the cap bends, what an lse holds, and what
a row is that saw no key; those of merging parts too.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.references import reference_of, visible_keys
from attnverify.conventions.visibility import both_ways, counting_itself, hidden_but

grouped_attention, merge_attention = map(reference_of, ("grouped_attention", "merge_attention"))
LN2 = float(np.log(2.0))
changed = partial(with_arguments, grouped_attention)


def in_turns(*names: str, axis: int = 1) -> Any:
    """The heads of keys and values repeated as a whole: head h reads head h mod G."""

    def repeated(name: str, x: Options) -> ndarray:
        return np.concatenate([x[name]] * (x["query"].shape[1] // x[name].shape[axis]), axis)

    return {name: partial(repeated, name) for name in names}


def from_the_start(x: Options) -> Any:
    given = x.get("offset")
    return np.zeros(len(x["query"]), np.int64) if given is None else given


def without_own_key(x: Options) -> Any:
    """The mask, and the row's own key hidden where the window has no other on its left."""
    mask, (left, _) = x.get("mask"), x.get("window") or (None, None)
    if left != 0:
        return mask
    given = {name: x.get(name) for name in ("offset", "lengths", "query_lengths")}
    shape = len(x["query"]), x["query"].shape[2], x["key"].shape[2]
    others = ~visible_keys(**dict(zip("BNM", shape, strict=True)), window=(0, 0), **given)[:, None]
    return hidden_but(mask, others)


def behind_the_mask(**x: Any) -> Any:
    """Scores that are capped with the float mask in them."""
    mask, cap = x.get("mask"), x.get("soft_cap")
    if mask is None or cap is None or mask.dtype == bool:
        return grouped_attention(**x)
    r = x["query"].shape[1] // x["key"].shape[1]
    factor = x.get("scale") or x["query"].shape[-1] ** -0.5
    score = x["query"] @ np.repeat(x["key"], r, axis=1).mT * factor
    with np.errstate(all="ignore"):
        capped = np.where(mask == -np.inf, mask, cap * np.tanh((score + mask) / cap))
    return grouped_attention(**x | {"mask": capped, "soft_cap": None, "query": 0 * x["query"]})


def base_two_returned(function: Any, /, **x: Any) -> Any:
    output, lse = function(**x)
    return output, lse / LN2


def empty_rows(function: Any, output: float, lse: float, /, **x: Any) -> Any:
    """Other numbers for a row that sees no key, where there is no sink."""
    found = function(**x)
    empty = found[1] == -np.inf
    return np.where(empty[..., None], output, found[0]), np.where(empty, lse, found[1])


def rows_of_results(function: Any) -> tuple[Row, ...]:
    """What every attention of today may mean otherwise by its numbers and its lse."""
    changed = partial(with_arguments, function)
    return (
        ("soft cap", "none", "soft caps ignored", changed(soft_cap=lambda x: None)),
        ("sink", "none", "sinks ignored", changed(sink=lambda x: None)),
        ("sink in the lse", "left out", "an lse without the sink", (lambda **x: (function(**x)[0],
         function(**x | {"sink": None})[1]))),
        ("lse base", "2 returned", "an lse that is returned to base 2",
         partial(base_two_returned, function)),
        ("a row of no key", "NaN", "NaN where a row sees no key",
         partial(empty_rows, function, np.nan, np.nan)),
        ("a row of no key", "plus infinity", "an lse of plus infinity where a row sees no key",
         partial(empty_rows, function, 0.0, np.inf)),
    )  # fmt: skip


def of_base_two(outputs: ndarray, lses: ndarray) -> Any:
    """Logarithms to base 2, given and returned."""
    output, lse = merge_attention(outputs, lses * LN2)
    return output, lse / LN2


def looked_at(outputs: ndarray, lses: ndarray, everywhere: bool = False) -> Any:
    """Absent parts multiplied by 0, so that NaN in them comes through."""
    output, lse = merge_attention(outputs, lses)
    absent = (lses == -np.inf) & (everywhere | (lses > -np.inf).any(axis=0))
    return output + (0 * np.where(absent[..., None], outputs, 0)).sum(axis=0), lse


GROUPING: tuple[Row, ...] = (
    ("shared heads", "in turn", "query heads that read the heads of keys in turn",
     changed(**in_turns("key", "value"))),
    ("alignment", "starts", "rows aligned at the starts", changed(offset=from_the_start)),
    ("window counts", "the row's own key too", "a window that counts the row's own key",
     changed(window=counting_itself)),
    ("window counts", "the row's own key too, none at 0",
     "a window that counts the row's own key, of none where it is 0",
     changed(window=counting_itself, mask=without_own_key)),
    ("window counts", "both sides", "a left window on both sides", changed(window=both_ways)),
    ("window counts", "nothing", "windows ignored", changed(window=lambda x: None)),
    ("soft cap", "behind the mask", "scores capped with the mask in them", behind_the_mask),
    *rows_of_results(grouped_attention),
    ("a row of no key", "-5e4", "an lse of -5e4 where a row sees no key",
     partial(empty_rows, grouped_attention, 0.0, -5e4)),
    ("a scale", "ignored", "a given scale ignored", changed(scale=lambda x: None)),
)  # fmt: skip

GROUPING_ANSWERS = {
    "shared heads": "neighbours",
    "alignment": "ends of the lengths",
    "window counts": "other keys",
    "soft cap": "scores alone",
    "sink": "a logit",
    "sink in the lse": "in it",
    "lse base": "e",
    "a row of no key": "0 and minus infinity",
    "a scale": "used",
}

MERGING: tuple[Row, ...] = (
    ("lse base", "2", "logarithms to base 2", of_base_two),
    ("lse base", "2 returned", "an lse that is returned to base 2",
     partial(base_two_returned, merge_attention)),
    ("a row of no key", "NaN", "NaN where no part saw a key",
     partial(empty_rows, merge_attention, np.nan, np.nan)),
    ("a row of no key", "plus infinity", "an lse of plus infinity where no part saw a key",
     partial(empty_rows, merge_attention, 0.0, np.inf)),
    ("a row of no key", "-5e4", "an lse of -5e4 where no part saw a key",
     partial(empty_rows, merge_attention, 0.0, -5e4)),
    ("absent parts", "multiplied by 0", "absent parts multiplied by 0", looked_at),
    ("absent parts", "multiplied by 0 in every row",
     "absent parts multiplied by 0, in rows that no part saw too",
     partial(looked_at, everywhere=True)),
)  # fmt: skip

MERGING_ANSWERS = {
    "lse base": "e",
    "a row of no key": "0 and minus infinity",
    "absent parts": "not looked at",
}
"""What the specification answers."""
