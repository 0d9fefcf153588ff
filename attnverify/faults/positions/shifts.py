"""
Faults of shift_right and rel_shift: the fill, the wrap, the reshape, and numbers that do not
survive the move.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.registry import fault
from attnverify.reference import attention

RIGHT, LEFT = (
    "shift_right, the wrapped-around elements included",
    "rel_shift, the wrapped-around elements included",
)


def wraps(x: ndarray) -> ndarray:
    """Where rel_shift shows another row's numbers or the padding: beyond the frontier."""
    N, M = x.shape[-2:]
    return np.arange(M) > np.arange(N)[:, None] + M - N


@fault(
    "shifts",
    "zeros for what wraps around",
    source="kimiyoung/transformer-xl, zero_triu",
    clause=LEFT,
    reveals="N > 2",
)
def rel_shift_zero_triu(x: ndarray) -> Any:
    return np.where(wraps(x), 0, attention.rel_shift(x))


@fault(
    "shifts",
    "a triangle of the leading axes",
    source="speechbrain commit 829a98381",
    clause=LEFT,
    reveals="any",
)
def rel_shift_wrong_triangle(x: ndarray) -> Any:
    N, M = x.shape[-2:]
    return np.where(np.tri(N, M, dtype=bool), attention.rel_shift(x), 0)


@fault(
    "shifts", "zeros for what wraps around", source="this project", clause=RIGHT, reveals="N > 2"
)
def shift_right_zero_fill(x: ndarray) -> Any:
    N, M = x.shape[-2:]
    return np.where(np.arange(M) < np.arange(N)[:, None], 0, attention.shift_right(x))


@fault(
    "shifts",
    "a reshape to [N+1 M] for [M+1 N]",
    source="this project",
    clause=LEFT,
    reveals="N other than M",
)
def rel_shift_wrong_reshape(x: ndarray) -> Any:
    *lead, N, M = x.shape
    padded = np.concatenate([np.zeros((*lead, N, 1)), x], axis=-1)
    return padded.reshape(*lead, N + 1, M)[..., 1:, :]


@fault(
    "shifts",
    "rows of the padded buffer, not brought back",
    source="this project",
    clause=LEFT,
    reveals="N > 1",
)
def rel_shift_rows_of_the_buffer(x: ndarray) -> Any:
    *lead, N, M = x.shape
    buffer = np.concatenate([np.zeros((*lead, N, 1)), x], axis=-1).reshape(*lead, M + 1, N)[
        ..., 1:, :
    ]
    return np.resize(buffer.swapaxes(-1, -2), x.shape)


@fault(
    "shifts",
    "the other shift",
    source="this project",
    clause="shift_right and rel_shift are not each other",
    reveals="any",
)
def shift_right_as_rel_shift(x: ndarray) -> Any:
    return attention.rel_shift(x)


@fault("shifts", "every row one place too far", source="this project", clause=LEFT, reveals="M > 1")
def rel_shift_one_more(x: ndarray) -> Any:
    return np.roll(attention.rel_shift(x).reshape(*x.shape[:-2], -1), -1, axis=-1).reshape(x.shape)


@fault(
    "shifts",
    "each row rolled by itself",
    source="this project",
    clause=RIGHT,
    reveals="N > 1, M > 1",
)
def shift_right_rolled(x: ndarray) -> Any:
    rows = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    return np.take_along_axis(x, np.broadcast_to(rows % x.shape[-1], x.shape), axis=-1)


@fault("shifts", "the printed example: 9 for 6", source="labml #218", clause=RIGHT, reveals="N > 2")
def shift_right_printed_example(x: ndarray) -> Any:
    out = attention.shift_right(x)
    if x.shape[-2] > 2:
        out[..., 2, 0] = x[..., -1, -1]
    return out


@fault(
    "shifts",
    "numbers carried through float32",
    source="this project",
    clause="bit for bit",
    reveals="float64",
    wrong_in=("float64",),
)
def shift_right_through_float32(x: ndarray) -> Any:
    return attention.shift_right(x.astype(np.float32).astype(np.float64))


@fault(
    "shifts",
    "numbers carried through float16",
    source="this project",
    clause="bit for bit",
    reveals="numbers that float16 lacks",
    wrong_in=("float64", "float32", "bfloat16"),
)
def rel_shift_through_float16(x: ndarray) -> Any:
    return attention.rel_shift(x.astype(np.float16).astype(np.float64))


@fault(
    "shifts",
    "subnormal numbers flushed",
    source="this project",
    clause="bit for bit",
    reveals="subnormal numbers",
    raw=True,
)
def rel_shift_flushed(x: ndarray) -> Any:
    from attnverify.catalogue.dtypes import tiny

    wide = x.astype(np.float64)
    return attention.rel_shift(np.where(np.abs(wide) < tiny(x.dtype.name), 0, wide))


@fault(
    "shifts",
    "the sign of zero lost",
    source="this project",
    clause="bit for bit",
    reveals="a negative zero",
)
def rel_shift_unsigned_zero(x: ndarray) -> Any:
    return attention.rel_shift(x) + 0.0


@fault(
    "shifts",
    "what wraps around multiplied away",
    source="this project",
    clause="bit for bit",
    reveals="NaN or infinity",
)
def shift_right_multiplied(x: ndarray) -> Any:
    return attention.shift_right(x) * np.ones(x.shape) + np.where(np.isfinite(x), 0, x * 0)


@fault(
    "shifts",
    "padding once for the whole array",
    source="this project",
    clause="leading axes are free",
    reveals="several leading entries",
)
def shift_right_across_the_batch(x: ndarray) -> Any:
    return attention.shift_right(x.reshape(-1, x.shape[-1])).reshape(x.shape)


@fault(
    "shifts",
    "a gap of NaN where the padding goes",
    source="this project",
    clause="a zero column",
    reveals="N > 1",
)
def rel_shift_uninitialised(x: ndarray) -> Any:
    return attention.shift(x, front=True, fill=np.nan)


@fault(
    "shifts",
    "rows beyond 64 left as they were",
    source="this project",
    clause=RIGHT,
    reveals="N > 64",
)
def shift_right_first_64_rows(x: ndarray) -> Any:
    return np.where(np.arange(x.shape[-2])[:, None] < 64, attention.shift_right(x), x)
