"""Conventions of latents that all heads share: what the scale is, and which channels are values."""

from functools import partial
from typing import Any

import numpy as np

from attnverify.catalogue.packing import heads_first
from attnverify.conventions.grouping import GROUPING_ANSWERS, from_the_start, rows_of_results
from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.conventions.visibility import both_ways, counting_itself

latent_attention = reference_of("latent_attention")
changed = partial(with_arguments, latent_attention)
grouped_attention = reference_of("grouped_attention")
PARTS = ("query_rope", "latent", "key_rope")


def widths(x: Options) -> tuple[int, int]:
    """Of the latent, and of what carries the position."""
    return x["latent"].shape[-1], x["key_rope"].shape[-1]


def one_group(x: Options) -> Options:
    """The same call of one group of heads."""
    return {name: y for name, y in heads_first(x).items() if name not in PARTS}


def as_heads(**x: Any) -> Any:
    """The answer of one group of heads, with other values where they are given."""
    value = x.pop("value", None)
    return grouped_attention(**one_group(x) | ({} if value is None else {"value": value[:, None]}))


def with_values(**x: Any) -> Any:
    """Values that are the first channels of a row in which the position stands in front."""
    E, _ = widths(x)
    return as_heads(**x, value=np.concatenate([x["key_rope"], x["latent"]], axis=-1)[..., :E])


LATENT: tuple[Row, ...] = (
    ("scale", "1/sqrt(E + D)", "scores scaled by 1/sqrt(E + D)",
     changed(scale=lambda x: sum(widths(x)) ** -0.5)),
    ("scale", "1/sqrt(E)", "scores scaled by 1/sqrt(E)",
     changed(scale=lambda x: widths(x)[0] ** -0.5)),
    ("scale", "divides", "scores that are divided by the scale",
     changed(scale=lambda x: 1 / x["scale"])),
    ("scale", "1", "scores that are not scaled", changed(scale=lambda x: 1.0)),
    ("scale", "of the latent alone", "the scale on the product with the latent alone",
     changed(query_rope=lambda x: np.asarray(x["query_rope"] / x["scale"]))),
    ("position", "left out", "the position left out",
     changed(query_rope=lambda x: 0 * x["query_rope"])),
    ("values", "position in front", "values read as if the position stood in front", with_values),
    ("alignment", "starts", "rows aligned at the starts", changed(offset=from_the_start)),
    ("window counts", "the row's own key too", "a window that counts the row's own key",
     changed(window=counting_itself)),
    ("window counts", "both sides", "a left window on both sides", changed(window=both_ways)),
    ("window counts", "nothing", "windows ignored", changed(window=lambda x: None)),
    *rows_of_results(latent_attention),
)  # fmt: skip

ALSO_GROUPED = (
    *("alignment", "window counts", "soft cap", "sink", "sink in the lse", "lse base"),
    "a row of no key",
)

LATENT_ANSWERS = {
    "scale": "the given one, of both products",
    "position": "added",
    "values": "the latent",
} | {asked: GROUPING_ANSWERS[asked] for asked in ALSO_GROUPED}
"""What the specification answers."""
