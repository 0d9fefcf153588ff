"""Faults of caches in pages: whose page is read, how far, and what unused slots do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import packed_pairs, pages_seen
from attnverify.conventions.caches.paging import changed, own_places, slots, there
from attnverify.conventions.layer_rows import Options
from attnverify.conventions.packing import seeing
from attnverify.conventions.references import reference_of
from attnverify.faults.registry import add_conventional, add_faults
from attnverify.faults.today.options import (
    answering,
    first_of,
    outside_unwritten,
    sink_by,
    transposed_lse,
)

attention = reference_of("paged_attention")
answered = partial(answering, attention)
SLOT, LENGTH, PLACE, UNSEEN, TABLE, SHARED, EMPTY, REFUSED, NUMBERS = (
    f"paged_attention, clause {number}" for number in range(1, 10)
)


def by_table(change: Callable[[Options], ndarray]) -> Any:
    """Another table, of which entries beyond the pool name its first or its last page."""
    return changed(page_table=lambda x: there(x, change(x)))


def with_lengths(change: Callable[[Options], ndarray]) -> Any:
    """Other lengths, the rows where they were."""
    return changed(
        lengths=lambda x: np.clip(change(x), 0, slots(x)), offset=own_places, page_table=there
    )


def page_size(x: Options) -> int:
    return int(x["key_pages"].shape[1])


def pages_reversed(x: Options) -> ndarray:
    """The pages of each sequence from the last to the first."""
    table = x["page_table"].copy()
    for row, length in zip(table, x["lengths"], strict=True):
        used = -(-int(length) // page_size(x))
        row[:used] = row[:used][::-1]
    return table


def by_heads_for_slots(x: Options) -> ndarray:
    """Key j looked for in page j // G, G in the place of W."""
    W, G, Y = page_size(x), x["key_pages"].shape[2], x["page_table"].shape[1]
    first = np.minimum(np.arange(Y) * W // G, Y - 1)
    return np.asarray(x["page_table"][:, first])


def pool(name: str, read: Callable[[ndarray], ndarray]) -> Any:
    return changed(**{name: lambda x: read(x[name])})


def slots_last(pages: ndarray) -> ndarray:
    """Pages read as [Z G D W], as older kernels keep keys."""
    Z, W, G, D = pages.shape
    return np.asarray(pages.reshape(Z, G, D, W).transpose(0, 3, 1, 2))


def heads_first_in(pages: ndarray) -> ndarray:
    Z, W, G, D = pages.shape
    return np.asarray(pages.reshape(Z, G, W, D).swapaxes(1, 2))


def without_last_slots(x: Options) -> ndarray:
    """Pairs in which the last slot of no page is seen, where there is another."""
    seen = packed_pairs(x)
    if (W := page_size(x)) > 1:
        seen[:, W - 1 :: W] = False
    return seen


def without_shared(x: Options) -> ndarray:
    """Pairs in which a page belongs to the first sequence that names it."""
    seen, taken = packed_pairs(x), np.zeros(len(x["key_pages"]) * page_size(x), bool)
    for start, end in zip(x["query_starts"], x["query_starts"][1:], strict=False):
        seen[start:end] &= ~taken
        taken |= seen[start:end].any(0)
    return seen


def window_of_pages(x: Options) -> ndarray:
    """Pairs in which a left window reaches back to the start of a page."""
    left, right = x.get("window") or (None, None)
    if left is None:
        return packed_pairs(x)
    W = page_size(x)
    seen = packed_pairs(x).reshape(len(x["query"]), -1, W)
    open_ = packed_pairs(x | {"window": (None, right), "page_table": there(x)})
    of_page = np.logical_or.reduce(seen, axis=2, keepdims=True)
    return np.asarray((of_page & open_.reshape(seen.shape)).reshape(len(seen), -1))


def unseen_values(x: Options, named: bool) -> Any:
    """The sum of what no row sees: of pages that are named, or of the others."""
    W = page_size(x)
    unseen = ~packed_pairs(x).any(0)
    of_named = np.isin(np.arange(len(x["value_pages"])), x["page_table"][pages_seen(x)])
    mine = unseen & (np.repeat(of_named, W) == named)
    return x["value_pages"].reshape(-1, *x["value_pages"].shape[2:])[mine].sum()


def times_zero(named: bool) -> Any:
    """0 times what stands in slots that no row sees."""
    return answered(lambda output, lse, **x: (output + 0 * unseen_values(x, named), lse))


def beyond_the_pool(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """NaN where an entry of the table that nobody looks at is no page, and is read all the same."""
    lost = ((x["page_table"] != there(x)) & ~pages_seen(x)).any(1)
    rows = np.repeat(lost, np.diff(x["query_starts"]))
    output = output.copy()
    output[x["query_starts"][0] : x["query_starts"][-1]][rows] = np.nan
    return output, lse


def empty_unwritten(output: ndarray, lse: ndarray, **x: Any) -> Any:
    """The same in rows of a sequence without a key."""
    empty = np.zeros((len(output), 1), bool)
    inside = slice(x["query_starts"][0], x["query_starts"][-1])
    empty[inside, 0] = np.repeat(x["lengths"] == 0, np.diff(x["query_starts"]))
    return np.where(empty[..., None], 7.5, output), np.where(empty, 7.5, lse)


def to_the_ends(x: Options) -> ndarray:
    """Rows of no sequence joined to the nearest one."""
    moved = x["query_starts"].copy()
    moved[0], moved[-1] = 0, len(x["query"])
    return np.asarray(moved)


def one_row_each(x: Options) -> ndarray:
    """A row for each sequence, as when a model decodes."""
    B, T = len(x["lengths"]), len(x["query"])
    return np.minimum(np.arange(B + 1), T)


add_faults("blocks", (
    ("paged_attention_pages_reversed", "the pages of a sequence from the last to the first",
     "this project", SLOT, "two pages", by_table(pages_reversed)),
    ("paged_attention_first_table", "the first sequence's pages for all", "this project", SLOT,
     "B > 1", by_table(lambda x: np.broadcast_to(x["page_table"][:1], x["page_table"].shape))),
    ("paged_attention_first_page", "the first page for every one", "this project", SLOT,
     "two pages", by_table(lambda x: np.broadcast_to(x["page_table"][:, :1],
                                                     x["page_table"].shape))),
    ("paged_attention_entries_of_zero", "page 0 for every entry", "vllm #57158", SLOT, "Z > 1",
     by_table(lambda x: 0 * x["page_table"])),
    ("paged_attention_next_page", "the page behind the one that is named", "this project", SLOT,
     "Z > 1", by_table(lambda x: (x["page_table"] + 1) % len(x["key_pages"]))),
    ("paged_attention_table_transposed", "a table of [Y B] read as [B Y]", "this project", SLOT,
     "B > 1, two pages", by_table(lambda x: x["page_table"].T.reshape(x["page_table"].shape))),
    ("paged_attention_page_of_heads", "the number of heads for that of slots", "this project",
     SLOT, "G and W that differ", by_table(by_heads_for_slots)),
    ("paged_attention_slots_reversed", "values from the other end of a page", "this project", SLOT,
     "W > 1", pool("value_pages", lambda pages: pages[:, ::-1])),
    ("paged_attention_values_of_next_page", "values of the page behind", "this project", SLOT,
     "Z > 1", pool("value_pages", lambda pages: np.roll(pages, -1, axis=0))),
    ("paged_attention_keys_with_slots_last", "keys read as if slots lay last", "this project",
     SLOT, "W > 1", pool("key_pages", slots_last)),
    ("paged_attention_values_with_heads_first", "values read as if heads lay before slots",
     "this project", SLOT, "W > 1, G > 1", pool("value_pages", heads_first_in)),
    ("paged_attention_last_slots_lost", "the last slot of each page lost", "this project", SLOT,
     "W > 1", seeing(without_last_slots)),
    ("paged_attention_last_key_lost", "the last key of each sequence lost", "sglang #32087",
     LENGTH, "any", with_lengths(lambda x: x["lengths"] - 1)),
    ("paged_attention_key_behind", "the slot behind the last key read", "this project", LENGTH,
     "any", with_lengths(lambda x: x["lengths"] + (x["lengths"] > 0))),
    ("paged_attention_last_page_lost", "keys of a page that is not full lost", "this project",
     LENGTH, "a page that is not full",
     with_lengths(lambda x: x["lengths"] // page_size(x) * page_size(x))),
    ("paged_attention_one_page_more", "one page more where the last is full", "this project",
     LENGTH, "a last page that is full",
     with_lengths(lambda x: (x["lengths"] // page_size(x) + 1) * page_size(x))),
    ("paged_attention_first_length", "the first sequence's length for all", "this project", LENGTH,
     "B > 1", with_lengths(lambda x: np.full_like(x["lengths"], x["lengths"][0]))),
    ("paged_attention_longest", "the longest sequence's length for all", "this project", LENGTH,
     "B > 1", with_lengths(lambda x: np.full_like(x["lengths"], x["lengths"].max()))),
    ("paged_attention_one_row_each", "one row for each sequence", "nano-vllm #213", LENGTH,
     "sequences of several rows", changed(query_starts=one_row_each, page_table=there,
                                          offset=lambda x: None)),
    ("paged_attention_causal_forgotten", "causality ignored", "tt-metal #48899", PLACE, "causal",
     changed(causal=lambda x: False, page_table=there)),
    ("paged_attention_chunk_forgotten", "chunks ignored", "vllm #36580", PLACE, "chunk",
     changed(chunk=lambda x: None, page_table=there)),
    ("paged_attention_pinned_forgotten", "pinned keys forgotten", "cactus #688", PLACE,
     "pinned keys with a window", changed(pinned=lambda x: 0)),
    ("paged_attention_offset_forgotten", "offsets ignored", "executorch #21749", PLACE, "offset",
     changed(offset=lambda x: None, page_table=there)),
    ("paged_attention_first_offset", "the first sequence's offset for all", "vllm #36580", PLACE,
     "offset, B > 1", changed(offset=first_of("offset"), page_table=there)),
    ("paged_attention_window_of_pages", "a left window that begins with a page", "this project",
     PLACE, "a left window, W > 1", seeing(window_of_pages)),
    ("paged_attention_unused_slots_times_zero", "0 times what stands in unused slots",
     "vllm #43961", UNSEEN, "NaN in unused slots", times_zero(named=True)),
    ("paged_attention_unnamed_pages_times_zero", "0 times what stands in other pages",
     "flashinfer #942", UNSEEN, "NaN in pages that nobody names", times_zero(named=False)),
    ("paged_attention_entries_behind_read", "entries of the table behind the length read",
     "vllm #57158", TABLE, "entries that are no page", answered(beyond_the_pool)),
    ("paged_attention_shared_page_once", "a page read by one sequence alone", "this project",
     SHARED, "a shared page", seeing(without_shared)),
    ("paged_attention_repeated_page_once", "a page that stands twice in a row read once",
     "this project", SHARED, "a page twice in a row", seeing(packed_pairs, once=True)),
    ("paged_attention_outside_unwritten", "rows of no sequence left as they were",
     "tilelang #2461", EMPTY, "rows of no sequence", answered(outside_unwritten)),
    ("paged_attention_outside_joined", "rows of no sequence joined to the nearest one",
     "this project", EMPTY, "rows of no sequence",
     changed(query_starts=to_the_ends, page_table=there)),
    ("paged_attention_empty_unwritten", "rows of an empty sequence left as they were",
     "flashinfer #3047", EMPTY, "a length of 0", answered(empty_unwritten)),
    ("paged_attention_sink_lost_in_empty_rows", "an lse of minus infinity for that of the sink",
     "flash-attention #2706", EMPTY, "sink, rows without keys",
     answered(lambda output, lse, **x: (output, np.where((output == 0).all(-1), -np.inf, lse)))),
    ("paged_attention_transposed_lse", "an lse of [H T] read as [T H]", "pytorch #187872",
     NUMBERS, "H > 1, T > 1", answered(transposed_lse)),
    ("paged_attention_next_head", "the keys of the next group", "fla #1029", NUMBERS, "G > 1",
     pool("key_pages", lambda pages: np.roll(pages, 1, axis=2))),
    ("paged_attention_first_head", "the values of the first head for all", "vllm #40792", NUMBERS,
     "G > 1", pool("value_pages", lambda pages: np.broadcast_to(pages[:, :, :1],
      pages.shape).copy())),
    ("paged_attention_sink_of_next_head", "the sink of the next head", "modular #6591", NUMBERS,
     "sink, H > 1", changed(sink=sink_by(lambda sink, x: np.roll(sink, 1)))),
    ("paged_attention_sink_of_pages", "a sink counted by each page", "cudnn-frontend #768",
     NUMBERS, "sink, Y > 1",
     changed(sink=sink_by(lambda sink, x: sink + np.log(x["page_table"].shape[1])))),
    ("paged_attention_cap_of_fifty", "50 for every cap", "vllm-metal #665", NUMBERS, "soft_cap",
     changed(soft_cap=lambda x: x.get("soft_cap") and 50.0)),
    ("paged_attention_scale_off", "a scale 2 % too large", "this project", NUMBERS, "any",
     changed(scale=lambda x: 1.02 * (x.get("scale") or x["query"].shape[-1] ** -0.5))),
))  # fmt: skip
add_conventional("blocks", (
    ("paged_attention_heads_before_slots", "page layout", "heads before slots",
     "FlashInfer, HND", SLOT, "W > 1, G > 1"),
    ("paged_attention_end_to_end", "page table", "end to end", "FlashInfer, kv_indices", SLOT,
     "B > 1"),
    ("paged_attention_pages_in_a_row", "page table", "the first page", "this project", SLOT,
     "pages in any order"),
    ("paged_attention_without_own_rows", "lengths", "without the rows",
     "flash-attention, cache_seqlens", LENGTH, "any"),
    ("paged_attention_whole_pages", "lengths", "of whole pages", "this project", LENGTH,
     "a page that is not full"),
    ("paged_attention_top_left", "alignment", "starts", "sparkinfer #3", PLACE,
     "causal, more keys than queries"),
    ("paged_attention_heads_in_turn", "shared heads", "in turn", "onnx #7274", NUMBERS,
     "H > G > 1"),
    ("paged_attention_window_of_itself", "window counts", "the row's own key too",
     "transformers #39408", PLACE, "a left window"),
    ("paged_attention_two_sided_window", "window counts", "both sides", "LightLLM #1312", PLACE,
     "a left window"),
    ("paged_attention_without_window", "window counts", "nothing", "mistral.rs #2094", PLACE,
     "a window"),
    ("paged_attention_without_cap", "soft cap", "none", "sglang #33915", NUMBERS, "soft_cap"),
    ("paged_attention_without_sink", "sink", "none", "modular #6591", NUMBERS, "sink"),
    ("paged_attention_lse_without_sink", "sink in the lse", "left out", "FlashMLA's lse", NUMBERS,
     "sink"),
    ("paged_attention_lse_of_base_two", "lse base", "2 returned", "pytorch #181645", NUMBERS,
     "any"),
    ("paged_attention_nan_of_empty_rows", "a row of no key", "NaN", "flashinfer #3047", EMPTY,
     "rows without keys"),
    ("paged_attention_plus_infinity", "a row of no key", "plus infinity", "flashinfer #3943",
     EMPTY, "rows without keys"),
    ("paged_attention_scale_ignored", "a scale", "ignored", "tokenspeed #759", NUMBERS, "scale"),
))  # fmt: skip
