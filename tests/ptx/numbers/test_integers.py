"""Whole numbers and bits against integers of Python, on corner cases and drawn numbers."""

from collections.abc import Callable
from itertools import product

import pytest

from attnverify import ptx
from tests.ptx.numbers.scalar import clamped, wrapped
from tests.ptx.small import apply, corners, numbers_of

WHOLE = ["u16", "s16", "u32", "s32", "u64", "s64"]


def pairs(kind: str) -> tuple[list[int], list[int]]:
    drawn = numbers_of(kind, 40), numbers_of(kind, 40, 1)
    both = [*product(corners(kind), repeat=2), *zip(*drawn, strict=True)]
    return [x for x, _ in both], [y for _, y in both]


def check(
    instruction: str,
    kind: str,
    model: Callable[..., int],
    to: str | None = None,
    mask: str | None = None,
) -> None:
    """An instruction of two operands gives what the model gives."""
    x, y = pairs(kind)
    found = apply(f"{instruction} %d, %a, %b;", to or kind, (kind, x), (kind, y))
    for a, b, bits in zip(x, y, found, strict=True):
        wanted = model(wrapped(a, kind), wrapped(b, kind)) % (1 << int((to or kind)[1:]))
        assert int(bits) == wanted, (instruction, a, b)


def cut(a: int, b: int) -> int:
    """A quotient without its fraction."""
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul.lo", lambda a, b: a * b),
        ("min", min),
        ("max", max),
        ("div", cut),
        ("rem", lambda a, b: a if b == 0 else a - b * cut(a, b)),
    ],
)
def test_arithmetic_wraps_around(name: str, model: Callable[..., int], kind: str) -> None:
    check(f"{name}.{kind}", kind, model)


@pytest.mark.parametrize("kind", WHOLE)
def test_the_high_half_of_a_product_is_that_of_all_its_bits(kind: str) -> None:
    check(f"mul.hi.{kind}", kind, lambda a, b: a * b >> int(kind[1:]))


@pytest.mark.parametrize(
    ("kind", "to"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")]
)
def test_a_wide_product_has_all_its_bits(kind: str, to: str) -> None:
    check(f"mul.wide.{kind}", kind, lambda a, b: a * b, to)


@pytest.mark.parametrize("name", ["add", "sub"])
def test_saturated_sums_stay_within_32_bits(name: str) -> None:
    check(f"{name}.sat.s32", "s32", lambda a, b: clamped(a + b if name == "add" else a - b, "s32"))


@pytest.mark.parametrize(("name", "find"), [("min", min), ("max", max)])
def test_a_negative_extreme_becomes_zero_with_relu(
    name: str, find: Callable[[int, int], int]
) -> None:
    check(f"{name}.relu.s32", "s32", lambda a, b: max(find(a, b), 0))


@pytest.mark.parametrize("kind", ["u16", "s16"])
@pytest.mark.parametrize(
    ("name", "model"), [("add", lambda a, b: a + b), ("min", min), ("max", max), ("relu", max)]
)
def test_halves_of_a_word_are_added_and_compared_apart(
    name: str, model: Callable[..., int], kind: str
) -> None:
    if name == "relu" and kind == "u16":
        with pytest.raises(ptx.NotUnderstood, match="wanted a type among"):
            apply("max.relu.u16x2 %d, %a, %b;", "b32", ("b32", [0]), ("b32", [0]))
        return
    x, y = pairs(kind)
    packed = [[low | high << 16 for low, high in zip(z, z[::-1], strict=True)] for z in (x, y)]
    spelled = "max.relu" if name == "relu" else name
    found = apply(f"{spelled}.{kind}x2 %d, %a, %b;", "b32", *(("b32", each) for each in packed))
    least = 0 if name == "relu" else -(1 << 17)
    wanted = [
        max(model(wrapped(a, kind), wrapped(b, kind)), least) % (1 << 16)
        for a, b in zip(x, y, strict=True)
    ]
    halves = [(int(bits) & 0xFFFF, int(bits) >> 16) for bits in found]
    assert halves == list(zip(wanted, wanted[::-1], strict=True))


@pytest.mark.parametrize("kind", WHOLE)
def test_mad_adds_a_third_number(kind: str) -> None:
    x, y, z = (numbers_of(kind, 60, seed) for seed in range(3))
    found = apply(f"mad.lo.{kind} %d, %a, %b, %c;", kind, (kind, x), (kind, y), (kind, z))
    assert [int(d) for d in found] == [
        (a * b + c) % (1 << int(kind[1:])) for a, b, c in zip(x, y, z, strict=True)
    ]


@pytest.mark.parametrize(("kind", "to"), [("u32", "u64"), ("s32", "s64"), ("u16", "u32")])
def test_wide_mad_adds_a_wide_number(kind: str, to: str) -> None:
    x, y, z = numbers_of(kind, 60), numbers_of(kind, 60, 1), numbers_of(to, 60, 2)
    found = apply(f"mad.wide.{kind} %d, %a, %b, %c;", to, (kind, x), (kind, y), (to, z))
    wanted = [
        (wrapped(a, kind) * wrapped(b, kind) + c) % (1 << int(to[1:]))
        for a, b, c in zip(x, y, z, strict=True)
    ]
    assert [int(d) for d in found] == wanted


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_products_of_24_bits_forget_the_rest(kind: str) -> None:
    def low(x: int) -> int:
        x &= 0xFFFFFF
        return x - (1 << 24) if kind == "s32" and x >> 23 else x

    check(f"mul24.lo.{kind}", kind, lambda a, b: low(a) * low(b))


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
@pytest.mark.parametrize("name", ["neg", "abs"])
def test_the_most_negative_number_stays(name: str, kind: str) -> None:
    x = [*corners(kind), *numbers_of(kind, 20)]
    found = apply(f"{name}.{kind} %d, %a;", kind, (kind, x))
    for a, d in zip(x, found, strict=True):
        wanted = -wrapped(a, kind) if name == "neg" else abs(wrapped(a, kind))
        assert int(d) == wanted % (1 << int(kind[1:]))


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_sad_adds_a_distance(kind: str) -> None:
    x, y = pairs(kind)
    found = apply(f"sad.{kind} %d, %a, %b, %b;", kind, (kind, x), (kind, y))
    wanted = [
        (abs(wrapped(a, kind) - wrapped(b, kind)) + b) % 2**32 for a, b in zip(x, y, strict=True)
    ]
    assert [int(d) for d in found] == wanted


# bits


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
@pytest.mark.parametrize(
    ("name", "model"), [("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)]
)
def test_logic_is_bit_by_bit(name: str, model: Callable[..., int], kind: str) -> None:
    check(f"{name}.{kind}", kind, lambda a, b: model(a, b))


def test_logic_of_predicates() -> None:
    x, y = [0, 0, 1, 1], [0, 1, 0, 1]
    found = {
        name: list(apply(f"{name}.pred %d, %a, %b;", "pred", ("pred", x), ("pred", y)))
        for name in ("and", "or", "xor")
    }
    assert found == {"and": [0, 0, 0, 1], "or": [0, 1, 1, 1], "xor": [0, 1, 1, 0]}


@pytest.mark.parametrize(
    ("name", "model"), [("not", lambda a: ~a), ("cnot", lambda a: int(a == 0))]
)
def test_negations(name: str, model: Callable[[int], int]) -> None:
    x = corners("b32")
    assert [int(d) for d in apply(f"{name}.b32 %d, %a;", "b32", ("b32", x))] == [
        model(a) % 2**32 for a in x
    ]


@pytest.mark.parametrize("table", [0x00, 0x80, 0x96, 0xCA, 0xE8, 0x1D, 0xFF])
def test_lop3_reads_its_table_by_the_three_bits(table: int) -> None:
    x, y, z = (numbers_of("b32", 30, seed) for seed in range(3))
    found = apply(
        f"lop3.b32 %d, %a, %b, %c, {table:#x};", "b32", ("b32", x), ("b32", y), ("b32", z)
    )
    for a, b, c, d in zip(x, y, z, found, strict=True):
        bits = [(a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1) for i in range(32)]
        assert int(d) == sum((table >> which & 1) << i for i, which in enumerate(bits))


SHIFTS = [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 2**31, 2**32 - 1]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_left_shifts_beyond_the_width_give_zero(kind: str) -> None:
    both = list(product(corners(kind), SHIFTS))
    x, by = [a for a, _ in both], [s for _, s in both]
    found = apply(f"shl.{kind} %d, %a, %b;", kind, (kind, x), ("u32", by))
    bits = int(kind[1:])
    assert [int(d) for d in found] == [(a << min(s, bits)) % (1 << bits) for a, s in both]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64", "b32"])
def test_right_shifts_beyond_the_width_give_zero_or_the_sign(kind: str) -> None:
    both = list(product(corners(kind), SHIFTS))
    x, by = [a for a, _ in both], [s for _, s in both]
    found = apply(f"shr.{kind} %d, %a, %b;", kind, (kind, x), ("u32", by))
    bits = int(kind[1:])
    assert [int(d) for d in found] == [
        (wrapped(a, kind) >> min(s, bits)) % (1 << bits) for a, s in both
    ]


@pytest.mark.parametrize(("side", "mode"), list(product("lr", ["wrap", "clamp"])))
def test_funnel_shifts_take_32_of_64_bits(side: str, mode: str) -> None:
    x, y = numbers_of("b32", len(SHIFTS)), numbers_of("b32", len(SHIFTS), 1)
    found = apply(
        f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", "b32", ("b32", x), ("b32", y), ("u32", SHIFTS)
    )
    for low, high, by, d in zip(x, y, SHIFTS, found, strict=True):
        count = by & 31 if mode == "wrap" else min(by, 32)
        whole = high << 32 | low
        assert int(d) == (whole << count >> 32 if side == "l" else whole >> count) % 2**32


def extracted(a: int, position: int, length: int, kind: str) -> int:
    """bfe, bit by bit, as the ISA writes it."""
    msb = int(kind[1:]) - 1
    position, length = position & 0xFF, length & 0xFF
    sign = 0 if kind[0] == "u" or length == 0 else a >> min(position + length - 1, msb) & 1
    return sum(
        (a >> (position + i) & 1 if i < length and position + i <= msb else sign) << i
        for i in range(msb + 1)
    )


FIELDS = [
    (0, 0),
    (0, 1),
    (0, 32),
    (3, 7),
    (31, 1),
    (31, 2),
    (20, 12),
    (20, 40),
    (32, 1),
    (33, 5),
    (63, 1),
    (64, 3),
    (255, 255),
    (5, 0),
    (256, 8),
]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_fields_are_extracted_with_their_sign(kind: str) -> None:
    both = list(product(corners(kind) + numbers_of(kind, 6), FIELDS))
    x, p, n = [a for a, _ in both], [f[0] for _, f in both], [f[1] for _, f in both]
    found = apply(f"bfe.{kind} %d, %a, %b, %c;", kind, (kind, x), ("u32", p), ("u32", n))
    assert [int(d) for d in found] == [
        extracted(*given, kind) for given in zip(x, p, n, strict=True)
    ]


def inserted(a: int, b: int, position: int, length: int, bits: int) -> int:
    for i in range(length & 0xFF):
        at = (position & 0xFF) + i
        if at < bits:
            b = (b & ~(1 << at)) | ((a >> i & 1) << at)
    return b


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_fields_are_inserted(kind: str) -> None:
    x, y = numbers_of(kind, len(FIELDS)), numbers_of(kind, len(FIELDS), 1)
    p, n = [f[0] for f in FIELDS], [f[1] for f in FIELDS]
    found = apply(
        f"bfi.{kind} %d, %a, %b, %c, %e;", kind, (kind, x), (kind, y), ("u32", p), ("u32", n)
    )
    bits = int(kind[1:])
    assert [int(d) for d in found] == [
        inserted(*given, bits) for given in zip(x, y, p, n, strict=True)
    ]


@pytest.mark.parametrize(("name", "kind"), list(product(["popc", "clz", "brev"], ["b32", "b64"])))
def test_bits_are_counted_and_reversed(name: str, kind: str) -> None:
    bits, x = int(kind[1:]), corners(kind) + numbers_of(kind, 10)
    found = apply(f"{name}.{kind} %d, %a;", kind if name == "brev" else "u32", (kind, x))
    text = [f"{a:0{bits}b}" for a in x]
    model = {
        "popc": lambda t: t.count("1"),
        "clz": lambda t: len(t) - len(t.lstrip("0")),
        "brev": lambda t: int(t[::-1], 2),
    }[name]
    assert [int(d) for d in found] == [model(t) for t in text]


@pytest.mark.parametrize(
    ("kind", "amount"), list(product(["u32", "s32", "u64", "s64"], ["", ".shiftamt"]))
)
def test_the_highest_bit_is_found(kind: str, amount: str) -> None:
    x = corners(kind) + numbers_of(kind, 10)
    found = apply(f"bfind{amount}.{kind} %d, %a;", "u32", (kind, x))
    for a, d in zip(x, found, strict=True):
        pattern = ~wrapped(a, kind) if wrapped(a, kind) < 0 else a
        place = pattern.bit_length() - 1
        assert int(d) == (
            0xFFFFFFFF if place < 0 else int(kind[1:]) - 1 - place if amount else place
        )


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_masks_are_made_of_a_place_and_a_width(mode: str) -> None:
    both = list(product([0, 1, 5, 31, 32, 40], repeat=2))
    found = apply(
        f"bmsk.{mode}.b32 %d, %a, %b;",
        "b32",
        ("u32", [p for p, _ in both]),
        ("u32", [n for _, n in both]),
    )
    for (p, n), d in zip(both, found, strict=True):
        p, n = (p % 32, n % 32) if mode == "wrap" else (min(p, 32), min(n, 32))
        assert int(d) == (((1 << n) - 1) << p) % 2**32


def test_bytes_are_permuted_or_their_signs_spread() -> None:
    selectors = [0x3210, 0x7654, 0x0123, 0xFEDC, 0xB8A9, 0x5410, 0x7632, 0x4444]
    x, y = numbers_of("b32", len(selectors)), numbers_of("b32", len(selectors), 1)
    found = apply("prmt.b32 %d, %a, %b, %c;", "b32", ("b32", x), ("b32", y), ("b32", selectors))
    for a, b, s, d in zip(x, y, selectors, found, strict=True):
        whole = (b << 32 | a).to_bytes(8, "little")
        chosen = [whole[s >> 4 * i & 7] for i in range(4)]
        wanted = [
            (255 if byte >> 7 else 0) if s >> 4 * i & 8 else byte for i, byte in enumerate(chosen)
        ]
        assert int(d) == int.from_bytes(bytes(wanted), "little")


# carries, and products of bytes


def chain(name: str, kind: str) -> None:
    """A sum of two words from their halves, with the carry from the lower to the upper one."""
    bits = int(kind[1:])
    x, y = pairs(kind)
    given = [(kind, [*x]), (kind, [*y]), (kind, [*reversed(x)]), (kind, [*reversed(y)])]
    text = f"{name}.cc.{kind} %d0, %a, %b; {name}c.cc.{kind} %d1, %c, %e; {name}c.{kind} %d2, 0, 0;"
    found = apply(text, [kind, kind, kind], *given)
    for low, more, high, most, *parts in zip(*(bits for _, bits in given), *found, strict=True):
        first, second = high << bits | low, most << bits | more
        total = (first + second if name == "add" else first - second) % (1 << 3 * bits)
        assert sum(int(part) << bits * at for at, part in enumerate(parts)) == total


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", ["add", "sub"])
def test_carries_go_from_one_instruction_to_the_next(name: str, kind: str) -> None:
    chain(name, kind)


@pytest.mark.parametrize("part", ["lo", "hi"])
@pytest.mark.parametrize("kind", ["u32", "u64", "s32"])
def test_products_carry_as_well(kind: str, part: str) -> None:
    bits = int(kind[1:])
    x, y = pairs(kind)
    z = [*reversed(y)]
    text = f"mad.{part}.cc.{kind} %d0, %a, %b, %c; madc.{part}.{kind} %d1, %a, %b, %c;"
    found = apply(text, [kind, kind], (kind, x), (kind, y), (kind, z))
    for a, b, c, d0, d1 in zip(x, y, z, *found, strict=True):
        product = wrapped(a, kind) * wrapped(b, kind)
        of = (product >> bits if part == "hi" else product) % (1 << bits)
        assert int(d0) == (of + c) % (1 << bits)
        assert int(d1) == (of + c + (of + c >> bits)) % (1 << bits)


def test_a_carry_stays_with_its_thread() -> None:
    text = "setp.ne.u32 %p, %a, 0; @%p add.cc.u32 %d, %a, %a; addc.u32 %d, 0, 0;"
    x = [0, 1, 1 << 31, 3 << 30]
    assert list(apply(f"add.cc.u32 %d, 0, 0; {text}", "u32", ("u32", x))) == [0, 0, 1, 1]


def numbers_in(x: int, bits: int, signed: bool) -> list[int]:
    return [wrapped(x >> at, f"{'s' if signed else 'u'}{bits}") for at in range(0, 32, bits)]


@pytest.mark.parametrize(("left", "right"), list(product(["u32", "s32"], repeat=2)))
def test_products_of_bytes_are_added_up(left: str, right: str) -> None:
    x, y = pairs("u32")
    z = [*reversed(x)]
    found = apply(f"dp4a.{left}.{right} %d, %a, %b, %c;", "u32", *(("u32", n) for n in (x, y, z)))
    for a, b, c, bits in zip(x, y, z, found, strict=True):
        of = numbers_in(a, 8, left == "s32"), numbers_in(b, 8, right == "s32")
        assert int(bits) == (c + sum(p * q for p, q in zip(*of, strict=True))) % 2**32


@pytest.mark.parametrize(
    ("left", "right", "half"), list(product(["u32", "s32"], ["u32", "s32"], ["lo", "hi"]))
)
def test_products_of_16_and_8_bits_are_added_up(left: str, right: str, half: str) -> None:
    x, y = pairs("u32")
    z = [*reversed(x)]
    text = f"dp2a.{half}.{left}.{right} %d, %a, %b, %c;"
    found = apply(text, "u32", *(("u32", n) for n in (x, y, z)))
    for a, b, c, bits in zip(x, y, z, found, strict=True):
        bytes_ = numbers_in(b, 8, right == "s32")[2 * (half == "hi") :][:2]
        of = numbers_in(a, 16, left == "s32"), bytes_
        assert int(bits) == (c + sum(p * q for p, q in zip(*of, strict=True))) % 2**32
