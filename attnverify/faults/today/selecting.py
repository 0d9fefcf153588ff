"""Faults of chosen blocks: which block is read, where it begins and ends, and what none is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.conventions.caches.selecting import (
    block_count,
    changed,
    chosen,
    heads_of_group,
    under,
)
from attnverify.conventions.layer_rows import Options
from attnverify.conventions.references import reference_of, visible_keys
from attnverify.faults.registry import add_conventional, add_faults
from attnverify.faults.today.options import (
    answering,
    length_by,
    of_maximum,
    placed,
    sink_by,
    transposed_lse,
)
from attnverify.inputs.masks import seen_pairs

attention = reference_of("selected_attention")
answered = partial(answering, attention)
CHOSEN, NONE, LAST, PLACES, ABSENT, NUMBERS = (
    f"selected_attention, clause {number}" for number in (1, 2, 4, 5, 6, 7)
)


def choices(change: Callable[[ndarray, Options], ndarray]) -> Any:
    """Other choices, which may be any numbers."""
    return under(lambda x: chosen(x, change(x["selection"], x)))


def moved(step: int) -> Callable[[ndarray, Options], ndarray]:
    return lambda s, x: np.where(s < 0, s, s + step)


def first_of(axis: int) -> Callable[[ndarray, Options], ndarray]:
    """The choices of the first entry, head of keys or row for all."""
    return lambda s, x: np.broadcast_to(s.take([0], axis), s.shape)


def while_rising(s: ndarray, x: Options) -> ndarray:
    """The choices up to where a number falls."""
    fallen = np.diff(s, axis=-1, prepend=-1) < 0
    return np.where(np.logical_or.accumulate(fallen, axis=-1), -1, s)


def of_blocks(size: Callable[[Options], int]) -> Any:
    """Blocks of another size."""
    return under(lambda x: chosen(x, of_key=np.arange(x["key"].shape[2]) // size(x)))


def within(keep: Callable[[ndarray, Options], ndarray]) -> Any:
    """The keys of a chosen block that stand at some places in it."""

    def pairs(x: Options) -> ndarray:
        place = np.arange(x["key"].shape[2]) % x["block"]
        return np.logical_and(chosen(x), keep(place, x))

    return under(pairs)


def one_key_more(x: Options) -> ndarray:
    """The key behind each chosen block too."""
    found = chosen(x)
    found[..., 1:] |= found[..., :-1].copy()
    return found


def without_last(x: Options) -> ndarray:
    """The last block lost where it is short."""
    M = x["key"].shape[2]
    return np.logical_and(chosen(x), np.arange(M) < M // x["block"] * x["block"])


def from_the_end(x: Options) -> ndarray:
    """Blocks of which the first is short."""
    behind = np.arange(x["key"].shape[2])[::-1] // x["block"]
    return chosen(x, of_key=block_count(x) - 1 - behind)


def full_last_block(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """A last block that is padded with keys and values of zeros."""
    missing = -x["key"].shape[2] % x["block"]
    if not missing:
        return output, lse
    took = np.repeat((x["selection"] == block_count(x) - 1).any(-1), heads_of_group(x), axis=1)
    whole = np.where(took, np.logaddexp(lse, np.log(missing)), lse)
    with np.errstate(all="ignore"):
        share = np.where(took, np.exp(lse - whole), 1.0)
    return output * share[..., None], whole


def causal_by_blocks(**x: Any) -> Any:
    """Causality that looks at the first key of each block."""
    B, (N, M) = len(x["query"]), (x["query"].shape[2], x["key"].shape[2])
    names = ("causal", "offset", "lengths", "query_lengths", "blocks")
    start = np.arange(M) // x["block"] * x["block"]
    seen = visible_keys(B, N, M, **{name: x[name] for name in names if name in x})
    own = under(lambda y: chosen(y) & seen[:, None][..., start])
    return own(**x | {"causal": False})


def not_rescaled(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """Blocks added in the order of their choice, beside the largest so far, and never rescaled."""
    top, total = np.full(lse.shape, -np.inf), np.zeros(lse.shape)
    summed, own = np.zeros(output.shape), x
    for j in range(x["selection"].shape[-1]):
        part, level = attention(**own | {"selection": x["selection"][..., j : j + 1]})
        top = np.maximum(top, level)
        share = np.exp(level - np.where(top == -np.inf, 0, top))
        summed, total, own = summed + share[..., None] * part, total + share, x | {"sink": None}
    there = total > 0
    return summed / np.where(there, total, 1)[..., None], np.where(there, top + np.log(
        np.where(there, total, 1)), -np.inf)  # fmt: skip


def times_zero(name: str) -> Any:
    """0 times what stands in keys that no row of the entry sees."""

    def leaking(output: ndarray, lse: ndarray, **x: Any) -> Any:
        seen = seen_pairs(CATALOGUE["selected_attention"], x)
        rows = np.any(seen.reshape(*x["key"].shape[:2], -1, x["key"].shape[2]), axis=2)
        hidden = np.where(rows[..., None], 0.0, x[name])
        return output + 0 * hidden.sum((1, 2, 3))[:, None, None, None], lse

    return answered(leaking)


def sink_lost(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """An lse of minus infinity where a row chooses nothing."""
    nothing = np.repeat((x["selection"] < 0).all(-1), heads_of_group(x), axis=1)
    return output, np.where(nothing, -np.inf, lse)


add_faults("blocks", (
    ("selected_attention_next_block", "the block behind each choice", "this project", CHOSEN,
     "M > block", choices(moved(1))),
    ("selected_attention_block_before", "the block in front of each choice", "this project",
     CHOSEN, "M > block", choices(moved(-1))),
    ("selected_attention_of_first_entry", "the choices of the first entry for all",
     "this project", CHOSEN, "B > 1", choices(first_of(0))),
    ("selected_attention_of_first_group", "the choices of the first head of keys for all",
     "this project", CHOSEN, "G > 1", choices(first_of(1))),
    ("selected_attention_of_next_group", "the choices of the next head of keys", "this project",
     CHOSEN, "G > 1", choices(lambda s, x: np.roll(s, -1, axis=1))),
    ("selected_attention_of_first_row", "the choices of the first row for all", "this project",
     CHOSEN, "N > 1", choices(first_of(2))),
    ("selected_attention_of_tile", "the choices of the first of two rows for both",
     "this project", CHOSEN, "N > 1",
     choices(lambda s, x: s[:, :, np.arange(s.shape[2]) // 2 * 2])),
    ("selected_attention_rows_before_heads", "a selection of [B N G J] read as [B G N J]",
     "this project", CHOSEN, "G > 1, N > 1",
     choices(lambda s, x: np.asarray(s.swapaxes(1, 2).reshape(s.shape)))),
    ("selected_attention_blocks_twice_as_long", "blocks of twice as many keys", "this project",
     CHOSEN, "M > block", of_blocks(lambda x: 2 * x["block"])),
    ("selected_attention_blocks_one_longer", "blocks of one key more", "this project", CHOSEN,
     "M > block", of_blocks(lambda x: x["block"] + 1)),
    ("selected_attention_blocks_of_sixteen", "16 keys for every block", "this project", CHOSEN,
     "another size", of_blocks(lambda x: 16)),
    ("selected_attention_last_key_of_block_lost", "the last key of each block lost",
     "this project", CHOSEN, "block > 1",
     within(lambda place, x: (place < x["block"] - 1) | (x["block"] == 1))),
    ("selected_attention_first_key_of_block_alone", "the first key of each block alone",
     "this project", CHOSEN, "block > 1", within(lambda place, x: place == 0)),
    ("selected_attention_one_key_more", "the key behind each block seen too", "this project",
     CHOSEN, "M > block", under(one_key_more)),
    ("selected_attention_last_choice_lost", "the last choice lost", "this project", CHOSEN,
     "J > 1", choices(lambda s, x: np.where(np.arange(s.shape[-1]) == max(s.shape[-1] - 1, 1), -1,
      s))),
    ("selected_attention_first_choice_alone", "the first choice alone", "this project", CHOSEN,
     "J > 1", choices(lambda s, x: s[..., :1])),
    ("selected_attention_sorted_choices", "choices lost from where their numbers fall",
     "this project", NONE, "choices in no order", choices(while_rising)),
    ("selected_attention_not_rescaled", "blocks summed up without rescaling the earlier ones",
     "this project", NONE, "J > 1", answered(not_rescaled)),
    ("selected_attention_short_block_lost", "the last block lost where it is short",
     "this project", LAST, "a short last block", under(without_last)),
    ("selected_attention_short_block_full", "a short last block padded with keys of zeros",
     "this project", LAST, "a short last block", answered(full_last_block)),
    ("selected_attention_blocks_from_the_end", "blocks counted from the last key",
     "this project", LAST, "a short last block", under(from_the_end)),
    ("selected_attention_causal_by_blocks", "causality of whole blocks", "this project", PLACES,
     "causal, block > 1", causal_by_blocks),
    ("selected_attention_causal_forgotten", "causality ignored", "tt-metal #48899", PLACES,
     "causal", changed(causal=lambda x: False)),
    ("selected_attention_last_key_lost", "the last key of each length lost", "sglang #32087",
     PLACES, "lengths", placed(attention, lengths=partial(length_by, -1))),
    ("selected_attention_key_behind", "the key behind each length seen", "this project", PLACES,
     "lengths", placed(attention, lengths=partial(length_by, 1))),
    ("selected_attention_hidden_key_times_zero", "0 times a key that nobody has chosen",
     "vllm #43961", ABSENT, "NaN in a hidden key", times_zero("key")),
    ("selected_attention_hidden_value_times_zero", "0 times a value that nobody has chosen",
     "vllm #43961", ABSENT, "NaN in a hidden value", times_zero("value")),
    ("selected_attention_sink_of_each_block", "a sink counted by each choice",
     "cudnn-frontend #768", NUMBERS, "sink, J > 1",
     changed(sink=sink_by(lambda sink, x: sink + np.log(x["selection"].shape[-1])))),
    ("selected_attention_sink_of_next_head", "the sink of the next head", "modular #6591",
     NUMBERS, "sink, H > 1", changed(sink=sink_by(lambda sink, x: np.roll(sink, 1)))),
    ("selected_attention_cap_of_fifty", "50 for every cap", "vllm-metal #665", NUMBERS,
     "soft_cap", changed(soft_cap=lambda x: x.get("soft_cap") and 50.0)),
    ("selected_attention_transposed_lse", "an lse of [B N H] read as [B H N]",
     "vllm-xpu-kernels #479", NUMBERS, "H > 1, N > 1", answered(transposed_lse)),
    ("selected_attention_lse_of_maximum", "an lse without the number of keys", "this project",
     NUMBERS, "J > 1", answered(partial(of_maximum, attention))),
    ("selected_attention_sink_lost_in_empty_rows", "an lse of minus infinity for that of the sink",
     "flash-attention #2706", NUMBERS, "sink, rows that choose nothing", answered(sink_lost)),
))  # fmt: skip
add_conventional("blocks", (
    ("selected_attention_numbers_of_keys", "a choice", "the number of its first key",
     "this project", CHOSEN, "block > 1"),
    ("selected_attention_of_all_keys", "a choice", "nothing", "this project", CHOSEN, "M > block"),
    ("selected_attention_choices_in_turn", "choices of heads", "in turn", "HipKittens #22", CHOSEN,
     "1 < G < H"),
    ("selected_attention_last_block_for_none", "-1", "the last block", "this project", NONE, "-1"),
    ("selected_attention_first_block_for_none", "-1", "the first block", "vllm #57158", NONE,
     "-1"),
    ("selected_attention_up_to_none", "-1", "the end of the choices", "this project", NONE,
     "-1 in front of a choice"),
    ("selected_attention_all_for_none", "a row that chooses nothing", "sees all keys",
     "this project", NUMBERS, "rows that choose nothing"),
    ("selected_attention_top_left", "alignment", "starts", "sparkinfer #3", PLACES,
     "causal, more keys than queries"),
    ("selected_attention_window_of_itself", "window counts", "the row's own key too",
     "transformers #39408", PLACES, "a left window"),
    ("selected_attention_two_sided_window", "window counts", "both sides", "LightLLM #1312",
     PLACES, "a left window"),
    ("selected_attention_without_window", "window counts", "nothing", "mistral.rs #2094", PLACES,
     "a window"),
    ("selected_attention_without_cap", "soft cap", "none", "sglang #33915", NUMBERS, "soft_cap"),
    ("selected_attention_without_sink", "sink", "none", "modular #6591", NUMBERS, "sink"),
    ("selected_attention_lse_without_sink", "sink in the lse", "left out", "FlashMLA's lse",
     NUMBERS, "sink"),
    ("selected_attention_lse_of_base_two", "lse base", "2 returned", "pytorch #181645", NUMBERS,
     "any"),
    ("selected_attention_nan_of_empty_rows", "a row of no key", "NaN", "flashinfer #3047", NUMBERS,
     "rows without keys"),
    ("selected_attention_plus_infinity", "a row of no key", "plus infinity", "FlashMLA's lse",
     NUMBERS, "rows without keys"),
    ("selected_attention_scale_ignored", "a scale", "ignored", "this project", NUMBERS, "scale"),
))  # fmt: skip
