"""Conventions of rotary positions: which channels make a pair, and what they turn by."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.conventions.layer_rows import Options, Row, with_arguments
from attnverify.conventions.references import reference_of

rotary_embedding = reference_of("rotary_embedding")
changed = partial(with_arguments, rotary_embedding)


def pairs(x: Options) -> int:
    """How many pairs of channels turn."""
    D: int = x["x"].shape[-1]
    return (D if x.get("rotary_dim") is None else x["rotary_dim"]) // 2


def frequencies(x: Options) -> ndarray:
    """What the pairs turn by."""
    given: ndarray | None = x.get("frequencies")
    return x["base"] ** (-np.arange(pairs(x)) / pairs(x)) if given is None else given


def counted_in(width: Callable[[Options], float], x: Options) -> Any:
    """The base's frequencies, their exponents counted in another width than the pairs'."""
    given = x.get("frequencies")
    return x["base"] ** (-2 * np.arange(pairs(x)) / width(x)) if given is None else given


def of_all_channels(**x: Any) -> Any:
    """Frequencies of which those behind the pairs are 0, over pairs of all channels."""
    half = x["x"].shape[-1] // 2
    f = np.zeros(half)
    f[: pairs(x)] = frequencies(x)
    return rotary_embedding(**x | {"rotary_dim": 2 * half, "frequencies": f})


def last_channels(**x: Any) -> Any:
    """The channels at the end turned, those in front passed through."""
    R2 = 2 * pairs(x)
    passed, turning = x["x"][..., : x["x"].shape[-1] - R2], x["x"][..., x["x"].shape[-1] - R2 :]
    turned = rotary_embedding(**x | {"x": turning, "rotary_dim": R2})
    return np.concatenate([passed, turned], axis=-1)


def every_channel(x: Options) -> Any:
    """All channels that make pairs, unless the frequencies say how many."""
    D = x["x"].shape[-1]
    return x.get("rotary_dim") if x.get("frequencies") is not None else D - D % 2


def half_of_them(x: Options) -> int:
    """Half of the channels that are to turn, a pair at least."""
    return max(pairs(x) // 2 * 2, 2)


TURNING: tuple[Row, ...] = (
    ("pairing", "the other", "the two pairings exchanged",
     changed(pairing=lambda x: {"halves": "interleaved", "interleaved": "halves"}[x["pairing"]])),
    ("direction", "backwards", "pairs turned backwards",
     changed(positions=lambda x: -x["positions"])),
    ("frequencies counted in", "all channels", "frequencies counted in all channels",
     changed(frequencies=partial(counted_in, lambda x: x["x"].shape[-1]))),
    ("frequencies counted in", "pairs", "exponents that are twice as large",
     changed(frequencies=partial(counted_in, pairs))),
    ("pairs counted in", "all channels", "pairs of all channels, some with a frequency of 0",
     of_all_channels),
    ("which channels turn", "the last", "the last channels turned, not the first", last_channels),
    ("which channels turn", "all", "rotary_dim ignored", changed(rotary_dim=every_channel)),
    ("which channels turn", "half", "half of the rotary channels turned",
     changed(rotary_dim=half_of_them, frequencies=lambda x: (
         None if x.get("frequencies") is None else x["frequencies"][: half_of_them(x) // 2]))),
    ("positions", "from 0", "positions counted from 0 in each call",
     changed(positions=lambda x: np.broadcast_to(np.arange(x["positions"].shape[1]),
      x["positions"].shape))),
    ("positions", "one further", "positions one too high",
     changed(positions=lambda x: x["positions"] + 1)),
    ("base", "10000", "a given base ignored", changed(base=lambda x: 10000.0)),
    ("given frequencies", "ignored", "given frequencies ignored",
     changed(frequencies=lambda x: None)),
)  # fmt: skip

TURNING_ANSWERS = {
    "pairing": "as said",
    "direction": "forwards",
    "frequencies counted in": "rotary_dim",
    "pairs counted in": "rotary_dim",
    "which channels turn": "the first",
    "positions": "as given",
    "base": "as given",
    "given frequencies": "used",
}
"""What the specification answers."""
