"""Controls of the attentions of today: right, computed in unusual ways."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.packing import packed_pairs
from attnverify.conventions.caches.latents import as_heads, widths
from attnverify.conventions.packing import seeing
from attnverify.conventions.turning import frequencies, pairs
from attnverify.faults.today import latents, packing, paging, quantizing, selecting
from attnverify.faults.today.turning import channels, turned
from tests.attnverify.faults.controls.registry import add_controls


def in_front(**x: Any) -> Any:
    """A row in which the position stands in front, and a query alike; the values are behind it."""
    E, D = widths(x)
    q = np.concatenate([x["query_rope"], x["query"]], axis=-1)
    k = np.concatenate([x["key_rope"], x["latent"]], axis=-1)
    parts = {"query": q[..., :E], "query_rope": q[..., E:], "latent": k[..., :E]}
    return as_heads(**x | parts | {"key_rope": k[..., E:]}, value=k[..., D:])


def held(function: Callable[..., Any]) -> Any:
    """What the reference refuses is refused."""
    return lambda **x: (latents.attention(**x), function(**x))[1]


add_controls("blocks", (
    ("latent_attention_of_one_group", "one group of heads with both parts", held(as_heads)),
    ("latent_attention_of_turned_rows", "the position in front of the latent", held(in_front)),
))  # fmt: skip


add_controls("blocks", (
    ("packed_attention_of_pairs", "one attention under a mask of blocks", seeing(packed_pairs)),
    ("packed_attention_of_lengths", "every length and offset given",
     packing.changed(lengths=packing.counted, offset=packing.placed)),
))  # fmt: skip


def moved(**x: Any) -> Any:
    """The pages at other places of the pool, and the table by these."""
    Z = len(x["key_pages"])
    pools = {name: x[name][::-1] for name in ("key_pages", "value_pages")}
    return paging.attention(**x | pools | {"page_table": Z - 1 - x["page_table"]})


add_controls("blocks", (
    ("paged_attention_of_slots", "one attention of the pool under a mask", seeing(packed_pairs)),
    ("paged_attention_of_offsets", "every offset given", paging.changed(offset=paging.own_places)),
    ("paged_attention_of_moved_pages", "a pool in another order", moved),
))  # fmt: skip


def by_sixteen_bits(**x: Any) -> Any:
    """Float8 by its bits in a float16."""
    if x["stored_as"] == quantizing.INT8:
        return quantizing.dequantize(**x)
    bits = x["stored"].astype(np.int64) & 255
    half = ((bits & 128) << 8 | (bits & 127) << 7).astype(np.uint16).view(np.float16)
    wide = np.where(bits & 127 == 127, np.nan, half.astype(np.float64) * 256)
    return wide * x["scale"][..., None]


add_controls("numerics", (
    ("dequantize_by_float16", "float8 by its bits in a float16", by_sixteen_bits),
    ("dequantize_by_table", "numbers looked up in a table",
     partial(quantizing.times, lambda bits: quantizing.number(np.arange(256))[bits],
      quantizing.FLOAT8)),
))  # fmt: skip


add_controls("blocks", (
    ("selected_attention_under_a_mask", "what is chosen as a mask",
     selecting.under(selecting.chosen)),
    ("selected_attention_in_order", "choices in rising order",
     selecting.changed(selection=lambda x: np.sort(x["selection"], axis=-1))),
))  # fmt: skip


def by_complex_numbers(**x: Any) -> ndarray:
    """A product with e^(i angle)."""
    first, second = channels(pairs(x), x["pairing"])
    angle = x["positions"][:, None, :, None] * frequencies(x)
    z = (x["x"][..., first] + 1j * x["x"][..., second]) * np.exp(1j * angle)
    y: ndarray = x["x"].copy()
    y[..., first], y[..., second] = z.real, z.imag
    return y


add_controls("relative", (
    ("rotary_embedding_of_complex_numbers", "pairs as complex numbers", by_complex_numbers),
    ("rotary_embedding_angle_reduced", "angles reduced to half a turn either way first",
     turned(angle_of=lambda p, f: p * f - 2 * np.pi * np.rint(p * f / (2 * np.pi)))),
))  # fmt: skip
