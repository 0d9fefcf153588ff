"""Faults of sequences that lie end to end: whose keys a row sees, and from where it counts."""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import of_no_sequence, packed_pairs
from attnverify.conventions.layer_rows import Options, with_arguments
from attnverify.conventions.packing import (
    AS_ONE,
    changed,
    ends_of_all_keys,
    in_the_whole_array,
    seeing,
    sizes,
    starts_aligned,
)
from attnverify.conventions.references import reference_of
from attnverify.faults.registry import add_conventional, add_faults
from attnverify.faults.today.options import (
    answering,
    outside_unwritten,
    over_heads,
    receiving,
    sink_by,
    sink_receiving,
    transposed_lse,
)

attention, gradient = reference_of("packed_attention"), reference_of("packed_attention_grad")
OWN, PLACE, LENGTHS, EMPTY, OUTSIDE, REFUSED, NUMBERS = (
    f"packed_attention, clause {number}" for number in range(1, 8)
)
BACK = "packed_attention_grad"
back = partial(with_arguments, gradient)
answered, gradients = partial(answering, attention), partial(receiving, gradient)
sink_gradient = partial(sink_receiving, gradient)


def counted(x: Options) -> ndarray:
    """How many keys of each sequence are there."""
    given: ndarray | None = x.get("lengths")
    return sizes(x)[1] if given is None else given


def placed(x: Options) -> ndarray:
    """Where the rows of each sequence stand."""
    given: ndarray | None = x.get("offset")
    return counted(x) - sizes(x)[0] if given is None else given


def first_for_all(name: str, x: Options) -> Any:
    """The first sequence's option for every one, where it is given."""
    given = x.get(name)
    if given is None:
        return None
    first = np.full_like(given, given[0])
    return first if name == "offset" else np.minimum(first, sizes(x)[1])


def by_sequence(x: Options, starts: ndarray, count: int) -> ndarray:
    """The sequence of each token, -1 in none."""
    b = np.searchsorted(starts, np.arange(count), side="right") - 1
    return np.where(of_no_sequence(starts, count), -1, b)


def plain_pairs(x: Options, of_row: ndarray, of_key: ndarray) -> ndarray:
    """Pairs of one number that a right attention lets see each other, or whose row has no key."""
    same = (of_row[:, None] == of_key) & (of_row >= 0)[:, None]
    other = same & (by_sequence(x, x["key_starts"], len(of_key)) != of_row[:, None])
    return packed_pairs(x) & same | other


def next_sequence(x: Options) -> ndarray:
    """Each row over the keys of the sequence behind its own."""
    rows = by_sequence(x, x["query_starts"], len(x["query"]))
    keys = by_sequence(x, x["key_starts"], len(x["key"]))
    return np.asarray((rows >= 0)[:, None] & (rows[:, None] + 1 == keys))


def query_starts_for_keys(x: Options) -> ndarray:
    rows = by_sequence(x, x["query_starts"], len(x["query"]))
    return plain_pairs(x, rows, by_sequence(x, x["query_starts"], len(x["key"])))


def without_empty(x: Options) -> ndarray:
    """Sequences of no query left out of one list and not of the other."""
    starts = np.unique(x["query_starts"])
    rows = by_sequence(x, starts, len(x["query"]))
    return plain_pairs(x, rows, by_sequence(x, x["key_starts"], len(x["key"])))


def with_key_behind(x: Options) -> ndarray:
    """The key behind each sequence seen by its last row."""
    seen = packed_pairs(x)
    for end, last in zip(x["query_starts"][1:], x["key_starts"][1:], strict=True):
        if end and last < len(x["key"]):
            seen[end - 1, last] = True
    return seen


def with_last_row_before(x: Options) -> ndarray:
    """The last row of each sequence counted to the next one."""
    seen, moved = packed_pairs(x), x["query_starts"].copy()
    moved[1:-1] = np.maximum(moved[1:-1] - 1, moved[0])
    return packed_pairs(x | {"query_starts": np.sort(moved)}) if len(moved) > 2 else seen


def joined_outside(x: Options) -> Options:
    """The tokens in front and behind as part of the first and the last sequence."""
    found = {name: x[name].copy() for name in ("query_starts", "key_starts")}
    found["query_starts"][0], found["query_starts"][-1] = 0, len(x["query"])
    return found


def rows_outside(x: Options) -> ndarray:
    return of_no_sequence(x["query_starts"], len(x["query"]))


def values_times_zero(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """0 times what stands in tokens of no sequence."""
    outside = of_no_sequence(x["key_starts"], len(x["value"]))
    return output + 0 * x["value"][outside].sum(), lse


def pinned_everywhere(x: Options) -> ndarray:
    """Pinned keys of the first sequence alone."""
    seen, plain = packed_pairs(x), packed_pairs(x | {"pinned": 0})
    first = slice(*x["query_starts"][:2])
    plain[first] = seen[first]
    return plain


def sink_of_sequences(by_sink: ndarray, **x: Any) -> Any:
    """Rows of no sequence keep what arrives at their lse."""
    there = x["sink"] > -np.inf
    return by_sink - np.where(there, x["d_lse"][rows_outside(x)].sum(0), 0)


def sink_of_last(by_sink: ndarray, **x: Any) -> Any:
    """The last sequence's alone: the one that is written last."""
    t = slice(*x["query_starts"][-2:])
    alone = {name: np.zeros_like(x[name]) for name in ("d_output", "d_lse")}
    for name, d in alone.items():
        d[t] = x[name][t]
    return gradient(**x | alone)[-1]


def over_last(place: int) -> Any:
    """A gradient that the last sequence does not receive."""

    def change(found: list[ndarray], **x: Any) -> Any:
        starts = x["query_starts"] if place == 0 else x["key_starts"]
        found[place] = found[place].copy()
        found[place][slice(*starts[-2:])] = 0
        return found

    return gradients(change)


add_faults("blocks", (
    ("packed_attention_next_sequence", "the keys of the sequence behind", "this project", OWN,
     "B > 1", seeing(next_sequence)),
    ("packed_attention_query_starts_for_keys", "keys cut by the starts of the queries",
     "vllm-omni #5865", OWN, "starts that differ", seeing(query_starts_for_keys)),
    ("packed_attention_key_behind", "the key behind a sequence seen by its last row",
     "flash-attention #1537", OWN, "B > 1, or keys of no sequence", seeing(with_key_behind)),
    ("packed_attention_last_row_of_next", "the last row of a sequence counted to the next",
     "this project", OWN, "B > 1", seeing(with_last_row_before)),
    ("packed_attention_last_key_lost", "the last key of each sequence lost", "this project", OWN,
     "any", changed(lengths=lambda x: np.maximum(counted(x) - 1, 0), offset=placed)),
    ("packed_attention_empty_left_out", "sequences without a query left out of one list alone",
     "flashinfer #3047", EMPTY, "an empty sequence before others", seeing(without_empty)),
    ("packed_attention_first_lengths", "the first sequence's length for all", "sgl-flash-attn #29",
     LENGTHS, "lengths, B > 1", changed(lengths=partial(first_for_all, "lengths"), offset=placed)),
    ("packed_attention_first_offset", "the first sequence's offset for all", "vllm #36580",
     LENGTHS, "offset, B > 1", changed(offset=partial(first_for_all, "offset"))),
    ("packed_attention_offset_forgotten", "offsets ignored", "executorch #21749", LENGTHS,
     "offset", changed(offset=lambda x: None)),
    ("packed_attention_keys_of_longest_query", "keys beyond the longest sequence of queries lost",
     "nano-vllm #213", OWN, "more keys than queries",
     changed(lengths=lambda x: np.minimum(counted(x), max(int(sizes(x)[0].max(initial=0)), 1)),
      offset=placed)),
    ("packed_attention_pinned_once", "pinned keys of the first sequence alone", "cactus #688",
     PLACE, "pinned keys with a window, B > 1", seeing(pinned_everywhere)),
    ("packed_attention_causal_forgotten", "causality ignored", "tt-metal #48899", PLACE, "causal",
     changed(causal=lambda x: False)),
    ("packed_attention_chunk_forgotten", "chunks ignored", "vllm #36580", PLACE, "chunk",
     changed(chunk=lambda x: None)),
    ("packed_attention_outside_joined", "rows of no sequence joined to the nearest one",
     "this project", OUTSIDE, "rows of no sequence", lambda **x: attention(**x
      | joined_outside(x))),
    ("packed_attention_outside_unwritten", "rows of no sequence left as they were",
     "tilelang #2461", OUTSIDE, "rows of no sequence", answered(outside_unwritten)),
    ("packed_attention_outside_times_zero", "0 times what stands in keys of no sequence",
     "pytorch #176793", OUTSIDE, "NaN in keys of no sequence", answered(values_times_zero)),
    ("packed_attention_transposed_lse", "an lse of [H T] read as [T H]", "pytorch #187872",
     NUMBERS, "H > 1, T > 1", answered(transposed_lse)),
    ("packed_attention_sink_of_next_head", "the sink of the next head", "modular #6591", NUMBERS,
     "sink, H > 1", changed(sink=sink_by(lambda sink, x: np.roll(sink, 1)))),
    ("packed_attention_sink_of_sequences", "a sink counted by each sequence", "cudnn-frontend #768",
     NUMBERS, "sink, B > 1",
     changed(sink=sink_by(lambda sink, x: sink + np.log(len(x["query_starts"]) - 1)))),
    ("packed_attention_next_head", "the keys of the next group", "fla #1029", NUMBERS, "G > 1",
     changed(key=lambda x: np.roll(x["key"], 1, axis=1))),
    ("packed_attention_cap_of_fifty", "50 for every cap", "vllm-metal #665", NUMBERS, "soft_cap",
     changed(soft_cap=lambda x: x.get("soft_cap") and 50.0)),
    ("packed_attention_sink_lost_in_empty_rows", "an lse of minus infinity for that of the sink",
     "flash-attention #2706", EMPTY, "sink, rows without keys",
     answered(lambda output, lse, **x: (output, np.where((output == 0).all(-1), -np.inf, lse)))),
    ("packed_attention_scale_off", "a scale 2 % too large", "this project", NUMBERS, "any",
     changed(scale=lambda x: 1.02 * (x.get("scale") or x["query"].shape[-1] ** -0.5))),
))  # fmt: skip
add_faults("backward", (
    ("packed_attention_grad_as_one", "a backward pass in which sequences see each other",
     "this project", f"{BACK}, clause 1", "B > 1", back(**AS_ONE)),
    ("packed_attention_grad_whole_positions", "a backward pass of positions in the whole array",
     "this project", f"{BACK}, clause 1", "causal or a window",
     seeing(in_the_whole_array, gradient=True)),
    ("packed_attention_grad_top_left", "a backward pass aligned at the starts",
     "this project", f"{BACK}, clause 1", "causal, sizes that differ",
     back(offset=starts_aligned)),
    ("packed_attention_grad_lengths_ignored", "a backward pass without lengths",
     "sgl-flash-attn #29", f"{BACK}, clause 2", "lengths",
     back(lengths=lambda x: None, offset=placed)),
    ("packed_attention_grad_ends_of_all_keys", "a backward pass aligned at the end of all keys",
     "this project", f"{BACK}, clause 1", "lengths, causal", back(offset=ends_of_all_keys)),
    ("packed_attention_grad_window_ignored", "a backward pass without windows", "aiter #3158",
     f"{BACK}, clause 1", "a window", back(window=lambda x: None)),
    ("packed_attention_grad_without_lse", "what arrives at the lse left out",
     "flash-attention #404", BACK, "d_lse", back(d_lse=lambda x: 0 * x["d_lse"])),
    ("packed_attention_grad_queries_of_last", "no gradient by the queries of the last sequence",
     "this project", f"{BACK}, clause 1", "any", over_last(0)),
    ("packed_attention_grad_keys_of_last", "no gradient by the keys of the last sequence",
     "this project", f"{BACK}, clause 1", "any", over_last(1)),
    ("packed_attention_grad_values_of_last", "no gradient by the values of the last sequence",
     "this project", f"{BACK}, clause 1", "any", over_last(2)),
    ("packed_attention_grad_mean_over_heads", "the mean over the heads of a group",
     "prime-rl #2681", BACK, "H > G", gradients(over_heads)),
    ("packed_attention_grad_sink_of_sequences", "the sink without rows of no sequence",
     "flash-attention #2706", f"{BACK}, clause 3", "sink, rows of no sequence",
     sink_gradient(sink_of_sequences)),
    ("packed_attention_grad_sink_of_last", "the sink's gradient of the last sequence alone",
     "cudnn-frontend #405", f"{BACK}, clause 3", "sink, B > 1", sink_gradient(sink_of_last)),
    ("packed_attention_grad_outside_times_zero", "0 times what stands in queries of no sequence",
     "pytorch #188933", f"{BACK}, clause 2", "NaN in queries of no sequence",
     gradients(lambda found, **x: [found[0], found[1] + 0 * x["query"][rows_outside(x)].sum(),
      *found[2:]])),
))  # fmt: skip
add_conventional("blocks", (
    ("packed_attention_as_one", "sequences", "one", "axolotl #1375", OWN, "B > 1"),
    ("packed_attention_top_left", "alignment", "starts", "this project", PLACE,
     "causal, more keys than queries"),
    ("packed_attention_ends_of_all_keys", "alignment", "ends of all keys", "this project", LENGTHS,
     "lengths, causal"),
    ("packed_attention_whole_positions", "positions", "in the whole array", "NeMo-RL #2105", PLACE,
     "B > 1, causal"),
    ("packed_attention_lengths_ignored", "lengths", "ignored", "sgl-flash-attn #29", LENGTHS,
     "lengths"),
    ("packed_attention_heads_in_turn", "shared heads", "in turn", "onnx #7274", NUMBERS,
     "H > G > 1"),
    ("packed_attention_window_of_itself", "window counts", "the row's own key too",
     "transformers #39408", PLACE, "a left window"),
    ("packed_attention_two_sided_window", "window counts", "both sides", "LightLLM #1312", PLACE,
     "a left window"),
    ("packed_attention_without_window", "window counts", "nothing", "mistral.rs #2094", PLACE,
     "a window"),
    ("packed_attention_without_cap", "soft cap", "none", "sglang #33915", NUMBERS, "soft_cap"),
    ("packed_attention_without_sink", "sink", "none", "modular #6591", NUMBERS, "sink"),
    ("packed_attention_lse_without_sink", "sink in the lse", "left out", "FlashMLA's lse", NUMBERS,
     "sink"),
    ("packed_attention_lse_of_base_two", "lse base", "2 returned", "pytorch #181645", NUMBERS,
     "any"),
    ("packed_attention_nan_of_empty_rows", "a row of no key", "NaN", "flashinfer #3047", EMPTY,
     "rows without keys"),
    ("packed_attention_plus_infinity", "a row of no key", "plus infinity", "flashinfer #3943",
     EMPTY, "rows without keys"),
    ("packed_attention_scale_ignored", "a scale", "ignored", "tokenspeed #759", NUMBERS, "scale"),
))  # fmt: skip
