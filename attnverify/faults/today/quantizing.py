"""Faults of numbers that are stored in eight bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.conventions.caches.quantizing import FLOAT8, INT8, float8, times
from attnverify.conventions.layer_rows import with_arguments
from attnverify.conventions.references import reference_of
from attnverify.faults.registry import add_conventional, add_faults

dequantize = reference_of("dequantize")
SCALE, ROWS, INTEGER, FLOAT, SAID, ONCE = (f"dequantize, clause {number}" for number in range(1, 7))


def scaled_by(change: Callable[[ndarray], ndarray]) -> Any:
    return with_arguments(dequantize, scale=lambda x: change(x["scale"]))


def answered(change: Callable[..., Any]) -> Any:
    """The right numbers, changed."""
    return lambda **x: change(dequantize(**x), **x)


def number(bits: ndarray) -> ndarray:
    """What a float8 means."""
    return np.where(bits & 127 == 127, np.nan, float8(bits))


def instead_of_nan(size: float) -> Callable[[ndarray], ndarray]:
    return lambda bits: np.where(bits & 127 == 127, np.copysign(size, float8(bits)), float8(bits))


def with_hidden_bit(bits: ndarray) -> ndarray:
    """The highest bit of the mantissa taken to be set in subnormal numbers too."""
    low = bits & 127
    size = np.where(low < 8, np.ldexp(8.0 + low, -10), np.abs(number(bits)))
    return np.where(bits > 127, -size, size)


def transposed(scale: ndarray) -> ndarray:
    """The scales read column by column."""
    last = scale.reshape(-1, scale.shape[-1])
    return last.T.reshape(scale.shape)


def by_channel(**x: Any) -> Any:
    """Scales along the channels where there is one for each, as for rows."""
    right, scale = dequantize(**x), x["scale"]
    D, ones = x["stored"].shape[-1], np.ones_like(scale)
    if scale.shape[-1] != D:
        return dequantize(**x | {"scale": np.roll(scale, 1, axis=-1)})
    found = dequantize(**x | {"scale": ones}) * scale[..., None, :]
    return found if found.shape == right.shape else right


def by_runs(**x: Any) -> Any:
    """The scale of row n for the n-th run of as many numbers, begun one number late."""
    shape = x["stored"].shape
    each = np.repeat(x["scale"].ravel(), shape[-1])
    return dequantize(**x | {"scale": np.ones_like(x["scale"])}) * np.roll(each, 1).reshape(shape)


def words_reversed(stored: ndarray) -> ndarray:
    """Four bytes of a word in the other order."""
    flat, whole = stored.ravel().copy(), stored.size // 4 * 4
    flat[:whole] = flat[:whole].reshape(-1, 4)[:, ::-1].ravel()
    return flat.reshape(stored.shape)


def last_channel_lost(y: ndarray, **x: Any) -> ndarray:
    y = y.copy()
    y[..., -1] = 0
    return y


def in_float8(y: ndarray, **x: Any) -> ndarray:
    """Three bits of mantissa kept of the product."""
    m, e = np.frexp(y)
    return np.ldexp(np.rint(m * 16), e - 4)


add_conventional("numerics", (
    ("dequantize_divided", "a scale", "divides", "this project", SCALE, "scales other than 1"),
    ("dequantize_scale_ignored", "a scale", "ignored", "tokenspeed #759", SCALE,
     "scales other than 1"),
    ("dequantize_one_scale", "scales", "one", "sgl-kernel-xpu #252", ROWS, "scales that differ"),
    ("dequantize_all_integers", "stored as", "int8", "this project", SAID, "float8"),
    ("dequantize_all_floats", "stored as", "float8", "this project", SAID, "int8"),
    ("dequantize_e5m2", "float8", "e5m2", "this project", FLOAT, "float8"),
    ("dequantize_e4m3fnuz", "float8", "e4m3fnuz", "this project", FLOAT, "float8"),
    ("dequantize_with_infinities", "float8", "e4m3 with infinities", "this project", FLOAT,
     "float8 of 256 and more"),
    ("dequantize_unsigned", "int8", "from 0 to 255", "this project", INTEGER,
     "negative integers"),
    ("dequantize_from_128", "int8", "128 is 0", "this project", INTEGER, "int8"),
))  # fmt: skip
add_faults("numerics", (
    ("dequantize_scale_of_next_row", "the scale of the row behind", "this project", ROWS, "N > 1",
     scaled_by(lambda s: np.roll(s, 1, axis=-1))),
    ("dequantize_scale_of_first_row", "the scale of the first row for all rows", "this project",
     ROWS, "N > 1", scaled_by(lambda scale: np.broadcast_to(scale[..., :1], scale.shape))),
    ("dequantize_scale_of_first_entry", "the scales of the first entry for all", "this project",
     ROWS, "leading axes", scaled_by(lambda scale: np.broadcast_to(scale.reshape(-1,
      scale.shape[-1])[0], scale.shape))),
    ("dequantize_scales_transposed", "scales read column by column", "this project", ROWS,
     "leading axes, N > 1", scaled_by(transposed)),
    ("dequantize_scales_by_channel", "scales read along the channels", "this project", ROWS,
     "N > 1", by_channel),
    ("dequantize_scale_one_late", "scales that begin one number late", "this project", ROWS,
     "N > 1", by_runs),
    ("dequantize_scale_squared", "the scale applied twice", "this project", SCALE,
     "scales other than 1", scaled_by(np.square)),
    ("dequantize_scale_without_sign", "a scale without its sign", "this project", SCALE,
     "negative scales", scaled_by(np.abs)),
    ("dequantize_scale_off", "a scale 2 % too large", "this project", SCALE, "any",
     scaled_by(lambda s: s * 1.02)),
    ("dequantize_scale_power_of_two", "scales rounded up to powers of two", "this project", SCALE,
     "scales that are none", scaled_by(lambda scale: np.where(scale == 0, 0.0,
      np.copysign(np.exp2(np.ceil(np.log2(np.abs(scale)))), scale)))),
    ("dequantize_scale_in_bfloat16", "scales kept in bfloat16", "this project", ONCE,
     "scales of more than 8 bits", scaled_by(lambda s: round_to(s, "bfloat16")),
     {"wrong_in": ("float64", "float32", "float16")}),
    ("dequantize_scale_in_float16", "scales kept in float16", "this project", ONCE,
     "scales of more than 11 bits", scaled_by(lambda s: round_to(s, "float16")),
     {"wrong_in": ("float64", "float32")}),
    ("dequantize_product_in_float8", "a product that is kept in float8", "this project", ONCE,
     "any", answered(in_float8)),
    ("dequantize_product_in_bfloat16", "a product that is kept in bfloat16", "this project", ONCE,
     "any", answered(lambda y, **x: round_to(y, "bfloat16")),
     {"wrong_in": ("float64", "float32", "float16")}),
    ("dequantize_without_subnormals", "subnormal float8 numbers taken for 0", "this project",
     FLOAT, "float8 below 2^-6", partial(times, lambda bits: np.where(bits & 120 == 0, 0.0,
      number(bits)),
      FLOAT8)),
    ("dequantize_subnormals_as_normal", "subnormal float8 numbers read as normal ones",
     "this project", FLOAT, "float8 below 2^-6", partial(times, with_hidden_bit, FLOAT8)),
    ("dequantize_nan_as_480", "NaN read as 480", "this project", FLOAT, "float8, NaN",
     partial(times, instead_of_nan(480.0), FLOAT8)),
    ("dequantize_nan_as_448", "NaN read as 448", "this project", FLOAT, "float8, NaN",
     partial(times, instead_of_nan(448.0), FLOAT8)),
    ("dequantize_nan_as_zero", "NaN replaced by 0", "this project", FLOAT, "float8, NaN",
     answered(lambda y, **x: np.nan_to_num(y, nan=0.0, posinf=np.inf, neginf=-np.inf))),
    ("dequantize_float8_complement", "a negative float8 read as a complement", "this project",
     FLOAT, "negative float8", partial(times, lambda bits: np.where(bits > 127, -number(256 - bits),
      number(bits)), FLOAT8)),
    ("dequantize_without_sign", "float8 without its sign", "this project", FLOAT,
     "negative float8", partial(times, lambda bits: np.abs(number(bits)), FLOAT8)),
    ("dequantize_least_clipped", "-128 taken for -127", "this project", INTEGER, "-128",
     partial(times, lambda bits: np.maximum((bits ^ 128) - 128, -127), INT8)),
    ("dequantize_words_reversed", "four bytes of a word in the other order", "this project",
     INTEGER, "D > 1", with_arguments(dequantize, stored=lambda x: words_reversed(x["stored"]))),
    ("dequantize_last_channel_lost", "the last channel not written", "this project", SCALE, "any",
     answered(last_channel_lost)),
))  # fmt: skip
