"""
Moves and conversions against the independent model: ranges, NaN, roundings, halves, pairs, address
spaces.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from attnverify import ptx
from tests.ptx.numbers import scalar
from tests.ptx.numbers.scalar import clamped, encode, flushed, saturated, value, wrapped
from tests.ptx.numbers.test_floats import same
from tests.ptx.small import apply, corners, kernel, numbers_of

WHOLE = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
FLOATS = ["f16", "bf16", "f32", "f64"]
MODES = ["rn", "rz", "rm", "rp"]
INTEGRAL = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}


def floats(kind: str) -> list[int]:
    near = [
        encode(Fraction(n) + Fraction(e, 4), kind)
        for n in (-300, -129, -1, 0, 1, 2, 3, 127, 255, 32767, 65535, 2**31, 2**32)
        for e in (-2, -1, 0, 1, 2)
    ]
    return [*corners(kind), *near, *numbers_of(kind, 30)]


@pytest.mark.parametrize(("to", "of"), [(to, of) for to, of in product(WHOLE, WHOLE) if to != of])
def test_whole_numbers_are_cut_off_or_extended(to: str, of: str) -> None:
    x = corners(of) + numbers_of(of, 20)
    found = apply(f"cvt.{to}.{of} %d, %a;", to, (of, x))
    assert [int(d) for d in found] == [wrapped(a, of) % (1 << int(to[1:])) for a in x]


@pytest.mark.parametrize(("to", "of"), [(to, of) for to, of in product(WHOLE, WHOLE) if to != of])
def test_saturated_whole_numbers_are_held_in_range(to: str, of: str) -> None:
    x = corners(of) + numbers_of(of, 20)
    found = apply(f"cvt.sat.{to}.{of} %d, %a;", to, (of, x))
    assert [int(d) for d in found] == [clamped(wrapped(a, of), to) % (1 << int(to[1:])) for a in x]


@pytest.mark.parametrize(("of", "to", "mode"), list(product(FLOATS, WHOLE[2:], INTEGRAL)))
def test_floating_point_numbers_become_whole_ones_within_range(of: str, to: str, mode: str) -> None:
    x = floats(of)
    found = apply(f"cvt.{mode}.{to}.{of} %d, %a;", to, (of, x))
    assert [int(d) for d in found] == [
        scalar.to_whole(a, of, to, INTEGRAL[mode]) % (1 << int(to[1:])) for a in x
    ]


def test_conversions_with_ftz_see_zeros() -> None:
    x = corners("f32")
    found = apply("cvt.rpi.ftz.s32.f32 %d, %a;", "s32", ("f32", x))
    assert [int(d) for d in found] == [
        scalar.to_whole(flushed(a, "f32"), "f32", "s32", "rp") % 2**32 for a in x
    ]


CASES = [(to, of, mode) for to, of, mode in product(["f16", "bf16", "f32"], WHOLE, MODES)] + [
    ("f64", of, "rn") for of in WHOLE
]


@pytest.mark.parametrize(("to", "of", "mode"), CASES)
def test_whole_numbers_are_rounded_once(to: str, of: str, mode: str) -> None:
    hard = [
        (1 << 53) + 1,
        (1 << 24) + 1,
        (1 << 25) + 3,
        2**63 - 2**38 - 1,
        2**63 + 2**39 + 1,
        (1 << 62) + (1 << 38) + 1,
        2049,
        4099,
        257,
        65519,
        65520,
    ]
    x = [a % (1 << int(of[1:])) for a in [*corners(of), *numbers_of(of, 30), *hard]]
    found = apply(f"cvt.{mode}.{to}.{of} %d, %a;", to, (of, x))
    for a, d in zip(x, found, strict=True):
        assert int(d) == encode(Fraction(wrapped(a, of)), to, mode), (a, hex(int(d)))


NARROW = [
    ("f16", "f32"),
    ("bf16", "f32"),
    ("f32", "f64"),
    ("f16", "f64"),
    ("bf16", "f64"),
    ("bf16", "f16"),
    ("f16", "bf16"),
]


@pytest.mark.parametrize(("case", "mode"), list(product(NARROW, MODES)))
def test_narrower_formats_are_rounded_to_once(case: tuple[str, str], mode: str) -> None:
    to, of = case
    x = floats(of) + ties(to, of)
    found = apply(f"cvt.{mode}.{to}.{of} %d, %a;", to, (of, x))
    for a, d in zip(x, found, strict=True):
        wanted = encode(value(a, of), to, mode, scalar.negative(a, of))
        assert same(int(d), wanted, to), (hex(a), hex(int(d)), hex(wanted))


@pytest.mark.parametrize(("to", "of"), [("bf16", "f16"), ("f16", "bf16")])
def test_between_halves_a_rounding_that_is_left_out_is_to_the_nearest(to: str, of: str) -> None:
    x = floats(of) + ties(to, of)
    plain, nearest = (apply(f"cvt{how}.{to}.{of} %d, %a;", to, (of, x)) for how in ("", ".rn"))
    assert plain.tolist() == nearest.tolist()


def ties(to: str, of: str) -> list[int]:
    """Numbers in the middle of two of the narrower format, and next to it."""
    digits, found = scalar.FORMATS[to][0], []
    if scalar.FORMATS[of][0] <= digits + 1:
        return found
    for exponent in (-140, -30, -16, 0, 15):
        middle = Fraction(2) ** exponent * (1 + Fraction(1, 2**digits))
        bits = encode(middle, of)
        found += [bits - 1, bits, bits + 1] if bits else []
    return found


WIDE = [("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"), ("f64", "bf16")]


@pytest.mark.parametrize(("to", "of"), WIDE)
def test_wider_formats_hold_the_same_number(to: str, of: str) -> None:
    x = floats(of)
    found = apply(f"cvt.{to}.{of} %d, %a;", to, (of, x))
    assert all(
        same(int(d), encode(value(a, of), to, "rn", scalar.negative(a, of)), to)
        for a, d in zip(x, found, strict=True)
    )


@pytest.mark.parametrize(("kind", "mode"), list(product(["f32", "f64", "f16"], INTEGRAL)))
def test_numbers_become_whole_within_their_format(kind: str, mode: str) -> None:
    x = [a for a in floats(kind)]
    found = apply(f"cvt.{mode}.{kind}.{kind} %d, %a;", kind, (kind, x))
    for a, d in zip(x, found, strict=True):
        number = value(a, kind)
        whole = (
            number if isinstance(number, str) else Fraction(scalar.nearest(number, INTEGRAL[mode]))
        )
        assert same(int(d), encode(whole, kind, "rn", scalar.negative(a, kind)), kind)


def test_saturation_and_flushing_between_floats() -> None:
    x = floats("f32")
    found = apply("cvt.sat.f32.f32 %d, %a;", "f32", ("f32", x))
    assert [int(d) for d in found] == [saturated(a, "f32") for a in x]
    found = apply("cvt.ftz.f32.f32 %d, %a;", "f32", ("f32", x))
    assert all(same(int(d), flushed(a, "f32"), "f32") for a, d in zip(x, found, strict=True))


@pytest.mark.parametrize(("kind", "mode"), list(product(["f16", "bf16"], ["rn", "rz"])))
def test_a_pair_takes_its_upper_half_from_the_first(kind: str, mode: str) -> None:
    x, y = numbers_of("f32", 50), numbers_of("f32", 50, 1)
    found = apply(f"cvt.{mode}.{kind}x2.f32 %d, %a, %b;", "b32", ("f32", x), ("f32", y))
    wanted = [
        encode(value(a, "f32"), kind, mode) << 16 | encode(value(b, "f32"), kind, mode)
        for a, b in zip(x, y, strict=True)
    ]
    assert [int(d) for d in found] == wanted


def test_relu_and_satfinite_bound_halves() -> None:
    x = corners("f32")
    found = apply("cvt.rn.relu.satfinite.f16.f32 %d, %a;", "f16", ("f32", x))
    for a, d in zip(x, found, strict=True):
        number = value(a, "f32")
        held = (
            number
            if number == "nan"
            else min(
                max(
                    Fraction(10**9)
                    if number == "inf"
                    else Fraction(-1)
                    if isinstance(number, str)
                    else number,
                    Fraction(0),
                ),
                Fraction(65504),
            )
        )
        assert same(int(d), encode(held, "f16"), "f16")


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32_has_eleven_digits(mode: str) -> None:
    x = [a for a in [*corners("f32"), *numbers_of("f32", 60), 0x3F801000, 0x3F803000, 0x3F802FFF]]
    found = apply(f"cvt.{mode}.tf32.f32 %d, %a;", "b32", ("f32", x))
    for a, d in zip(x, found, strict=True):
        wanted = encode(value(a, "f32"), "tf32", mode, scalar.negative(a, "f32")) << 13
        assert same(int(d), wanted, "f32")


@pytest.mark.parametrize(
    "instruction",
    [
        "cvt.s32.f32 %d, %a;",
        "cvt.rn.s32.f32 %d, %a;",
        "cvt.f16.f32 %d, %a;",
        "cvt.rn.e4m3x2.f32 %d, %a, %a;",
        "cvt.rni.f32.f16 %d, %a;",
        "cvt.rn.s32.u32 %d, %a;",
    ],
)
def test_conversions_without_their_rounding_are_refused(instruction: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        apply(instruction, "f32", ("f32", [0]))


# moves


def test_registers_are_taken_apart_and_put_together() -> None:
    x, y = numbers_of("b32", 10), numbers_of("b32", 10, 1)
    assert list(apply("mov.b64 %d, {%a, %b};", "b64", ("b32", x), ("b32", y))) == [
        b << 32 | a for a, b in zip(x, y, strict=True)
    ]
    low, high = apply("mov.b32 {%d0, %d1}, %a;", ["b16", "b16"], ("b32", x))
    assert (list(low), list(high)) == ([a & 0xFFFF for a in x], [a >> 16 for a in x])
    assert list(apply("mov.b32 {_, %d}, %a;", "b16", ("b32", x))) == [a >> 16 for a in x]


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("0f3F800000", "f32", 0x3F800000),
        ("-5", "b32", 2**32 - 5),
        ("0xFFFFFFFF", "b32", 2**32 - 1),
        ("1.5", "f32", 0x3FC00000),
        ("0d3FF0000000000000", "b64", 0x3FF << 52),
        ("7U", "b32", 7),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, kind: str, bits: int) -> None:
    of = "f32" if kind == "f32" else kind
    assert list(apply(f"mov.{of} %d, {text};", kind, ("b32", [0]))) == [bits]


def test_generic_addresses_know_their_space() -> None:
    body = """
    .reg .b64 %a, %g, %o; .reg .b32 %s, %r; .reg .pred %p;
    .shared .align 4 .b8 room[16];
    ld.param.u64 %o, [out]; mov.u64 %a, room; cvta.shared.u64 %g, %a;
    mov.u32 %r, 7; st.u32 [%g+4], %r; ld.shared.u32 %s, [room+4]; st.u32 [%o], %s;
    isspacep.shared %p, %g; selp.u32 %r, 1, 0, %p; st.global.u32 [%o+4], %r;
    isspacep.shared %p, %o; selp.u32 %r, 1, 0, %p; st.global.u32 [%o+8], %r;
    cvta.to.shared.u64 %a, %g; cvt.u32.u64 %r, %a; st.global.u32 [%o+12], %r;
    """
    out = np.zeros(4, np.uint32)
    kernel(body, [".u64 out"]).launch(1, 1, [out])
    assert list(out) == [7, 1, 0, 0]
