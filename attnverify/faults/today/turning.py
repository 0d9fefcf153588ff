"""Faults of rotary positions, and of their gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.conventions.layer_rows import Options, with_arguments
from attnverify.conventions.references import reference_of
from attnverify.conventions.turning import changed, frequencies, pairs
from attnverify.faults.registry import add_conventional, add_faults

rotary, gradient = reference_of("rotary_embedding"), reference_of("rotary_embedding_grad")
PAIRS, WIDTH, EXACT, STILL, GIVEN, ROWS, TURN, WIDE = (
    f"rotary_embedding, clause {number}" for number in range(1, 9)
)
BACK = "rotary_embedding_grad"
back = partial(with_arguments, gradient)


def channels(R: int, pairing: str) -> tuple[slice, slice]:
    """The first and the second channels of all pairs."""
    halves = slice(0, R), slice(R, 2 * R)
    return halves if pairing == "halves" else (slice(0, 2 * R, 2), slice(1, 2 * R, 2))


def turned(
    make: Callable[[ndarray, ndarray, ndarray], tuple[ndarray, ndarray, ndarray, ndarray]]
    | None = None,
    angle_of: Callable[[ndarray, ndarray], ndarray] = np.multiply,
    table: Callable[[ndarray], ndarray] = lambda x: x,
) -> Callable[..., ndarray]:
    """
    Pairs turned in plain lines: an angle of positions and frequencies, tables of it, and the four
    numbers of each turn.
    """

    def rotate(**x: Any) -> ndarray:
        f, R = frequencies(x), pairs(x)
        angle = angle_of(x["positions"][:, None, :, None].astype(float), f)
        cos, sin = table(np.cos(angle)), table(np.sin(angle))
        first, second = channels(R, x["pairing"])
        m = make(angle, cos, sin) if make else (cos, -sin, sin, cos)
        y, a, c = x["x"].copy(), x["x"][..., first], x["x"][..., second]
        y[..., first], y[..., second] = a * m[0] + c * m[1], a * m[2] + c * m[3]
        return y

    return rotate


def angle_in(dtype: str) -> Callable[..., ndarray]:
    """Positions, frequencies and their product rounded to a format."""

    return turned(angle_of=lambda p, f: round_to(round_to(p, dtype) * round_to(f, dtype), dtype))


def table_in(dtype: str) -> Callable[..., ndarray]:
    return turned(table=lambda x: round_to(x, dtype))


def tiled_for_the_other(**x: Any) -> ndarray:
    """Each channel by the frequency that it has in the other pairing."""
    R, f = pairs(x), frequencies(x)
    halves = x["pairing"] == "halves"
    of_channel = np.repeat(f, 2) if halves else np.tile(f, 2)
    angle = x["positions"][:, None, :, None] * of_channel
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = channels(R, x["pairing"])
    y, a, c = x["x"].copy(), x["x"][..., first], x["x"][..., second]
    y[..., first] = a * cos[..., first] - c * sin[..., first]
    y[..., second] = c * cos[..., second] + a * sin[..., second]
    return y


def in_place(**x: Any) -> ndarray:
    """The second channel made of the first one, which is turned already."""
    right = rotary(**x)
    R = pairs(x)
    angle = x["positions"][:, None, :, None] * frequencies(x)
    first, second = channels(R, x["pairing"])
    c = x["x"][..., second]
    right[..., second] = right[..., first] * np.sin(angle) + c * np.cos(angle)
    return right


def rest_cleared(**x: Any) -> ndarray:
    y = rotary(**x)
    y[..., 2 * pairs(x) :] = 0
    return y


def rest_reversed(**x: Any) -> ndarray:
    """The channels that do not turn in another order."""
    y = rotary(**x)
    y[..., 2 * pairs(x) :] = y[..., 2 * pairs(x) :][..., ::-1]
    return y


def unturned_beyond(length: int, /, **x: Any) -> ndarray:
    """Rows whose position is behind the end of the table left as they are."""
    beyond = (np.abs(x["positions"]) >= length)[:, None, :, None]
    return np.where(beyond, x["x"], rotary(**x))


def by_head(**x: Any) -> ndarray:
    """Row i of head h turned by the position of row h."""
    H, N = x["x"].shape[1:3]
    y = np.empty_like(x["x"])
    for h in range(H):
        same = np.broadcast_to(x["positions"][:, h % N : h % N + 1], x["positions"].shape)
        y[:, h : h + 1] = rotary(**x | {"x": x["x"][:, h : h + 1], "positions": same})
    return y


def as_int16(x: Options) -> ndarray:
    with np.errstate(all="ignore"):
        return x["positions"].astype(np.int16).astype(np.int64)


def rest_of_gradient_lost(**x: Any) -> Any:
    d_x, *more = gradient(**x)
    d_x[..., 2 * pairs(x) :] = 0
    return d_x, *more


def by_frequency(change: Callable[[ndarray, Options], ndarray], /, **x: Any) -> Any:
    """Another gradient by the frequencies, where there is one."""
    d_x, *more = gradient(**x)
    return d_x, *(change(each, x) for each in more)


def last_row_alone(d_frequencies: ndarray, x: Options) -> ndarray:
    cut = {name: x[name][:, :, -1:] for name in ("d_output", "x")}
    last: ndarray = gradient(**x | cut | {"positions": x["positions"][:, -1:]})[1]
    return last


def without_positions(d_frequencies: ndarray, x: Options) -> ndarray:
    """The sum of what arrives at the angles, not multiplied by the positions."""
    total = np.zeros_like(d_frequencies)
    output, (first, second) = rotary(**without(x)), channels(pairs(x), x["pairing"])
    arriving = x["d_output"]
    total += (arriving[..., second] * output[..., first]).sum((0, 1, 2))
    return total - (arriving[..., first] * output[..., second]).sum((0, 1, 2))


def without(x: Options) -> Options:
    return {name: value for name, value in x.items() if name != "d_output"}


HALF_ANGLE = {"wrong_in": ("float64",)}
add_conventional("relative", (
    ("rotary_embedding_other_pairing", "pairing", "the other", "nanochat #264", PAIRS, "R > 1"),
    ("rotary_embedding_backwards", "direction", "backwards", "this project", TURN,
     "a position other than 0"),
    ("rotary_embedding_frequencies_of_head", "frequencies counted in", "all channels",
     "transformers PR #48652", WIDTH, "rotary_dim < D"),
    ("rotary_embedding_exponents_doubled", "frequencies counted in", "pairs",
     "this project", WIDTH, "R > 1"),
    ("rotary_embedding_pairs_of_head", "pairs counted in", "all channels", "coreai-models #66",
     WIDTH, "rotary_dim < D, halves"),
    ("rotary_embedding_last_channels", "which channels turn", "the last", "this project", WIDTH,
     "rotary_dim < D"),
    ("rotary_embedding_turned_whole", "which channels turn", "all", "zml PR #660", WIDTH,
     "rotary_dim < D"),
    ("rotary_embedding_offset_ignored", "positions", "from 0", "flash-linear-attention #766", ROWS,
     "positions that do not begin at 0"),
    ("rotary_embedding_one_further", "positions", "one further", "this project", STILL, "any"),
    ("rotary_embedding_base_ignored", "base", "10000", "this project", GIVEN, "another base"),
    ("rotary_embedding_frequencies_ignored", "given frequencies", "ignored", "this project", GIVEN,
     "frequencies"),
))  # fmt: skip
add_faults("relative", (
    ("rotary_embedding_angle_in_bfloat16", "angles formed in bfloat16", "gpt-neox #1003", EXACT,
     "positions beyond 256", angle_in("bfloat16")),
    ("rotary_embedding_angle_in_float16", "angles formed in float16", "gpt-neox #1003", EXACT,
     "positions beyond 2048", angle_in("float16")),
    ("rotary_embedding_angle_in_float32", "angles formed in float32", "this project", EXACT,
     "float64, far positions", angle_in("float32"), HALF_ANGLE),
    ("rotary_embedding_frequencies_in_bfloat16", "frequencies kept in bfloat16",
     "transformers PR #29285", WIDE, "positions beyond 40", turned(angle_of=lambda p,
      f: p * round_to(f, "bfloat16"))),
    ("rotary_embedding_table_in_bfloat16", "cosines and sines kept in bfloat16",
     "modded-nanogpt #39", WIDE, "any", table_in("bfloat16")),
    ("rotary_embedding_table_in_float16", "cosines and sines kept in float16",
     "transformers #25681", WIDE, "any", table_in("float16")),
    ("rotary_embedding_tiled_for_the_other", "tables tiled for the other pairing", "this project",
     PAIRS, "R > 1", tiled_for_the_other),
    ("rotary_embedding_in_place", "the second channel made of the first one after its turn",
     "this project", TURN, "any", in_place),
    ("rotary_embedding_reflected", "pairs reflected, not turned", "this project", STILL, "any",
     turned(lambda angle, cos, sin: (cos, sin, sin, -cos))),
    ("rotary_embedding_one_sign", "a sine of the same sign in both channels", "this project",
     TURN, "a position other than 0", turned(lambda angle, cos, sin: (cos, sin, sin, cos))),
    ("rotary_embedding_tables_exchanged", "cosines and sines exchanged", "this project", STILL,
     "any", turned(lambda angle, cos, sin: (sin, -cos, cos, sin))),
    ("rotary_embedding_rest_cleared", "zeros in the channels that do not turn", "this project",
     WIDTH, "rotary_dim < D", rest_cleared),
    ("rotary_embedding_rest_shuffled", "channels that do not turn in another order",
     "vllm #51049", WIDTH, "rotary_dim < D - 1", rest_reversed),
    ("rotary_embedding_unturned_beyond_table", "rows beyond a table of 4096 that are not turned",
     "flash-attention, ops/triton/rotary.py", EXACT, "positions of 4096 and more",
     partial(unturned_beyond, 4096)),
    ("rotary_embedding_table_clipped", "positions clipped to a table of 8192", "vllm #43676",
     EXACT, "positions of 8192 and more",
     changed(positions=lambda x: np.clip(x["positions"], -8191, 8191))),
    ("rotary_embedding_table_wrapped", "positions counted anew behind a table of 131072",
     "this project", EXACT, "positions of 131072 and more",
     changed(positions=lambda x: np.sign(x["positions"]) * (np.abs(x["positions"]) % 131072))),
    ("rotary_embedding_positions_in_16_bits", "positions of 16 bits", "this project", EXACT,
     "positions beyond 32767", changed(positions=as_int16)),
    ("rotary_embedding_negative_at_zero", "negative positions taken for 0", "this project", EXACT,
     "negative positions", changed(positions=lambda x: np.maximum(x["positions"], 0))),
    ("rotary_embedding_first_entry", "the positions of the first batch entry for all",
     "this project", ROWS, "B > 1",
     changed(positions=lambda x: np.broadcast_to(x["positions"][:1], x["positions"].shape))),
    ("rotary_embedding_by_head", "positions read along the heads", "this project", ROWS,
     "N > 1 or H > 1", by_head),
    ("rotary_embedding_consecutive", "positions that follow each other from the first",
     "mlx-vlm #1983", ROWS, "positions with gaps", changed(positions=lambda x: x["positions"][:,
      :1] + np.arange(x["positions"].shape[1]))),
    ("rotary_embedding_next_frequency", "the frequency of the pair before", "this project", PAIRS,
     "R > 1", changed(frequencies=lambda x: np.roll(frequencies(x), 1))),
))  # fmt: skip
add_faults("backward", (
    ("rotary_embedding_grad_turned_forwards", "a gradient turned forwards", "this project",
     f"{BACK}, clause 1", "a position other than 0",
     lambda **x: (rotary(**without(x) | {"x": x["d_output"]}), *gradient(**x)[1:])),
    ("rotary_embedding_grad_unturned", "a gradient that is not turned", "this project",
     f"{BACK}, clause 1", "a position other than 0",
     lambda **x: (x["d_output"].copy(), *gradient(**x)[1:])),
    ("rotary_embedding_grad_rest_lost", "no gradient where channels do not turn", "this project",
     f"{BACK}, clause 1", "rotary_dim < D", rest_of_gradient_lost),
    ("rotary_embedding_grad_other_pairing", "a gradient of the other pairing",
     "vllm-ascend #12765", f"{BACK}, clause 1", "R > 1",
     back(pairing=lambda x: {"halves": "interleaved", "interleaved": "halves"}[x["pairing"]])),
    ("rotary_embedding_grad_last_row", "the gradient by frequencies of the last row alone",
     "this project", f"{BACK}, clause 2", "N > 1", partial(by_frequency, last_row_alone)),
    ("rotary_embedding_grad_without_positions", "a gradient by frequencies without the positions",
     "this project", f"{BACK}, clause 2", "positions other than 1",
     partial(by_frequency, without_positions)),
    ("rotary_embedding_grad_of_frequencies_negative", "a negative gradient by frequencies",
     "this project", f"{BACK}, clause 2", "frequencies", partial(by_frequency, lambda d, x: -d)),
))  # fmt: skip
