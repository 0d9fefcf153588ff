"""A sum or product of an address that left its 32 bits is named, and only where it did."""

import numpy as np
import pytest

from attnverify import ptx
from tests.ptx.small import kernel

START = """
.reg .pred %p; .reg .b32 %t, %n, %i<9>; .reg .b64 %o, %d<4>;
ld.param.u64 %o, [out]; ld.param.u32 %n, [n]; mov.u32 %t, %tid.x;
"""
SIGNED, UNSIGNED = (
    f"mul.wide.{kind} %d1, %i1, 4; add.s64 %d2, %o, %d1; st.global.b32 [%d2], %t;"
    for kind in ("s32", "u32")
)


def finding(body: str, n: int) -> ptx.Finding:
    with pytest.raises(ptx.Finding) as raised:
        kernel(START + body, [".u64 out", ".u32 n"]).launch(1, 32, [np.zeros(64, np.uint32), n])
    return raised.value


OVERFLOWS = {
    "a product": ("mul.lo.s32 %i1, %n, %n;", SIGNED, 70000, "70000 times 70000 left 32 bits"),
    "a product and a sum": (
        "mad.lo.s32 %i1, %n, -70000, 5;",
        SIGNED,
        70000,
        "70000 times -70000 plus 5 left 32 bits",
    ),
    "a sum": ("add.s32 %i1, %n, %n;", SIGNED, 2**30, f"{2**30} plus {2**30} left 32 bits"),
    "a shift": ("shl.b32 %i1, %n, 20;", SIGNED, 2**11, "2048 times 2 to the 20 left 32 bits"),
    "without a sign": ("mul.lo.s32 %i1, %n, %n;", UNSIGNED, 70000, "70000 times 70000 left"),
    "before a move and a sum": (
        "mul.lo.s32 %i2, %n, %n;",
        f"mov.b32 %i3, %i2; add.s32 %i1, %i3, %t; {SIGNED}",
        70000,
        "70000 times 70000 left 32 bits",
    ),
    "in a sum of 64 bits": (
        "mul.lo.s32 %i1, %n, %n;",
        "cvt.s64.s32 %d1, %i1; add.s64 %d1, %d1, %d1; shl.b64 %d1, %d1, 1; "
        "add.s64 %d2, %o, %d1; st.global.b32 [%d2], %t;",
        70000,
        "70000 times 70000 left 32 bits",
    ),
}


@pytest.mark.parametrize(("wrong", "rest", "n", "told"), OVERFLOWS.values(), ids=OVERFLOWS)
def test_what_left_its_32_bits_is_named(wrong: str, rest: str, n: int, told: str) -> None:
    found = finding(wrong + rest, n)
    assert found.kind == "overflow" and found.message.startswith(told), str(found)
    assert found.other is not None and wrong.rstrip(";") == found.other.instruction


BOUNDS = {
    "a number that is only too large": ("mad.lo.s32 %i1, %n, 3, 1;" + SIGNED, 1000),
    "a negative one": ("sub.s32 %i1, %n, 7;" + SIGNED, 3),
    "a large one without a sign": ("mul.lo.s32 %i1, %n, %n;" + UNSIGNED, 65535),
    "a constant that is taken away without a sign": ("add.s32 %i1, %n, -5;" + UNSIGNED, 300),
}


@pytest.mark.parametrize(("body", "n"), BOUNDS.values(), ids=BOUNDS)
def test_what_stayed_in_its_bits_is_out_of_bounds_alone(body: str, n: int) -> None:
    assert finding(body, n).kind == "out of bounds"


def test_a_loop_is_followed() -> None:
    body = f"""mov.b32 %i2, 0; mov.b32 %i3, 0;
    AGAIN: mov.b32 %i1, %i3; {SIGNED}
    add.s32 %i2, %i2, 1; mul.lo.s32 %i3, %i2, %n;
    setp.lt.s32 %p, %i2, 3; @%p bra AGAIN;"""
    found = finding(body, 2**31 - 1)
    assert found.kind == "out of bounds"  # once %n itself is too far, nothing has overflowed
    found = finding(body.replace("%i2, %n;", "%i2, 0; mul.lo.s32 %i3, %n, 3;"), 2**30)
    assert found.kind == "overflow"
