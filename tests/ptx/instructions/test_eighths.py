"""
Numbers of 8 and of 4 bits: products of warps and of warp groups, with the fragments of the ISA, and
conversions, against a model of one number at a time.
"""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.numbers.tensor_core import Unit, multiply, sum_format, unit_of
from tests.ptx.instructions.test_matrices import (
    PARAMETERS,
    descriptor,
    group_body,
    laid_out,
    sums_of_group,
)
from tests.ptx.numbers import scalar
from tests.ptx.small import apply, corners, kernel, numbers_of

LANES = range(32)
EIGHTHS = {"e4m3": (4, 4, 448.0), "e5m2": (3, 5, 57344.0)}
"""Digits, bits of the exponent, the largest number (OCP 8-bit formats, revision 1.0)."""


def value(bits: int, kind: str) -> scalar.Number:
    """What a byte stands for."""
    digits, width, _ = EIGHTHS[kind]
    fraction, bias = digits - 1, (1 << (width - 1)) - 1
    sign, exponent = (-1 if bits >> 7 else 1), bits >> fraction & ((1 << width) - 1)
    rest = bits & ((1 << fraction) - 1)
    if kind == "e4m3" and bits & 127 == 127:
        return "nan"
    if kind == "e5m2" and exponent == 31:
        return "nan" if rest else "inf" if sign > 0 else "-inf"
    scale = Fraction(2) ** (max(exponent, 1) - bias - fraction)
    return sign * scale * (rest + ((1 << fraction) if exponent else 0))


POSITIVE = {
    kind: [(x, bits) for bits in range(128) if isinstance(x := value(bits, kind), Fraction)]
    for kind in EIGHTHS
}


def byte_of(x: scalar.Number, kind: str, minus: bool, relu: bool) -> int:
    """The nearest byte, ties to an even one; nothing beyond the largest number."""
    if x == "nan":
        return 127
    if relu and (x == "-inf" or (isinstance(x, Fraction) and x <= 0)):
        return 0
    if isinstance(x, str):
        size = Fraction(EIGHTHS[kind][2])
    else:
        size = min(abs(x), Fraction(EIGHTHS[kind][2]))
    nearest = min(POSITIVE[kind], key=lambda known: (abs(known[0] - size), known[1] % 2))[1]
    return nearest | minus << 7


def edges(kind: str) -> list[int]:
    """float32 numbers at, and halfway between, the numbers of 8 bits, and beyond them."""
    line = [x for x, _ in POSITIVE[kind]]
    ties = [(x + y) / 2 for x, y in pairwise(line)]
    near = [line[-1] * 33 // 32, line[-1] * 2, ties[-1] + Fraction(1, 1 << 14)]
    found = [scalar.encode(x, "f32") for x in (*line[::5], *ties, *near)]
    return [*found, *(x | 1 << 31 for x in found[1:])]


@pytest.mark.parametrize(("kind", "relu"), list(product(EIGHTHS, ["", ".relu"])))
def test_two_numbers_become_bytes(kind: str, relu: str) -> None:
    x = [*corners("f32"), *edges(kind), *numbers_of("f32", 60)][:500]
    y = [*reversed(x)]
    text = f"cvt.rn.satfinite{relu}.{kind}x2.f32 %d, %a, %b;"
    found = apply(text, "b16", ("f32", x), ("f32", y))
    for a, b, bits in zip(x, y, found, strict=True):
        high, low = (
            byte_of(scalar.value(n, "f32"), kind, scalar.negative(n, "f32"), bool(relu))
            for n in (a, b)
        )
        assert int(bits) == high << 8 | low, (a, b)


@pytest.mark.parametrize("kind", EIGHTHS)
def test_a_pair_of_halves_becomes_bytes(kind: str) -> None:
    each = [*corners("f16"), *numbers_of("f16", 40)]
    x = [a << 16 | b for a, b in zip(each, reversed(each), strict=True)]
    found = apply(f"cvt.rn.satfinite.{kind}x2.f16x2 %d, %a;", "b16", ("f16x2", x))
    for a, bits in zip(x, found, strict=True):
        high, low = (
            byte_of(scalar.value(n, "f16"), kind, scalar.negative(n, "f16"), False)
            for n in (a >> 16, a & 0xFFFF)
        )
        assert int(bits) == high << 8 | low, a


@pytest.mark.parametrize(("kind", "relu"), list(product(EIGHTHS, ["", ".relu"])))
def test_all_bytes_become_halves(kind: str, relu: str) -> None:
    x = [n << 8 | 255 - n for n in range(256)]
    found = apply(f"cvt.rn{relu}.f16x2.{kind}x2 %d, %a;", "f16x2", ("b16", x))
    for a, bits in zip(x, found, strict=True):
        wanted = []
        for n in (a >> 8, a & 255):
            of = value(n, kind)
            small = of == "-inf" or (isinstance(of, Fraction) and of <= 0)
            wanted.append(
                0 if relu and small else scalar.encode(of, "f16", minus=n > 127 and of == 0)
            )
        assert [int(bits) >> 16, int(bits) & 0xFFFF] == wanted, a


def as_bytes(x: np.ndarray, kind: str) -> np.ndarray:
    """The bytes of small whole numbers."""
    if kind not in EIGHTHS:
        return x.astype(np.uint8)
    known = {value(n, kind): n for n in range(256)}
    return np.vectorize(lambda each: known[Fraction(int(each))])(x).astype(np.uint8)


# products of a warp


def place_of_left(lane: int, i: int, each: int, rows: int) -> tuple[int, int]:
    group, t = lane >> 2, lane % 4
    if rows == 8:
        return group, t * each + i % each
    return group + 8 * (i // each % 2), t * each + i % each + 4 * each * (i // (2 * each))


def place_of_right(lane: int, i: int, each: int, columns: int) -> tuple[int, int]:
    return lane % 4 * each + i % each + 4 * each * (i // each), lane >> 2


def fragment(x: np.ndarray, place: object, bits: int, side: int) -> list[list[int]]:
    """The registers of each lane: so many bits a number, the first one lowest."""
    each = 32 // bits
    found = []
    for lane in LANES:
        numbers = [int(x[place(lane, i, each, side)]) for i in range(x.size // 32)]  # type: ignore[operator]
        found.append(
            [
                sum(n % (1 << bits) << bits * e for e, n in enumerate(numbers[r : r + each]))
                for r in range(0, len(numbers), each)
            ]
        )
    return found


def warp_product(
    text: str, a: list[list[int]], b: list[list[int]], c: np.ndarray, target: str = "sm_90a"
) -> np.ndarray:
    """[rows 8] the bits of a product of the fragments a and b, and of c [rows 8]."""
    rows = len(c)
    places = [
        [((lane >> 2) + 8 * (i // 2), lane % 4 * 2 + i % 2) for i in range(rows // 4)]
        for lane in LANES
    ]
    sums = [[int(c.view(np.uint32)[at]) for at in places[lane]] for lane in LANES]
    counts = len(a[0]), len(b[0]), rows // 4
    given = np.array([[*a[lane], *b[lane], *sums[lane]] for lane in LANES], np.uint32)
    names = [f"%x{i}" for i in range(sum(counts))]
    results = [f"%d{i}" for i in range(counts[2])]
    parts = [results, names[: counts[0]], names[counts[0] : -counts[2]], names[-counts[2] :]]
    body = (
        f".reg .b32 %t, %x<{len(names)}>, %d<{counts[2]}>; .reg .b64 %in, %out; "
        f"mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; ld.param.u64 %out, [out];"
        f"mad.wide.u32 %in, %t, {4 * len(names)}, %in; "
        f"mad.wide.u32 %out, %t, {4 * counts[2]}, %out;"
    )
    body += "".join(f"ld.global.b32 {name}, [%in+{4 * i}];" for i, name in enumerate(names))
    body += f"{text} " + ", ".join("{" + ",".join(part) + "}" for part in parts) + ";"
    body += "".join(f"st.global.b32 [%out+{4 * i}], {name};" for i, name in enumerate(results))
    out = np.zeros((32, counts[2]), np.uint32)
    kernel(body, [".u64 in", ".u64 out"], target).launch(1, 32, [given, out])
    found = np.zeros((rows, 8), np.uint32)
    for lane in LANES:
        for i, at in enumerate(places[lane]):
            found[at] = out[lane, i]
    return found


LIMITS = {"s8": (-128, 128), "u8": (0, 256), "s4": (-8, 8), "u4": (0, 16)}
WHOLE = [
    *((shape, *kinds) for shape in ("m8n8k16", "m16n8k16", "m16n8k32") for kinds in [("s8", "u8")]),
    *(("m16n8k32", *kinds) for kinds in [("s8", "s8"), ("u8", "s8"), ("u8", "u8")]),
    *((shape, "s4", "u4") for shape in ("m8n8k32", "m16n8k32", "m16n8k64")),
    ("m16n8k64", "u4", "s4"),
]


@pytest.mark.parametrize(("shape", "left", "right"), WHOLE)
@pytest.mark.parametrize("held", [False, True])
def test_products_of_whole_numbers_are_exact(shape: str, left: str, right: str, held: bool) -> None:
    rows, inner = (int(size) for size in shape[1:].split("n8k"))
    random = np.random.default_rng(inner)
    a = random.integers(*LIMITS[left], (rows, inner))
    b = random.integers(*LIMITS[right], (inner, 8))
    c = random.integers(-99, 99, (rows, 8)).astype(np.int32)
    c[0], c[1] = 2**31 - 1, -(2**31)  # sums that leave 32 bits
    total = a @ b + c.astype(np.int64)
    wanted = total.clip(-(2**31), 2**31 - 1) if held else (total + 2**31) % 2**32 - 2**31
    bits = int(left[1:])
    text = f"mma.sync.aligned.{shape}.row.col{'.satfinite' if held else ''}.s32.{left}.{right}.s32"
    of_a, of_b = fragment(a, place_of_left, bits, rows), fragment(b, place_of_right, bits, 8)
    found = warp_product(text, of_a, of_b, c).view(np.int32)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("left", "right"), list(product(EIGHTHS, EIGHTHS)))
@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
def test_products_of_bytes_that_are_exact_are_found_so(left: str, right: str, target: str) -> None:
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, shape) for shape in ((16, 32), (32, 8)))
    c = random.integers(-64, 64, (16, 8)).astype(np.float32)
    of_a = fragment(as_bytes(a, left), place_of_left, 8, 16)
    of_b = fragment(as_bytes(b, right), place_of_right, 8, 8)
    text = f"mma.sync.aligned.m16n8k32.row.col.f32.{left}.{right}.f32"
    found = warp_product(text, of_a, of_b, c, target).view(np.float32)
    assert np.array_equal(found, a @ b + c)


@pytest.mark.parametrize(("target", "of_group"), [(89, False), (90, True)])
def test_sums_of_bytes_keep_13_bits(target: int, of_group: bool) -> None:
    unit = unit_of(target, "e4m3", of_group)
    assert unit.bits == 13
    ones = np.zeros((1, 32), np.float32)
    ones[0, 0] = 1.0
    for small, kept in ((2.0**-13, 1.0 + 2.0**-13), (2.0**-14, 1.0)):
        c = np.full((1, 1), small, np.float32)
        found = multiply(
            ones, ones, c, "e4m3", unit, np.arange(32), sum_format("f32", "e4m3", unit)
        )
        assert float(found[0, 0]) == kept


def test_bytes_are_widened_where_a_warp_of_hopper_multiplies_them() -> None:
    assert unit_of(90, "e4m3") == Unit(16, 25)


def test_a_matrix_is_transposed_across_a_warp() -> None:
    body = (
        ".reg .b32 %t, %x; .reg .b64 %in, %out; mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; "
        "ld.param.u64 %out, [out]; mad.wide.u32 %in, %t, 4, %in; mad.wide.u32 %out, %t, 4, %out; "
        "ld.global.b32 %x, [%in]; movmatrix.sync.aligned.m8n8.trans.b16 %x, %x; "
        "st.global.b32 [%out], %x;"
    )
    x, out = np.arange(64, dtype=np.uint16).reshape(8, 8), np.zeros((8, 8), np.uint16)
    kernel(body, [".u64 in", ".u64 out"]).launch(1, 32, [x.view(np.uint32), out.view(np.uint32)])
    assert np.array_equal(out, x.T)


# products of a warp group


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "s8", "u8"])
def test_a_warp_group_multiplies_bytes(kind: str, width: int) -> None:
    random, columns = np.random.default_rng(7), 16
    low = 0 if kind == "u8" else -4
    a, b = random.integers(low, 5, (64, 32)), random.integers(low, 5, (columns, 32))
    whole = kind[1:] == "8"
    (left, la, sa), (right, lb, sb) = (laid_out(as_bytes(x, kind), width, False, 1) for x in (a, b))
    image = np.zeros(32768, np.uint8)
    image[: left.size], image[16384 : 16384 + right.size] = left, right
    sums = ",".join(f"%d{i}" for i in range(columns // 2))
    types = f"s32.{kind}.{kind}" if whole else f"f32.{kind}.{kind}"
    text = (
        f"wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n{columns}k32.{types} "
        f"{{{sums}}}, %left, %right, %no{'' if whole else ', 1, 1'}; "
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    )
    out = np.zeros((columns // 2, 128), np.int32 if whole else np.float32)
    places = descriptor(0, la, sa, width), descriptor(16384, lb, sb, width)
    given = [image, out, *places, np.zeros((128, 4), np.uint32)]
    kernel(group_body(columns, "%left", text), PARAMETERS).launch(1, 128, given)
    assert np.array_equal(sums_of_group(out, columns), a @ b.T)


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rn.e4m3x2.f32 %h, %r, %s;",
        "cvt.rn.satfinite.f16x2.e4m3x2 %r, %h;",
        "cvt.rn.satfinite.e4m3x2.e5m2x2 %h, %h;",
        "mma.sync.aligned.m16n8k16.row.col.s32.s4.s4.s32 {%r,%r,%r,%r}, {%r}, {%r}, {%r,%r,%r,%r};",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.e4m3.s32 {%r,%r,%r,%r}, {%r,%r,%r,%r}, {%r,%r}, "
        "{%r,%r,%r,%r};",
        "mma.sync.aligned.m16n8k32.row.col.satfinite.f32.e4m3.e4m3.f32 {%r,%r,%r,%r}, "
        "{%r,%r,%r,%r}, {%r,%r}, {%r,%r,%r,%r};",
    ],
)
def test_what_the_isa_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        kernel(f".reg .b16 %h; .reg .b32 %r, %s; {text}").launch(1, 32, [])
