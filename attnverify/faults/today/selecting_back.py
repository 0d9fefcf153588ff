"""Faults of chosen blocks in a backward pass: what reaches the keys of a block, and from whom."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.caches.selecting import (
    chosen,
    heads_of_group,
    last_for_none,
    under,
    up_to_none,
)
from attnverify.conventions.layer_rows import Options, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.faults.registry import add_faults
from attnverify.faults.today.grouping import without_cap_slope
from attnverify.faults.today.options import hidden_times_zero, last_head, sent_by, times
from attnverify.faults.today.selecting import first_of, moved, without_last

gradient = reference_of("selected_attention_grad")
BACK = "selected_attention_grad"
back = partial(with_arguments, gradient)
RECEIVES, WEIGHTS, NOTHING, LIKE_GROUPED = (f"{BACK}, clause {number}" for number in (1, 2, 3, 4))


def back_under(pairs: Callable[[Options], ndarray]) -> Any:
    return under(pairs, "grouped_attention_grad")


def last_row(x: Options) -> ndarray:
    N = x["query"].shape[2]
    return (np.arange(N) == N - 1)[None]


def capped_as_by_one(**x: Any) -> Any:
    """A cap whose slope is left out."""
    rest = {name: y for name, y in x.items() if name not in ("selection", "block")}
    as_floats = np.where(chosen(x), 0.0, -np.inf)
    found = reference_of("grouped_attention_grad")(**rest | {"mask": as_floats})
    return *without_cap_slope([*found[:3]], **rest | {"mask": as_floats}), *found[4:]


add_faults("backward", (
    (f"{BACK}_next_block", "a backward pass through the block behind each choice", "this project",
     RECEIVES, "M > block", back_under(lambda x: chosen(x, moved(1)(x["selection"], x)))),
    (f"{BACK}_of_first_group", "a backward pass by the choices of the first head of keys",
     "this project", RECEIVES, "G > 1",
     back_under(lambda x: chosen(x, first_of(1)(x["selection"], x)))),
    (f"{BACK}_keys_of_last_row", "a key's gradient from the last row alone", "this project",
     RECEIVES, "N > 1", partial(sent_by, gradient, 1, last_row)),
    (f"{BACK}_values_of_last_row", "a value's gradient from the last row alone", "this project",
     RECEIVES, "N > 1", partial(sent_by, gradient, 2, last_row)),
    (f"{BACK}_keys_of_last_head", "a key's gradient from the last head of its group",
     "levanter #449", RECEIVES, "H > G", partial(sent_by, gradient, 1, last_head)),
    (f"{BACK}_mean_over_heads", "the mean over a group's heads in place of their sum",
     "prime-rl #2681", RECEIVES, "H > G", times(gradient, 1, lambda x: 1 / heads_of_group(x))),
    (f"{BACK}_short_block_lost", "a backward pass without a short last block", "this project",
     RECEIVES, "a short last block", back_under(without_last)),
    (f"{BACK}_of_all_keys", "a backward pass through all keys", "flash-attention #2623", WEIGHTS,
     "M > block", back_under(lambda x: np.ones_like(chosen(x)))),
    (f"{BACK}_up_to_none", "a backward pass whose choices end at the first -1", "this project",
     WEIGHTS, "-1 in front", back_under(up_to_none)),
    (f"{BACK}_last_block_for_none", "a backward pass that reads -1 as the last block",
     "this project", NOTHING, "-1", back_under(last_for_none)),
    (f"{BACK}_hidden_key_times_zero", "0 times a hidden key in the queries' gradient",
     "vllm #43961", NOTHING, "NaN in a hidden key",
     partial(hidden_times_zero, gradient, "key")),
    (f"{BACK}_causal_forgotten", "a backward pass without causality", "tt-metal #48899", WEIGHTS,
     "causal", back(causal=lambda x: False)),
    (f"{BACK}_window_ignored", "a backward pass without windows", "aiter #3158", WEIGHTS,
     "a window", back(window=lambda x: None)),
    (f"{BACK}_without_lse", "what arrives at the lse left out", "flash-attention #404",
     LIKE_GROUPED, "d_lse", back(d_lse=lambda x: 0 * x["d_lse"])),
    (f"{BACK}_lse_subtracted", "what arrives at the lse with the other sign", "this project",
     LIKE_GROUPED, "d_lse", back(d_lse=lambda x: -x["d_lse"])),
    (f"{BACK}_base_two", "what arrives at the lse times log 2", "attention-gym #200",
     LIKE_GROUPED, "d_lse", back(d_lse=lambda x: x["d_lse"] * float(np.log(2.0)))),
    (f"{BACK}_without_cap_slope", "a cap whose slope is left out", "this project", LIKE_GROUPED,
     "soft_cap", capped_as_by_one),
    (f"{BACK}_sink_missing", "a gradient of 0 by the sink", "flash-attention #1973", LIKE_GROUPED,
     "sink", times(gradient, 3, lambda x: 0.0)),
))  # fmt: skip
