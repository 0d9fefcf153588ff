"""Conventions of chosen blocks: what a choice names, and what none is."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.caches.latents import ALSO_GROUPED
from attnverify.conventions.grouping import GROUPING_ANSWERS, from_the_start, rows_of_results
from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.conventions.visibility import both_ways, counting_itself

selected_attention = reference_of("selected_attention")
changed = partial(with_arguments, selected_attention)


def heads_of_group(x: Options) -> int:
    return int(x["query"].shape[1] // x["key"].shape[1])


def block_count(x: Options) -> int:
    return int(-(-x["key"].shape[2] // x["block"]))


def chosen(x: Options, selection: Any = None, of_key: Any = None) -> ndarray:
    """
    Which rows have chosen which keys [B H N M], by these choices, which may be any numbers, where
    each key has the number that a choice of it names.
    """
    choices = x["selection"] if selection is None else selection
    of_key = np.arange(x["key"].shape[2]) // x["block"] if of_key is None else of_key
    found = np.zeros((*choices.shape[:3], len(of_key)), bool)
    for j in range(choices.shape[-1]):
        found |= choices[..., j, None] == of_key
    return np.repeat(found, heads_of_group(x), axis=1)


def under(pairs: Any, grouped: str = "grouped_attention") -> Any:
    """The attention, or its gradient, of grouped heads under a mask of which keys are chosen."""

    def call(**x: Any) -> Any:
        rest = {name: y for name, y in x.items() if name not in ("selection", "block")}
        return reference_of(grouped)(**rest | {"mask": pairs(x)})

    return call


def from_own_number(x: Options) -> ndarray:
    """A block that begins at the key of its number."""
    found = chosen(x, of_key=np.arange(x["key"].shape[2]))
    for step in range(1, min(x["block"], found.shape[-1])):
        found[..., step:] |= chosen(x, of_key=np.arange(found.shape[-1]))[..., :-step]
    return found


def last_for_none(x: Options) -> ndarray:
    return chosen(x, np.where(x["selection"] < 0, block_count(x) - 1, x["selection"]))


def first_for_none(x: Options) -> ndarray:
    return chosen(x, np.maximum(x["selection"], 0))


def first_away_for_none(x: Options) -> ndarray:
    """The choices written one after the other, -1 as a first block that is not chosen."""
    found, backwards = chosen(x), x["selection"][..., ::-1]
    last = np.argmax(backwards <= 0, axis=-1)[..., None]
    away = np.take_along_axis(backwards, last, axis=-1) < 0
    found[..., : x["block"]] &= ~np.repeat(away, heads_of_group(x), axis=1)
    return found


def up_to_none(x: Options) -> ndarray:
    """The choices in front of the first -1."""
    ended = np.logical_or.accumulate(x["selection"] < 0, axis=-1)
    return chosen(x, np.where(ended, -1, x["selection"]))


def all_for_none(x: Options) -> ndarray:
    """Every key where a row has chosen nothing."""
    found = chosen(x)
    return np.logical_or(found, ~found.any(-1, keepdims=True))


def heads_in_turn(x: Options) -> ndarray:
    """The choices of head h mod G for query head h."""
    return np.concatenate([chosen(x)[:, :: heads_of_group(x)]] * heads_of_group(x), axis=1)


SELECTING: tuple[Row, ...] = (
    ("a choice", "the number of its first key", "choices that are numbers of keys",
     under(from_own_number)),
    ("a choice", "nothing", "every key seen, whatever is chosen",
     under(lambda x: np.ones_like(chosen(x)))),
    ("-1", "the last block", "-1 read as the last block", under(last_for_none)),
    ("-1", "the first block", "-1 read as the first block", under(first_for_none)),
    ("-1", "the first block, not chosen", "a -1 behind a chosen first block that takes it away",
     under(first_away_for_none)),
    ("-1", "the end of the choices", "choices that end at the first -1", under(up_to_none)),
    ("a row that chooses nothing", "sees all keys", "all keys where a row chooses nothing",
     under(all_for_none)),
    ("choices of heads", "in turn", "choices that query heads read in turn", under(heads_in_turn)),
    ("alignment", "starts", "rows aligned at the starts", changed(offset=from_the_start)),
    ("window counts", "the row's own key too", "a window that counts the row's own key",
     changed(window=counting_itself)),
    ("window counts", "both sides", "a left window on both sides", changed(window=both_ways)),
    ("window counts", "nothing", "windows ignored", changed(window=lambda x: None)),
    *rows_of_results(selected_attention),
    ("a scale", "ignored", "a given scale ignored", changed(scale=lambda x: None)),
)  # fmt: skip

SELECTING_ANSWERS = {
    "a choice": "the number of a block",
    "-1": "nothing",
    "a row that chooses nothing": "sees no key",
    "choices of heads": "of the head of keys that they read",
} | {asked: GROUPING_ANSWERS[asked] for asked in (*ALSO_GROUPED, "a scale")}
"""What the specification answers."""
