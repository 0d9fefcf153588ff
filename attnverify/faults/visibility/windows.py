"""
Faults of which keys a row sees by windows, chunks, lengths, segments, blocks and pinned keys.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.layer_rows import Options, with_arguments
from attnverify.conventions.references import visible_keys
from attnverify.conventions.visibility import real_offset
from attnverify.faults.registry import add_conventional, add_faults

changed = partial(with_arguments, visible_keys)


def one_shorter(x: Options) -> Any:
    """The window of a single row without its oldest key."""
    left, right = x["window"] or (None, None)
    return (left - 1, right) if left and x["N"] == 1 else x["window"]


def dropped_blocks(x: Options) -> Any:
    """No block where one is longer than the window is to the left."""
    left = (x["window"] or (None, None))[0]
    if x["blocks"] is None or left is None:
        return x["blocks"]
    longest = max(np.bincount(row[row >= 0], minlength=1).max() for row in x["blocks"])
    return None if longest > left else x["blocks"]


def of_the_row(x: Options) -> Any:
    """Blocks found by the row's number in place of its position."""
    rows = np.arange(x["N"])[None] - real_offset(x)[:, None] * 0
    blocks, M = x["blocks"], x["M"]
    if blocks is None:
        return None
    out = np.full_like(blocks, -1)
    out[:, : min(x["N"], M)] = blocks[:, rows[0][: min(x["N"], M)]]
    return out


def numbered_from_rows(**x: Any) -> ndarray:
    """Chunks counted from each row's first position."""
    seen: ndarray = visible_keys(**x | {"chunk": None})
    if x["chunk"] is None:
        return seen
    p = real_offset(x)[:, None, None] + np.arange(x["N"])[:, None]
    j, first = np.arange(x["M"]), np.minimum(real_offset(x), 0)[:, None, None]
    return seen & ((j - first - 1) // x["chunk"] == (p - first - 1) // x["chunk"])


def padded_segment(**x: Any) -> ndarray:
    """Segment -1 taken for padding, which sees nothing."""
    seen: ndarray = visible_keys(**x)
    return seen if x["segments"] is None else seen & (x["segments"][1] >= 0)[:, None, :]


add_faults("masks", (
    ("visible_keys_window_one_short_in_decode", "a decode step that loses its oldest key",
     "sglang #32087", "visible_keys, clause 6", "N = 1, a left window",
     changed(window=one_shorter)),
    ("visible_keys_long_block_dropped", "a block longer than the window dropped whole",
     "vllm #47217", "visible_keys, clause 5", "blocks with a left window",
     changed(blocks=dropped_blocks)),
    ("visible_keys_blocks_of_rows", "blocks of the first keys alone, as many as there are rows",
     "this project", "visible_keys, clause 5", "blocks, N < M", changed(blocks=of_the_row)),
    ("visible_keys_blocks_without_causality", "causality forgotten where there are blocks",
     "transformers #39389", "visible_keys, clause 4", "blocks under causality",
     changed(causal=lambda x: bool(x["causal"] and x["blocks"] is None))),
    ("visible_keys_offset_added", "an offset added to the alignment of the ends",
     "executorch #21749", "visible_keys, clause 1", "offset with N other than M",
     changed(offset=lambda x: None if x["offset"] is None else x["offset"] + real_offset(x
      | {"offset": None}))),
    ("visible_keys_offset_clamped", "an offset that is never negative", "mlx #2835",
     "visible_keys, clause 1", "N > M",
     changed(offset=lambda x: np.maximum(real_offset(x), 0))),
    ("visible_keys_chunks_from_rows", "chunks counted from another place than key 0",
     "vllm #36580", "visible_keys, clause 8", "chunk > 1", numbered_from_rows),
    ("visible_keys_padding_segment", "segment -1 taken for padding", "this project",
     "visible_keys, clause 9", "segment -1", padded_segment),
    ("visible_keys_length_one_more", "the key behind the last one seen", "this project",
     "visible_keys, clause 2", "lengths < M", changed(
     offset=real_offset,
     lengths=lambda x: None if x["lengths"] is None else np.minimum(x["lengths"] + 1, x["M"]))),
    ("visible_keys_window_or_chunk", "a chunk that switches the window off", "this project",
     "visible_keys, clause 6", "window and chunk",
     changed(window=lambda x: None if x["chunk"] else x["window"])),
    ("visible_keys_diagonal_window_off", "a window of (0, 0) taken for none", "this project",
     "visible_keys, clause 6", "window (0, 0)",
     changed(window=lambda x: x["window"] if any(x["window"] or ()) else None)),
    ("visible_keys_right_side_unread", "the right side of windows ignored",
     "onnxruntime/mobius #371", "visible_keys, clause 6", "a right window",
     changed(window=lambda x: x["window"] and (x["window"][0], None))),
    ("visible_keys_pinned_one_less", "a pinned key too few", "this project",
     "visible_keys, clause 7", "pinned > 0", changed(pinned=lambda x: max(x["pinned"] - 1, 0))),
))  # fmt: skip
add_conventional("masks", (
    ("visible_keys_top_left", "alignment", "starts", "onnxruntime #29020",
     "visible_keys, clause 1", "N other than M"),
    ("visible_keys_array_ends", "alignment", "ends of the arrays", "nano-vllm #213",
     "visible_keys, clause 1", "lengths"),
    ("visible_keys_window_of_itself", "window counts", "the row's own key too",
     "transformers #39408", "visible_keys, clause 6", "a left window"),
    ("visible_keys_two_sided_window", "window counts", "both sides", "LightLLM #1312",
     "visible_keys, clause 6", "a left window"),
    ("visible_keys_without_window", "window counts", "nothing", "aiter #3158",
     "visible_keys, clause 6", "a window"),
    ("visible_keys_blocks_beyond_window", "blocks", "beyond the window", "transformers #46850",
     "visible_keys, clause 6", "blocks with a window"),
    ("visible_keys_without_blocks", "blocks", "ignored", "vllm #40106",
     "visible_keys, clause 5", "blocks under causality"),
    ("visible_keys_without_pinned", "pinned keys", "in the window alone", "cactus #688",
     "visible_keys, clause 7", "pinned keys with a window"),
    ("visible_keys_pinned_everywhere", "pinned keys", "everywhere", "this project",
     "visible_keys, clause 7", "pinned keys"),
    ("visible_keys_without_chunk", "chunk", "ignored", "this project",
     "visible_keys, clause 8", "chunk"),
    ("visible_keys_without_segments", "segments", "ignored", "flash-attention #1537",
     "visible_keys, clause 9", "segments"),
    ("visible_keys_rows_behind_the_last", "query lengths", "ignored", "vllm-omni #5865",
     "visible_keys, clause 3", "query_lengths"),
))  # fmt: skip
