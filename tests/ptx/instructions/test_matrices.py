"""
Matrices: fragments as the ISA places them, sums as tensor cores cut them off, descriptors and
swizzles of warp groups.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.numbers.tensor_core import UNITS, multiply
from tests.ptx.numbers import scalar
from tests.ptx.small import kernel
from tests.support.roundings import count_roundings

LANES = range(32)


def halves(kind: str, x: np.ndarray) -> np.ndarray:
    """Bits of small whole numbers."""
    return (
        x.astype(np.float16).view(np.uint16)
        if kind == "f16"
        else (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    )


# fragments of mma.sync, as in the figures of the ISA: i counts the numbers of a thread


def place_of_left(lane: int, i: int, kind: str, inner: int) -> tuple[int, int]:
    group, t = lane >> 2, lane % 4
    if kind == "tf32":
        return group + 8 * (i % 2), t + 4 * (i // 2)
    row = group + (8 if (i // 2) % 2 else 0)
    return row, t * 2 + (i & 1) + (8 if i >= 4 else 0)


def place_of_right(lane: int, i: int, kind: str, inner: int) -> tuple[int, int]:
    group, t = lane >> 2, lane % 4
    return (t + 4 * i, group) if kind == "tf32" else (t * 2 + (i & 1) + (8 if i >= 2 else 0), group)


def place_of_sum(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)


def registers(
    x: np.ndarray, place: Callable[..., tuple[int, int]], count: int, kind: str, inner: int
) -> list[list[int]]:
    """The registers of each lane: numbers as bits, two halves in one."""
    each = 1 if kind in ("tf32", "f32") else 2
    numbers = [[x[place(lane, i, kind, inner)] for i in range(count)] for lane in LANES]
    bits = [
        [
            int(np.float32(n).view(np.uint32)) if each == 1 else int(halves(kind, np.array(n)))
            for n in lane
        ]
        for lane in numbers
    ]
    return [
        [sum(lane[r * each + e] << 16 * e for e in range(each)) for r in range(count // each)]
        for lane in bits
    ]


SHAPES = [("f16", 16), ("bf16", 16), ("f16", 8), ("bf16", 8), ("tf32", 8), ("tf32", 4)]


@pytest.mark.parametrize(("kind", "inner"), SHAPES)
def test_products_of_a_warp_multiply_the_fragments_of_the_isa(kind: str, inner: int) -> None:
    random = np.random.default_rng(inner)
    a, b, c = (
        random.integers(-8, 9, (16, inner)),
        random.integers(-8, 9, (inner, 8)),
        random.integers(-99, 99, (16, 8)),
    )
    found = product_of_warp(kind, inner, a, b, c)
    assert np.array_equal(found, a @ b + c)


def product_of_warp(
    kind: str, inner: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, **settings: object
) -> np.ndarray:
    of_a = registers(a, place_of_left, 16 * inner // 32, kind, inner)
    of_b = registers(b, place_of_right, 8 * inner // 32, kind, inner)
    of_c = [
        [int(np.float32(c[place_of_sum(lane, i)]).view(np.uint32)) for i in range(4)]
        for lane in LANES
    ]
    rows = np.array([[*of_a[lane], *of_b[lane], *of_c[lane]] for lane in LANES], np.uint32)
    na, nb = len(of_a[0]), len(of_b[0])
    names = [f"%x{i}" for i in range(na + nb + 4)]
    body = (
        f".reg .b32 %t, %x<{len(names)}>, %d<4>; .reg .b64 %in, %out; mov.u32 %t, %tid.x; "
        f"ld.param.u64 %in, [in]; ld.param.u64 %out, [out];"
    )
    body += f"mad.wide.u32 %in, %t, {4 * len(names)}, %in; mad.wide.u32 %out, %t, 16, %out;"
    body += "".join(f"ld.global.b32 {name}, [%in+{4 * i}];" for i, name in enumerate(names))
    lists = [names[:na], names[na : na + nb], names[na + nb :]]
    operands = ", ".join(
        "{" + ",".join(part) + "}" for part in [[f"%d{i}" for i in range(4)], *lists]
    )
    body += (
        f"mma.sync.aligned.m16n8k{inner}.row.col.f32.{kind}.{kind}.f32 {operands}; "
        f"st.global.v4.b32 [%out], {{%d0,%d1,%d2,%d3}};"
    )
    out = np.zeros((32, 4), np.float32)
    kernel(body, [".u64 in", ".u64 out"]).launch(1, 32, [rows, out], **settings)  # type: ignore[arg-type]
    found = np.zeros((16, 8), np.float32)
    for lane, i in product(LANES, range(4)):
        found[place_of_sum(lane, i)] = out[lane, i]
    return found


def test_sums_of_halves_come_out_as_halves() -> None:
    ones, two = 0x3C003C00, 0x40004000
    body = (
        f".reg .b32 %a, %b, %c, %d<2>; .reg .b64 %o; ld.param.u64 %o, [out]; "
        f"mov.u32 %a, {ones}; mov.u32 %b, {two}; mov.u32 %c, {ones};"
    )
    body += (
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%d0,%d1}, {%a,%a,%a,%a}, {%b,%b}, "
        "{%c,%c}; st.global.v2.b32 [%o], {%d0,%d1};"
    )
    out = np.zeros(2, np.uint32)
    kernel(body, [".u64 out"]).launch(1, 32, [out])
    assert list(out.view(np.float16)) == [33.0] * 4


def test_a_product_of_half_a_warp_is_told() -> None:
    body = (
        ".reg .pred %p; .reg .b32 %a, %d<4>; mov.u32 %a, %laneid; setp.lt.u32 %p, %a, 16; "
        "@%p mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%d0,%d1,%d2,%d3}, {%a,%a}, "
        "{%a}, {%d0,%d1,%d2,%d3};"
    )
    with pytest.raises(ptx.Finding, match="16 of 32 are here"):
        kernel(body).launch(1, 32, [])


@pytest.mark.parametrize(
    "text",
    [
        "m16n8k16.row.col.f32.f16.bf16.f32",
        "m8n8k4.row.col.f32.f16.f16.f32",
        "m16n8k16.col.row.f32.f16.f16.f32",
        "m16n8k8.row.col.f16.bf16.bf16.f16",
    ],
)
def test_products_that_are_not_modelled_are_refused(text: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        kernel(
            f".reg .b32 %a; mma.sync.aligned.{text} {{%a,%a,%a,%a}}, {{%a,%a,%a,%a}}, {{%a,%a}}, "
            f"{{%a,%a,%a,%a}};"
        ).launch(1, 32, [])


# sums as a tensor core cuts them off


def exponent(bits: int, kind: str) -> int:
    fraction, bias, width = scalar.fields(kind)
    return max(bits >> fraction & ((1 << (width - 1 - fraction)) - 1), 1) - bias


def cut_off(x: Fraction, unit: Fraction) -> Fraction:
    return scalar.nearest(x / unit, "rz") * unit


def summed(a: list[int], b: list[int], c: int, kind: str, bits: int) -> int:
    """One group: aligned to the largest exponent, cut off, added, cut off once more."""
    products = [
        (scalar.value(x, kind), scalar.value(y, kind), exponent(x, kind) + exponent(y, kind))
        for x, y in zip(a, b, strict=True)
    ]
    terms = [(x * y, e) for x, y, e in products if x * y] + (
        [(scalar.value(c, "f32"), exponent(c, "f32"))] if scalar.value(c, "f32") else []
    )
    if not terms:
        return 0
    unit = Fraction(2) ** (max(e for _, e in terms) - bits)
    return scalar.encode(sum((cut_off(x, unit) for x, _ in terms), Fraction(0)), "f32", "rz")


@pytest.mark.parametrize(("arch", "kind"), list(product([80, 90], ["f16", "bf16"])))
def test_sums_are_those_of_the_published_models_bit_by_bit(arch: int, kind: str) -> None:
    random, unit = np.random.default_rng(arch), UNITS[arch]
    scale = 2.0 ** random.integers(-9, 9, (12, 16))
    a, b = (
        halves(kind, (random.standard_normal((12, 16)) * scale).astype(np.float32))
        for _ in range(2)
    )
    c = (random.standard_normal((12, 12)) * 2.0 ** random.integers(-12, 12, (12, 12))).astype(
        np.float32
    )
    widened = [
        x.view(np.float16).astype(np.float32)
        if kind == "f16"
        else (x.astype(np.uint32) << 16).view(np.float32)
        for x in (a, b)
    ]
    order = random.permutation(16)
    found = multiply(*widened, c, kind, unit, order)
    for i, j in product(range(12), repeat=2):
        total = int(c[i, j].view(np.uint32))
        for first in range(0, 16, unit.group):
            of = order[first : first + unit.group]
            total = summed(
                [int(x) for x in a[i, of]], [int(x) for x in b[j, of]], total, kind, unit.bits
            )
        assert int(found[i, j].view(np.uint32)) == total


def test_small_products_beside_large_ones_are_lost() -> None:
    a, b = np.zeros((1, 16), np.float32), np.ones((1, 16), np.float32)
    a[0, 0], a[0, 1] = 2.0**14, 2.0**-13
    found = {
        arch: float(multiply(a, b, np.zeros((1, 1), np.float32), "f16", unit, np.arange(16))[0, 0])
        for arch, unit in UNITS.items()
    }
    assert found == {80: 2.0**14, 90: 2.0**14}
    c = np.full((1, 1), -(2.0**14), np.float32)
    assert float(multiply(a, b, c, "f16", UNITS[90], np.arange(16))[0, 0]) == 0.0 != 2.0**-13


def test_order_matters_where_groups_are_smaller_than_a_product() -> None:
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal((16, 16)).astype(np.float16).astype(np.float32) for _ in range(2)
    )
    c = random.standard_normal((16, 16)).astype(np.float32)
    first, other = (
        multiply(a, b, c, "f16", UNITS[80], order)
        for order in (np.arange(16), np.arange(16)[::-1].copy())
    )
    assert not np.array_equal(first, other) and count_roundings(first, other) < 16


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_nan_and_infinity_take_part_as_everywhere(kind: str) -> None:
    a, b, c = np.ones((5, 8), np.float32), np.ones((2, 8), np.float32), np.zeros((5, 2), np.float32)
    a[0, 3], a[1, 0], a[2, 0], a[2, 1] = np.nan, np.inf, np.inf, -np.inf
    b[1, 0], c[4, 0] = 0, -np.inf
    with np.errstate(all="ignore"):
        found = multiply(a, b, c, kind, UNITS[90], np.arange(8))
    wanted = np.array(
        [[np.nan, np.nan], [np.inf, np.nan], [np.nan, np.nan], [8, 7], [-np.inf, 7]], np.float32
    )
    assert np.array_equal(found, wanted, equal_nan=True)


# ldmatrix and stmatrix


@pytest.mark.parametrize(("count", "trans"), list(product([1, 2, 4], ["", ".trans"])))
def test_matrices_are_loaded_row_by_row(count: int, trans: str) -> None:
    given = np.random.default_rng(0).integers(0, 65536, (32, 8), np.uint16)
    names = ",".join(f"%m{i}" for i in range(count))
    body = f""".shared .align 16 .b8 room[512]; .reg .b32 %t, %s, %m<4>; .reg .b64 %in, %out;
    mov.u32 %t, %tid.x;
    ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mad.wide.u32 %in, %t, 16, %in;
    mul.lo.u32 %s, %t, 16; mad.wide.u32 %out, %t, 16, %out;
    ld.global.v4.b32 {{%m0,%m1,%m2,%m3}}, [%in]; st.shared.v4.b32 [%s], {{%m0,%m1,%m2,%m3}};
    bar.warp.sync 0xFFFFFFFF;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%s];
    st.global.v4.b32 [%out], {{%m0,%m1,%m2,%m3}};"""
    out = np.zeros((32, 4), np.uint32)
    kernel(body, [".u64 in", ".u64 out"]).launch(1, 32, [given, out])
    pairs = out.view(np.uint16).reshape(32, 4, 2)
    for lane, i, e in product(LANES, range(count), (0, 1)):
        matrix = given[8 * i : 8 * i + 8]
        row, column = lane // 4, 2 * (lane % 4) + e
        assert pairs[lane, i, e] == (matrix.T if trans else matrix)[row, column]


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_a_stored_matrix_is_loaded_back(trans: str) -> None:
    body = f""".shared .align 16 .b8 room[512]; .reg .b32 %t, %s, %m<4>, %n<4>;
    .reg .b64 %in, %out; mov.u32 %t, %tid.x;
    ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mad.wide.u32 %in, %t, 16, %in;
    mul.lo.u32 %s, %t, 16; mad.wide.u32 %out, %t, 16, %out;
    ld.global.v4.b32 {{%m0,%m1,%m2,%m3}}, [%in];
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%s], {{%m0,%m1,%m2,%m3}};
    bar.warp.sync 0xFFFFFFFF;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%n0,%n1,%n2,%n3}}, [%s];
    st.global.v4.b32 [%out], {{%n0,%n1,%n2,%n3}};"""
    given, out = (
        np.random.default_rng(0).integers(0, 2**32, (32, 4), np.uint32),
        np.zeros((32, 4), np.uint32),
    )
    kernel(body, [".u64 in", ".u64 out"]).launch(1, 32, [given, out])
    assert np.array_equal(out, given)


# products of a warp group


def laid_out(x: np.ndarray, width: int, turned: bool, size: int) -> tuple[np.ndarray, int, int]:
    """
    The bytes of a matrix [rows K] in 16-byte pieces as the ISA's figures of core matrices have
    them, and the two offsets of its descriptor.

    ``width`` bytes of a row are swizzled (16: not at all); ``turned``: neighbours along the rows
    are contiguous.
    """
    lines = np.ascontiguousarray(x.T if turned else x)
    per = width // size
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % per)))
    across = lines.shape[1]
    image = np.zeros(lines.size * size * 2, np.uint8)
    blocks = -(-across // per)
    repeat = {16: 1, 32: 4, 64: 2, 128: 1}[width]
    # along the contiguous axis blocks of ``width`` bytes, each with all the lines in eights
    block_bytes = lines.shape[0] * width
    for line, block in product(range(lines.shape[0]), range(blocks)):
        piece = lines[line, block * per : block * per + per].tobytes()
        for chunk in range(width // 16):
            moved = chunk ^ (line // repeat % (width // 16)) if width > 16 else chunk
            at = block * block_bytes + line * width + moved * 16
            image[at : at + 16] = np.frombuffer(piece[16 * chunk : 16 * chunk + 16], np.uint8)
    eight, next_block = 8 * width, block_bytes
    if turned and width == 16:
        return (
            image,
            eight,
            next_block,
        )  # lines in eights lie at the leading offset, blocks at the stride
    return image, next_block, eight


MODES = {16: 0, 128: 1, 64: 2, 32: 3}


def descriptor(at: int, leading: int, stride: int, width: int) -> int:
    return at >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | MODES[width] << 62


def group_body(columns: int, left: str, instruction: str, middle: str = "") -> str:
    """
    A kernel: the image of both factors into shared memory, a product, its sums into an array
    [registers 128].
    """
    regs = columns // 2
    fill = "".join(
        f"ld.global.v4.b32 {{%q0,%q1,%q2,%q3}}, [%in+{2048 * i}]; "
        f"st.shared.v4.b32 [%s+{2048 * i}], {{%q0,%q1,%q2,%q3}};"
        for i in range(16)
    )
    store = "".join(f"st.global.b32 [%out+{512 * i}], %d{i};" for i in range(regs))
    return f""".shared .align 1024 .b8 room[32768]; .reg .pred %no;
    .reg .b32 %t, %s, %q<4>, %a<4>, %d<{regs}>; .reg .b64 %in, %out, %left, %right, %l;
    mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
    ld.param.u64 %left, [left]; ld.param.u64 %right, [right]; ld.param.u64 %l, [regs];
    mad.wide.u32 %in, %t, 16, %in; mul.lo.u32 %s, %t, 16; mad.wide.u32 %out, %t, 4, %out;
    mad.wide.u32 %l, %t, 16, %l; setp.ne.u32 %no, 0, 0;
    ld.global.v4.b32 {{%a0,%a1,%a2,%a3}}, [%l];
    {fill} fence.proxy.async; bar.sync 0; {middle} {instruction.replace("LEFT", left)} {store}"""


PARAMETERS = [".u64 in", ".u64 out", ".u64 left", ".u64 right", ".u64 regs"]


def whole(
    kind: str,
    columns: int,
    left: str = "%left",
    turns: str = ", 0, 0",
    scale: str = "%no, 1, 1",
    inner: int = 16,
) -> str:
    sums = ",".join(f"%d{i}" for i in range(columns // 2))
    return f"""wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n{columns}k{inner}.f32.{kind}.{kind} {{{sums}}},
    {left}, %right, {scale}{turns};
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""


def sums_of_group(out: np.ndarray, columns: int) -> np.ndarray:
    """[64 columns] as the ISA places the accumulator: warp, row, pairs of columns."""
    found = np.zeros((64, columns), np.float32)
    for thread, i in product(range(128), range(columns // 2)):
        warp, group, t = thread // 32, thread % 32 // 4, thread % 4
        found[16 * warp + group + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * t + i % 2] = out[i, thread]
    return found


def group_product(
    kind: str, columns: int, widths: tuple[int, int], turned: tuple[bool, bool], **changes: str
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(columns)
    size, inner = (4, 8) if kind == "tf32" else (2, 16)
    a, b = random.integers(-5, 6, (64, inner)), random.integers(-5, 6, (columns, inner))
    as_bits = (lambda x: x.astype(np.float32)) if kind == "tf32" else lambda x: halves(kind, x)
    (left, la, sa), (right, lb, sb) = (
        laid_out(as_bits(x), w, t, size) for x, w, t in zip((a, b), widths, turned, strict=True)
    )
    image = np.zeros(32768, np.uint8)
    image[: left.size], image[16384 : 16384 + right.size] = left, right
    turns = "" if kind == "tf32" else f", {int(turned[0])}, {int(turned[1])}"
    body = group_body(columns, "%left", whole(kind, columns, "%left", turns, inner=inner))
    out = np.zeros((columns // 2, 128), np.float32)
    given = [
        image,
        out,
        descriptor(0, la, sa, widths[0]),
        descriptor(16384, lb, sb, widths[1]),
        np.zeros((128, 4), np.uint32),
    ]
    kernel(body, PARAMETERS).launch(1, 128, given)
    return sums_of_group(out, columns), a @ b.T


BASE_OFFSET = 1 << 49


@pytest.mark.parametrize(
    ("middle", "more", "kind", "words"),
    [
        ("", BASE_OFFSET, "not modelled", "a descriptor with a base offset"),
        ("cvt.u64.u32 %l, %t; add.s64 %left, %left, %l;", 0, "partial warp", "different desc"),
    ],
)
def test_descriptors_that_no_product_may_have_are_told(
    middle: str, more: int, kind: str, words: str
) -> None:
    body = group_body(16, "%left", whole("f16", 16), middle)
    places = descriptor(0, 128, 256, 16) | more, descriptor(16384, 128, 256, 16)
    out, none = np.zeros((8, 128), np.float32), np.zeros((128, 4), np.uint32)
    with pytest.raises(ptx.Finding, match=words) as raised:
        kernel(body, PARAMETERS).launch(1, 128, [np.zeros(32768, np.uint8), out, *places, none])
    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("width", "turned"), [(w, t) for w in (16, 32, 64, 128) for t in (False, True)]
)
def test_descriptors_find_swizzled_matrices(width: int, turned: bool) -> None:
    found, wanted = group_product("f16", 64, (width, width), (turned, turned))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "columns"), [("bf16", 8), ("f16", 24), ("bf16", 128), ("tf32", 32)]
)
def test_products_of_other_types_and_widths(kind: str, columns: int) -> None:
    found, wanted = group_product(kind, columns, (32, 32), (False, False))
    assert np.array_equal(found, wanted)


def in_registers(
    instruction: str, middle: str = "", **settings: object
) -> tuple[np.ndarray, np.ndarray]:
    """A product whose left factor is in registers."""
    random = np.random.default_rng(1)
    a, b = random.integers(-5, 6, (64, 16)), random.integers(-5, 6, (16, 16))
    regs = np.concatenate(
        [registers(a[16 * w : 16 * w + 16], place_of_left, 8, "f16", 16) for w in range(4)]
    ).astype(np.uint32)
    right, leading, stride = laid_out(halves("f16", b), 32, False, 2)
    image = np.zeros(32768, np.uint8)
    image[: right.size] = right
    out = np.zeros((8, 128), np.float32)
    given = [image, out, 0, descriptor(0, leading, stride, 32), regs]
    kernel(group_body(16, "{%a0,%a1,%a2,%a3}", instruction, middle), PARAMETERS).launch(
        1, 128, given, **settings
    )  # type: ignore[arg-type]
    return sums_of_group(out, 16), a @ b.T


FROM_REGISTERS = whole("f16", 16, "LEFT", ", 0")


def test_a_left_factor_may_be_in_registers() -> None:
    found, wanted = in_registers(FROM_REGISTERS)
    assert np.array_equal(found, wanted)


def test_factors_may_be_negated_and_sums_kept() -> None:
    found, wanted = in_registers(whole("f16", 16, "LEFT", ", 0", "%no, -1, 1"))
    assert np.array_equal(found, -wanted)
    twice = FROM_REGISTERS + FROM_REGISTERS.replace("%no", "1")
    assert np.array_equal(in_registers(twice)[0], 2 * wanted)


PARTS = {
    part.split(".sync")[0].strip(): part.strip() + ";"
    for part in FROM_REGISTERS.split(";")
    if part.strip()
}
MMA = next(part for name, part in PARTS.items() if name.startswith("wgmma.mma"))


def found_in(instruction: str, middle: str = "") -> ptx.Finding:
    with pytest.raises(ptx.Finding) as raised:
        in_registers(instruction, middle)
    return raised.value


WAIT = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned {};"
FENCE = "wgmma.fence.sync.aligned; "


HALVES_OF_IT = "{ .reg .b16 %h<2>; mov.b32 {%h0, %h1}, %d3; WAIT cvt.u32.u16 %q0, %h1; }"


@pytest.mark.parametrize("move", ["mov.b32 %q0, %d3;", HALVES_OF_IT])
def test_an_accumulator_may_be_renamed_before_the_wait_where_an_assembler_waits(move: str) -> None:
    before, _, behind = (FENCE + MMA + move).partition("WAIT")
    found, wanted = in_registers(before + WAIT.format(0) + behind, register_fences=False)
    assert np.array_equal(found, wanted)
    read = "add.u32 %q1, %q0, 1; " if "WAIT" not in move else behind
    for instruction, assembler in (
        (before + read.replace("}", "") + WAIT.format(0) + "}" * read.count("}"), False),
        (before + WAIT.format(0) + behind, True),
    ):
        with pytest.raises(ptx.Finding, match="reads an accumulator"):
            in_registers(instruction, register_fences=assembler)


@pytest.mark.parametrize(
    ("instruction", "kind", "words"),
    [
        (MMA + WAIT.format(0), "missing fence", "no wgmma.fence"),
        (FENCE + MMA + "mov.u32 %a0, 0;" + WAIT.format(0), "not waited for", "still reads"),
        (
            FENCE + MMA + "mov.u32 %q0, %d3;" + WAIT.format(0),
            "not waited for",
            "reads an accumulator",
        ),
        (
            FENCE + MMA + "mov.u32 %d3, 0;" + WAIT.format(0),
            "not waited for",
            "writes an accumulator",
        ),
        (
            FENCE + MMA + WAIT.format(1) + "mov.u32 %q0, %d3;",
            "not waited for",
            "reads an accumulator",
        ),
        (
            FENCE + MMA + "wgmma.wait_group.sync.aligned 0; mov.u32 %q0, %d3;",
            "not waited for",
            "reads an accumulator",
        ),
        (
            FENCE + MMA + WAIT.format(0) + "add.u32 %q0, %d3, 1;" + MMA,
            "missing fence",
            "no wgmma.fence",
        ),
        (
            FENCE + MMA + "st.shared.u32 [%s], %t;" + WAIT.format(0),
            "not waited for",
            "a wgmma that was not waited for reads here",
        ),
        (
            FENCE + MMA + WAIT.format(0) + "st.shared.u32 [%s], %t;",
            "race",
            "writes what another warp read",
        ),
        (
            FENCE
            + MMA.replace("{%a0,%a1,%a2,%a3}", "LEFT").replace("LEFT", "{%d0,%d1,%d2,%d3}")
            + MMA,
            "not waited for",
            "",
        ),
    ],
)
def test_products_that_are_not_fenced_or_waited_for_are_told(
    instruction: str, kind: str, words: str
) -> None:
    found = found_in(instruction)
    assert found.kind == kind and words in found.message


def test_a_sum_goes_on_from_product_to_product_without_a_fence() -> None:
    found, wanted = in_registers(FENCE + MMA + MMA.replace("%no", "1") + WAIT.format(0))
    assert np.array_equal(found, 2 * wanted)


def test_a_move_behind_the_fence_renames_a_register() -> None:
    """
    Triton's compiler leaves moves between fence and product; a number made there is another matter.
    """
    moved = FENCE + "mov.b32 %q1, %a3; mov.b32 %a3, %q1; " + MMA + WAIT.format(0)
    found, wanted = in_registers(moved)
    assert np.array_equal(found, wanted)
    made = FENCE + "add.u32 %q1, %a3, 0; mov.b32 %a3, %q1; " + MMA + WAIT.format(0)
    assert found_in(made).kind == "missing fence"


def test_a_missing_proxy_fence_is_told() -> None:
    of = group_body(16, "{%a0,%a1,%a2,%a3}", FROM_REGISTERS).replace("fence.proxy.async;", "")
    with pytest.raises(ptx.Finding, match=r"no fence\.proxy\.async") as raised:
        kernel(of, PARAMETERS).launch(
            1,
            128,
            [
                np.zeros(32768, np.uint8),
                np.zeros((8, 128)),
                0,
                descriptor(0, 512, 256, 32),
                np.zeros((128, 4), np.uint32),
            ],
        )
    assert raised.value.kind == "missing fence"


@pytest.mark.parametrize(
    "middle", ["fence.proxy.async; bar.sync 0;", "bar.sync 0; fence.proxy.async;"]
)
def test_a_proxy_fence_may_stand_before_or_behind_the_barrier(middle: str) -> None:
    in_registers(FROM_REGISTERS, "st.shared.u32 [%s], %q0; " + middle.replace("st", "st"))


@pytest.mark.parametrize("middle", ["fence.proxy.async;", "bar.sync 0; st.shared.u32 [%s], %q0;"])
def test_a_factor_that_was_stored_since_the_last_barrier_races(middle: str) -> None:
    assert found_in(FROM_REGISTERS, "st.shared.u32 [%s], %q0; " + middle).kind == "race"


def test_a_descriptor_that_reaches_too_far_is_told() -> None:
    body = group_body(16, "{%a0,%a1,%a2,%a3}", FROM_REGISTERS)
    given = [
        np.zeros(32768, np.uint8),
        np.zeros((8, 128)),
        0,
        descriptor(32768 - 256, 0, 256, 32),
        np.zeros((128, 4), np.uint32),
    ]
    with pytest.raises(ptx.Finding, match="reaches 33024 bytes of 32768"):
        kernel(body, PARAMETERS).launch(1, 128, given)


def test_a_warp_group_must_be_whole_and_of_one_mind() -> None:
    found = found_in("setp.ge.u32 %no, %t, 32; @%no bra DONE; " + FROM_REGISTERS + "DONE:")
    assert found.kind == "partial warp"
    assert (
        "different descriptors"
        in found_in(
            "cvt.u64.u32 %left, %t; add.u64 %right, %right, %left; " + FROM_REGISTERS
        ).message
    )


@pytest.mark.parametrize(
    "text",
    [
        "m64n16k16.f32.f16.bf16",
        "m64n12k16.f32.f16.f16",
        "m64n16k32.f32.e4m3.e4m3",
        "m64n16k16.f16.bf16.bf16",
        "m64n16k8.f32.f16.f16",
    ],
)
def test_products_of_groups_that_are_not_modelled_are_refused(text: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        in_registers(FROM_REGISTERS.replace("m64n16k16.f32.f16.f16", text))


def test_a_block_without_a_product_has_read_nothing() -> None:
    """Both blocks wait, one of them has a product: the other may write where it likes."""
    skip = "mov.u32 %q2, %ctaid.x; setp.eq.u32 %no, %q2, 0; @%no bra SKIP; setp.ne.u32 %no, 0, 0;"
    store = "setp.eq.u32 %no, %t, 0; @%no bra LAST; bra OUT; LAST: st.shared.u32 [%s], %t; OUT:"
    begun, waited = FROM_REGISTERS.split("wgmma.wait_group")
    text = f"{skip} {begun} SKIP: wgmma.wait_group{waited} @!%no bra OUT; {store}"
    body = group_body(16, "{%a0,%a1,%a2,%a3}", text.replace("@!%no bra OUT; setp", "setp"))
    body = body.replace(
        "setp.eq.u32 %no, %t, 0;", "setp.eq.u32 %no, %q2, 0; @!%no bra OUT; setp.eq.u32 %no, %t, 0;"
    )
    body = body[: body.index("OUT:") + 4]
    given = [np.zeros(32768, np.uint8), np.zeros((8, 128)), 0, descriptor(0, 512, 256, 32)]
    kernel(body, PARAMETERS).launch(2, 128, [*given, np.zeros((128, 4), np.uint32)])
