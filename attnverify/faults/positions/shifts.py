"""
Faults of shift_right and rel_shift: the fill, the wrap, the reshape, and numbers that do not
survive the move.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.faults.changes import with_outputs
from attnverify.faults.registry import add_faults, fault
from attnverify.reference import attention

RIGHT, LEFT = (
    "shift_right, the wrapped-around elements included",
    "rel_shift, the wrapped-around elements included",
)


def printed(out: ndarray, given: Any) -> ndarray:
    """9 for 6, as the printed example has it."""
    if out.shape[-2] > 2:
        out[..., 2, 0] = given["x"][..., -1, -1]
    return out


@fault("shifts", "a reshape to [N+1 M] for [M+1 N]", source="this project",
       clause=LEFT, reveals="N other than M")  # fmt: skip
def rel_shift_wrong_reshape(x: ndarray) -> Any:
    *lead, N, M = x.shape
    padded = np.concatenate([np.zeros((*lead, N, 1)), x], axis=-1)
    return padded.reshape(*lead, N + 1, M)[..., 1:, :]


@fault("shifts", "rows of the padded buffer, not brought back",
       source="this project", clause=LEFT, reveals="N > 1")  # fmt: skip
def rel_shift_rows_of_the_buffer(x: ndarray) -> Any:
    *lead, N, M = x.shape
    buffer = np.concatenate([np.zeros((*lead, N, 1)), x], axis=-1).reshape(*lead, M + 1, N)[
        ..., 1:, :
    ]
    return np.resize(buffer.swapaxes(-1, -2), x.shape)


@fault("shifts", "subnormal numbers flushed", source="this project",
       clause="bit for bit", reveals="subnormal numbers", raw=True)  # fmt: skip
def rel_shift_flushed(x: ndarray) -> Any:
    from attnverify.catalogue.dtypes import tiny

    wide = x.astype(np.float64)
    return attention.rel_shift(np.where(np.abs(wide) < tiny(x.dtype.name), 0, wide))


add_faults("shifts", (
    ("rel_shift_one_more", "every row one place too far", "this project", LEFT, "M > 1",
     lambda x: np.roll(attention.rel_shift(x).reshape(*x.shape[:-2], -1), -1,
      axis=-1).reshape(x.shape)),
    ("shift_right_through_float32", "numbers carried through float32", "this project",
     "bit for bit", "float64",
     lambda x: attention.shift_right(x.astype(np.float32).astype(np.float64)),
     {"wrong_in": ("float64",)}),
    ("rel_shift_through_float16", "numbers carried through float16", "this project",
     "bit for bit", "numbers that float16 lacks",
     lambda x: attention.rel_shift(x.astype(np.float16).astype(np.float64)),
     {"wrong_in": ("float64", "float32", "bfloat16")}),
    ("rel_shift_unsigned_zero", "the sign of zero lost", "this project", "bit for bit",
     "a negative zero", lambda x: attention.rel_shift(x) + 0.0),
    ("shift_right_multiplied", "what wraps around multiplied away", "this project", "bit for bit",
     "NaN or infinity",
     lambda x: attention.shift_right(x) * np.ones(x.shape) + np.where(np.isfinite(x), 0, x * 0)),
    ("shift_right_across_the_batch", "padding once for the whole array", "this project",
     "leading axes are free", "several leading entries",
     lambda x: attention.shift_right(x.reshape(-1, x.shape[-1])).reshape(x.shape)),
    ("rel_shift_uninitialised", "a gap of NaN where the padding goes", "this project",
     "a zero column", "N > 1", lambda x: attention.shift(x, front=True, fill=np.nan)),
    ("shift_right_first_64_rows", "rows beyond 64 left as they were", "this project", RIGHT,
     "N > 64",
     lambda x: np.where(np.arange(x.shape[-2])[:, None] < 64, attention.shift_right(x), x)),
    ("rel_shift_wrong_triangle", "a triangle of the leading axes", "speechbrain commit 829a98381",
     LEFT, "any",
     lambda x: np.where(np.tri(*x.shape[-2:]) > 0, attention.rel_shift(x), 0)),
    ("shift_right_printed_example", "the printed example: 9 for 6", "labml #218", RIGHT, "N > 2",
     with_outputs(attention.shift_right, {0: printed})),
))  # fmt: skip
