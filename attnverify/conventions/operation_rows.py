"""
Conventions of the operations that do not consist of stages: shifts, memories, masks, slopes,
positions and whole layers.

Each row is a question, another answer than the specification's, the words for it, and the operation
computed so.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.caches.latents import LATENT, LATENT_ANSWERS
from attnverify.conventions.caches.paging import PAGING, PAGING_ANSWERS
from attnverify.conventions.caches.quantizing import QUANTIZING, QUANTIZING_ANSWERS
from attnverify.conventions.caches.selecting import SELECTING, SELECTING_ANSWERS
from attnverify.conventions.grouping import (
    GROUPING,
    GROUPING_ANSWERS,
    MERGING,
    MERGING_ANSWERS,
)
from attnverify.conventions.layer_rows import (
    LINEAR,
    MULTI_HEAD,
    PADDING,
    Row,
    as_self_attention,
    layer_rows,
    of_one_head,
    opposite,
    with_arguments,
)
from attnverify.conventions.packing import PACKING, PACKING_ANSWERS
from attnverify.conventions.references import (
    causal_mask,
    get_alibi_biases,
    get_slopes,
    merge_masks,
    reference_of,
    rel_shift,
    shift_right,
    sinusoidal_positions,
    update_mems,
)
from attnverify.conventions.slopes import SLOPES
from attnverify.conventions.turning import TURNING, TURNING_ANSWERS
from attnverify.conventions.visibility import VISIBILITY, VISIBILITY_ANSWERS


def to_the_right(x: ndarray) -> ndarray:
    """Row i moves i to the right, zeros in front."""
    N, M = x.shape[-2:]
    j = np.arange(M) - np.arange(N)[:, None]
    return np.where(j >= 0, x[..., np.arange(N)[:, None], np.maximum(j, 0)], 0.0)


def rolled(x: ndarray) -> ndarray:
    """Row i moves i to the right, what falls out coming back in front."""
    N, M = x.shape[-2:]
    return x[..., np.arange(N)[:, None], (np.arange(M) - np.arange(N)[:, None]) % M]


def keep_everything(hids: Any, mems: Any, mem_len: int) -> Any:
    """Return the whole of memory and present at mem_len 0, as x[-0:] gives it."""
    if mem_len or mems is None:
        return update_mems(hids, mems, mem_len)
    return [np.concatenate([mem, hid], axis=1) for mem, hid in zip(mems, hids, strict=True)]


def joined(
    order: Callable[[ndarray, ndarray], list[ndarray]], first: bool = False
) -> Callable[..., Any]:
    """Return the first or last mem_len positions of what the order makes of memory and present."""

    def window(hids: Any, mems: Any, mem_len: int) -> Any:
        if mems is None:
            return None
        whole = [
            np.concatenate(order(mem, hid), axis=1) for mem, hid in zip(mems, hids, strict=True)
        ]
        return [x[:, :mem_len] if first else x[:, max(x.shape[1] - mem_len, 0) :] for x in whole]

    return window


def merged(hidden: float, attn_mask: Any, key_padding_mask: Any, num_heads: int) -> ndarray:
    mask = merge_masks(attn_mask, key_padding_mask, num_heads)
    return np.where(mask == -np.inf, hidden, mask)


def rotated_last(M: int, F: int) -> ndarray:
    """Sines and cosines in turn."""
    x = sinusoidal_positions(M, F)
    return np.stack([x[:, : F // 2], x[:, F // 2 :]], axis=-1).reshape(M, F)


CONVENTIONS_OF_OPERATION: dict[str, tuple[Row, ...]] = {
    "rel_shift": (
        ("wrap", "zero", "zeros where it wraps around",
         lambda x: np.where(causal_mask(*x.shape[-2:]), rel_shift(x), 0.0)),
        ("direction", "to the right", "rows moved to the right", shift_right),
        ("direction", "none", "nothing moved", lambda x: x),
    ),
    "shift_right": (
        ("wrap", "zero", "zeros where it wraps around", to_the_right),
        ("wrap", "own row", "each row rotated in itself", rolled),
        ("direction", "to the left", "rows moved to the left", rel_shift),
        ("direction", "none", "nothing moved", lambda x: x),
    ),
    "causal_mask": (
        ("causal alignment", "top-left", "a top-left causal mask", lambda N,
         M: np.tri(N, M, dtype=bool)),
        ("causal alignment", "at the end of the longer", "alignment by max(M-N, 0)", lambda N,
         M: np.tri(N, M, max(M - N, 0), dtype=bool)),
        ("causal alignment", "own key hidden", "the query's own key hidden", lambda N,
         M: np.tri(N, M, M - N - 1, dtype=bool)),
        ("mask polarity", "True = hidden", "a mask of which True means hidden", lambda N,
         M: ~causal_mask(N, M)),
    ),
    "visible_keys": VISIBILITY,
    "grouped_attention": GROUPING,
    "merge_attention": MERGING,
    "packed_attention": PACKING,
    "latent_attention": LATENT,
    "selected_attention": SELECTING,
    "paged_attention": PAGING,
    "dequantize": QUANTIZING,
    "rotary_embedding": TURNING,
    "merge_masks": (
        ("mask polarity", "True = may attend", "an attn_mask of which True means may attend",
         with_arguments(merge_masks, attn_mask=lambda x: opposite(x["attn_mask"]))),
        *(("padding polarity", said, words, with_arguments(merge_masks, key_padding_mask=new))
          for said, words, new in PADDING),
        ("hidden as", "-1e9", "-1e9 for minus infinity", partial(merged, -1e9)),
        ("hidden as", "-1e4", "-1e4 for minus infinity", partial(merged, -1e4)),
    ),
    "dropout": (
        ("dropout scale", "1", "kept weights that are not scaled",
         lambda weights, keep, p: np.where(True if keep is None else keep, weights, 0)),
        ("dropout scale", "1/p", "kept weights scaled by 1/p",
         lambda weights, keep, p: np.where(True if keep is None else keep, weights / (p or 1), 0)),
        ("dropout scale", "1-p", "kept weights scaled by 1-p",
         lambda weights, keep, p: np.where(True if keep is None else keep, weights * (1 - p), 0)),
        ("dropout", "True = dropped", "a keep mask of which True means dropped",
         lambda weights, keep, p: np.where(False if keep is None else keep, 0, weights / (1 - p))),
        ("dropout", "none", "dropout ignored", lambda weights, keep, p: weights),
    ),
    "get_slopes": tuple(
        ("ALiBi slopes", said, words, lambda n_heads, rule=rule: rule(n_heads)) for said,
         (words, rule) in SLOPES.items()
    ),
    "get_alibi_biases": (
        *(("ALiBi slopes", said, words, lambda n_heads, visible,
        rule=rule: rule(n_heads)[:, None, None] * np.cumsum(visible, axis=-1))
          for said, (words, rule) in SLOPES.items()),
        ("ALiBi sign", "falls", "biases that fall along the keys", lambda n_heads,
         visible: -get_alibi_biases(n_heads, visible)),
        ("ALiBi distance", "positions", "positions counted in place of visible keys",
         lambda n_heads, visible: get_alibi_biases(n_heads, np.ones_like(visible))),
        ("ALiBi distance", "from 0", "a count that begins at 0, a constant per row",
         lambda n_heads, visible: get_slopes(n_heads)[:, None,
         None] * (np.cumsum(visible, axis=-1) - 1)),
        ("ALiBi distance", "to the last", "a count back from the last visible key, a constant per "
         "row", lambda n_heads, visible: get_slopes(n_heads)[:, None, None] * (
         np.cumsum(visible, axis=-1) - visible.sum(axis=-1, keepdims=True))),
    ),
    "sinusoidal_positions": (
        ("order", "distances rising", "distances rising from 0", lambda M,
         F: sinusoidal_positions(M, F)[::-1]),
        ("order", "distances rising, in turn", "distances rising from 0, sines and cosines in turn",
         lambda M, F: rotated_last(M, F)[::-1]),
        ("halves", "in turn", "sines and cosines in turn", rotated_last),
        ("halves", "cosines first", "cosines before sines", lambda M,
         F: np.roll(sinusoidal_positions(M, F), F // 2, axis=1)),
    ),
    "update_mems": (
        ("memory window", "everything at mem_len 0", "a memory that keeps everything at mem_len 0",
         keep_everything),
        ("memory window", "the first mem_len", "the first positions kept",
         joined(lambda mem, hid: [mem, hid], first=True)),
        ("memory window", "the present alone", "the memory before the present forgotten",
         lambda hids, mems, mem_len: update_mems(hids, None if mems is None else [mem[:,
          :0] for mem in mems], mem_len)),
        ("memory window", "as long as it was", "mem_len not read: a memory as long as it was",
         lambda hids, mems, mem_len: update_mems(hids, mems, mems[0].shape[1] if mems
          else mem_len)),
        ("order of memory", "present first", "memory behind the present",
         joined(lambda mem, hid: [hid, mem])),
    ),
    "self_attention": tuple(of_one_head()),
    "multi_head_attention": MULTI_HEAD,
    "multi_head_self_attention": tuple(
        (asked, said, words, as_self_attention(function))
        for asked, said, words, function in MULTI_HEAD),
    "relative_multi_head_attention": (
        *layer_rows(reference_of("relative_multi_head_attention"),
        ("query.linear.weight", "query_pos_bias", "key_pos_bias"), "visible"),
        ("table alignment", "the other", "the two table alignments exchanged", with_arguments(
            reference_of("relative_multi_head_attention"),
            align=lambda x: {"end": "start", "start": "end"}[x["align"]])),
    ),
    "alibi_multi_head_attention": layer_rows(reference_of("alibi_multi_head_attention"), LINEAR,
    "visible"),
}  # fmt: skip

OPERATION_SPEC_ANSWERS = {
    "rel_shift": {"wrap": "the row below", "direction": "to the left"},
    "shift_right": {"wrap": "the row above", "direction": "to the right"},
    "causal_mask": {"mask polarity": "True = may attend"},
    "visible_keys": VISIBILITY_ANSWERS,
    "grouped_attention": GROUPING_ANSWERS,
    "merge_attention": MERGING_ANSWERS,
    "packed_attention": PACKING_ANSWERS,
    "latent_attention": LATENT_ANSWERS,
    "selected_attention": SELECTING_ANSWERS,
    "paged_attention": PAGING_ANSWERS,
    "dequantize": QUANTIZING_ANSWERS,
    "rotary_embedding": TURNING_ANSWERS,
    "merge_masks": {
        "mask polarity": "True = hidden",
        "padding polarity": "True = hidden",
        "hidden as": "-inf",
    },
    "get_alibi_biases": {"ALiBi sign": "grow", "ALiBi distance": "visible keys"},
    "sinusoidal_positions": {"order": "distances falling to 0", "halves": "sines first"},
    "update_mems": {"memory window": "the last mem_len", "order of memory": "memory first"},
    "multi_head_attention": {"mask polarity": "True = hidden", "padding polarity": "True = hidden"},
    "multi_head_self_attention": {
        "mask polarity": "True = hidden",
        "padding polarity": "True = hidden",
    },
}
"""What the specification answers to these, where it differs from one operation to the next."""
