"""Products of bytes and of 16 bits that are added up."""

from collections.abc import Callable

import numpy as np

from attnverify.ptx.decode import Form, Step, instruction
from attnverify.ptx.kinds import KINDS, Array, Kind

__all__: list[str] = []


@instruction("dp4a")
def dot_of_four(form: Form) -> Step:
    """Four bytes times four bytes, added to a third number; 32 bits, which wrap around."""
    left, right = form.kind("u32", "s32"), form.kind("u32", "s32")
    return dot(form, left, right, lambda x: parts(x, left, 1), lambda y: parts(y, right, 1))


@instruction("dp2a")
def dot_of_two(form: Form) -> Step:
    """Two numbers of 16 bits times two bytes, the lower or the upper two of a register."""
    first = 2 * (form.choice("lo", "hi") == "hi")
    left, right = form.kind("u32", "s32"), form.kind("u32", "s32")
    return dot(
        form,
        left,
        right,
        lambda x: parts(x, left, 2),
        lambda y: parts(y, right, 1)[:, first : first + 2],
    )


def dot(
    form: Form,
    left: Kind,
    right: Kind,
    of_left: Callable[[Array], Array],
    of_right: Callable[[Array], Array],
) -> Step:
    form.expect(4)
    x, y, z = form.read(1, left), form.read(2, right), form.read(3, "b32")

    return form.result(
        "b32", lambda x, y, z: ((of_left(x) * of_right(y)).sum(1) + z).astype(np.uint32), [x, y, z]
    )


def parts(x: Array, kind: Kind, size: int) -> Array:
    """[lanes each] the numbers of so many bytes in a register, as int64."""
    dtype = KINDS[f"{kind.name[0]}{8 * size}"].dtype
    return np.ascontiguousarray(x).view(dtype).reshape(len(x), -1).astype(np.int64)
