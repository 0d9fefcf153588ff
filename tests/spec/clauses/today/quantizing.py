"""Clauses of numbers that are stored in eight bits."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses

DEQUANTIZE = "dequantize"
Call = dict[str, Any]


def every_pattern(stored_as: str, scale: float = 1.0) -> Call:
    """All 256 patterns in one row, those of 0 to 127 first."""
    stored = np.arange(256).astype(np.uint8).view(np.int8)[None]
    return {"stored": stored, "scale": np.array([scale]), "stored_as": stored_as}


def rows(*shape: int, **more: Any) -> Call:
    rng = np.random.default_rng(len(shape))
    stored = rng.integers(-128, 128, shape).astype(np.int8)
    return {"stored": stored, "scale": rng.standard_normal(shape[:-1]), "stored_as": "int8"} | more


def divided(scale: ndarray, **_: Any) -> Call:
    with np.errstate(all="ignore"):
        return {"scale": 1 / scale}


@clause(DEQUANTIZE, 1, false=[
    given(DEQUANTIZE, divided), given(DEQUANTIZE, lambda scale, **_: {"scale": np.abs(scale)}),
    given(DEQUANTIZE, lambda scale, **_: {"scale": np.where(scale == 0, 1.0, scale)}),
])  # fmt: skip
def a_scale_multiplies(dequantize: Function) -> None:
    for scale in (4.0, -0.5, 0.0):
        found = dequantize(**every_pattern("int8", scale))
        assert (found == scale * every_pattern("int8")["stored"]).all()


def first_alone(scale: ndarray, **_: Any) -> Call:
    return {"scale": np.broadcast_to(scale.ravel()[0], scale.shape)}


def first_lead(scale: ndarray, **_: Any) -> Call:
    return {"scale": np.broadcast_to(scale[:1], scale.shape)}


@clause(DEQUANTIZE, 2, false=[given(DEQUANTIZE, first_alone), given(DEQUANTIZE, first_lead)])
def each_row_has_its_own_scale(dequantize: Function) -> None:
    call = rows(2, 3, 4, 5)
    found = dequantize(**call)
    for place in np.ndindex(2, 3, 4):
        assert (found[place] == call["stored"][place] * call["scale"][place]).all()
    whole = rows(2, 3, 5)
    one = dequantize(**whole | {"scale": np.broadcast_to(0.25, (2, 3))})
    assert (one == whole["stored"] * 0.25).all()
    assert refuses(dequantize, "stored: wanted", **call | {"scale": call["scale"][:1]})


def unsigned(found: ndarray, stored: ndarray, scale: ndarray, **_: Any) -> ndarray:
    return stored.view(np.uint8) * scale[..., None]


@clause(DEQUANTIZE, 3, false=[
    answering(DEQUANTIZE, unsigned), given(DEQUANTIZE, lambda **_: {"stored_as": "float8_e4m3fn"}),
])  # fmt: skip
def int8_is_an_integer(dequantize: Function) -> None:
    found = dequantize(**every_pattern("int8"))[0]
    assert found.tolist() == [*range(128), *range(-128, 0)]


def numbers_for_nan(found: ndarray, **_: Any) -> ndarray:
    return np.where(np.isnan(found), 480.0, found)


def subnormals_lost(found: ndarray, **_: Any) -> ndarray:
    return np.where(np.abs(found) < 2.0**-6, 0.0, found)


def half(found: ndarray, **_: Any) -> ndarray:
    """Twin: a bias of 8."""
    return found / 2


@clause(DEQUANTIZE, 4, false=[
    answering(DEQUANTIZE, numbers_for_nan), answering(DEQUANTIZE, subnormals_lost),
    answering(DEQUANTIZE, half), given(DEQUANTIZE, lambda **_: {"stored_as": "int8"}),
])  # fmt: skip
def float8_has_four_bits_of_exponent_and_three_of_mantissa(dequantize: Function) -> None:
    found = dequantize(**every_pattern("float8_e4m3fn"))[0]
    assert found[[0, 1, 7, 8, 0x38, 0x7E]].tolist() == [0, 2**-9, 7 * 2**-9, 2**-6, 1, 448]
    assert (np.diff(found[:127]) > 0).all() and not np.isinf(found).any()
    assert np.flatnonzero(np.isnan(found)).tolist() == [127, 255]
    assert (found[128:255] == -found[:127]).all() and np.signbit(found[128])


def with_default(stored: ndarray, scale: ndarray, stored_as: Any = "int8") -> Any:
    """Twin: another word is taken for int8."""
    known = stored_as if stored_as == "float8_e4m3fn" else "int8"
    return spec.dequantize(stored, scale, known)


def of_any_integers(stored: ndarray, **call: Any) -> Any:
    """Twin: the lowest eight bits of any integer."""
    return spec.dequantize(stored.astype(np.int8), **call)


@clause(DEQUANTIZE, 5, false=[with_default, of_any_integers])
def the_format_is_said(dequantize: Function) -> None:
    for other in ("float8_e5m2", "fp8", None):
        assert refuses(dequantize, "stored_as: wanted", **rows(2, 3, stored_as=other))
    for dtype in (np.int64, np.uint8, np.float64):
        call = rows(2, 3)
        assert refuses(
            dequantize, "stored: wanted int8", **call | {"stored": call["stored"].astype(dtype)}
        )


def in_float64(found: ndarray, **_: Any) -> ndarray:
    return found.astype(np.float64)


def rounded_twice(found: ndarray, **_: Any) -> ndarray:
    """Twin: a product that float16 held in between."""
    return found.astype(np.float16).astype(found.dtype)


@clause(DEQUANTIZE, 6, false=[
    answering(DEQUANTIZE, in_float64), answering(DEQUANTIZE, rounded_twice)
])  # fmt: skip
def a_product_is_rounded_once_to_the_dtype_of_the_scale(dequantize: Function) -> None:
    call = rows(3, 4)
    narrow = call | {"scale": call["scale"].astype(np.float32)}
    found = dequantize(**narrow)
    exact = call["stored"] * narrow["scale"].astype(np.float64)[..., None]
    assert found.dtype == np.float32 and (found == exact.astype(np.float32)).all()
