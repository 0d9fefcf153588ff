"""
Floating-point arithmetic against exact fractions rounded once: signed zeros, subnormal numbers,
NaN, ties, every rounding mode.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from attnverify import ptx
from tests.ptx.numbers import scalar
from tests.ptx.numbers.scalar import flushed, order, saturated, value
from tests.ptx.small import apply, corners, numbers_of

SINGLE = corners("f32")
MODES = ["rn", "rz", "rm", "rp"]
TWO = list(product(SINGLE, repeat=2)) + list(
    zip(numbers_of("f32", 200), numbers_of("f32", 200, 1), strict=True)
)


def same(bits: int, wanted: int, kind: str) -> bool:
    """Equal, or both NaN: payloads are not modelled."""
    return bits == wanted or (value(bits, kind) == "nan" and value(wanted, kind) == "nan")


def check(
    instruction: str, kind: str, given: list[tuple[int, ...]], model: Callable[..., int]
) -> None:
    for start in range(0, len(given), 1000):
        part = given[start : start + 1000]
        operands = [(kind, [each[place] for each in part]) for place in range(len(part[0]))]
        found = apply(instruction, kind, *operands)
        for each, bits in zip(part, found, strict=True):
            wanted = model(*each)
            assert same(int(bits), wanted, kind), (
                instruction,
                [hex(x) for x in each],
                hex(int(bits)),
                hex(wanted),
            )


NAMES: dict[str, Callable[..., int]] = {
    "add": scalar.add,
    "sub": scalar.subtract,
    "mul": scalar.multiply,
    "div": scalar.divide,
}


@pytest.mark.parametrize(("name", "mode"), list(product(NAMES, MODES)))
def test_results_of_float32_are_rounded_once(name: str, mode: str) -> None:
    check(f"{name}.{mode}.f32 %d, %a, %b;", "f32", TWO, lambda a, b: NAMES[name](a, b, "f32", mode))


@pytest.mark.parametrize("name", NAMES)
def test_ftz_flushes_operands_and_results_and_keeps_signs(name: str) -> None:
    def model(a: int, b: int) -> int:
        return flushed(NAMES[name](flushed(a, "f32"), flushed(b, "f32"), "f32"), "f32")

    mode = "rn." if name == "div" else ""
    check(f"{name}.{mode}ftz.f32 %d, %a, %b;", "f32", TWO, model)


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_sat_holds_results_between_0_and_1_and_makes_nan_0(name: str) -> None:
    check(
        f"{name}.sat.f32 %d, %a, %b;",
        "f32",
        TWO,
        lambda a, b: saturated(NAMES[name](a, b, "f32"), "f32"),
    )


THREE = [(a, b, c) for a, b in product(SINGLE[::3], repeat=2) for c in SINGLE[::2]]
THREE += list(zip(*(numbers_of("f32", 300, seed) for seed in range(3)), strict=True))
ONE = 0x3F800000
HARD = [
    # products next to the middle of two numbers, moved by a third that float64 has no room for
    (ONE + 1, ONE + 0x800000 // 2 + 0x1000, 0x00000001),
    (0x3F800001, 0x33800000, 0x4B800000),
    (0x3F801000, 0x3F800800, 0x0D800000),
    (0x3F801000, 0x3F800800, 0x8D800000),
    (0x3F800800, 0x3F801000, 0x19800001),
    (0x00800000, 0x3F000001, 0x00000001),
    (0x00FFFFFF, 0x3F000000, 0x80000001),
    (0x1A000001, 0x1A000001, 0x00000001),
]


@pytest.mark.parametrize("mode", MODES)
def test_fma_rounds_once(mode: str) -> None:
    check(
        f"fma.{mode}.f32 %d, %a, %b, %c;",
        "f32",
        [*THREE, *HARD],
        lambda a, b, c: scalar.fused(a, b, c, "f32", mode),
    )


def test_fma_rounds_once_where_float64_would_round_twice() -> None:
    """x y is a tie of float32 once z is cut off in float64: the sign of z decides."""
    x = y = 0x3F800800
    ties = [
        (x, y, sign | exponent << 23 | 5) for sign in (0, 1 << 31) for exponent in range(30, 80, 3)
    ]
    check("fma.rn.f32 %d, %a, %b, %c;", "f32", ties, lambda a, b, c: scalar.fused(a, b, c, "f32"))
    naive = [
        (v(a) * v(b) + v(c)).astype(np.float32).view(np.uint32)
        for a, b, c in ties
        for v in [as_float]
    ]
    assert any(
        int(n) != scalar.fused(a, b, c, "f32") for n, (a, b, c) in zip(naive, ties, strict=True)
    ), "no case is hard"


def as_float(bits: int) -> Any:
    return np.array(bits, np.uint32).view(np.float32).astype(np.float64)


def test_fma_with_ftz_and_sat() -> None:
    def model(a: int, b: int, c: int) -> int:
        given = (flushed(part, "f32") for part in (a, b, c))
        return saturated(flushed(scalar.fused(*given, "f32"), "f32"), "f32")

    check("fma.rn.ftz.sat.f32 %d, %a, %b, %c;", "f32", THREE, model)


@pytest.mark.parametrize("mode", MODES)
def test_roots_are_rounded_once(mode: str) -> None:
    given = [
        (x,)
        for x in [*SINGLE, *numbers_of("f32", 200), 0x3F800002, 0x40800001, 0x40000000, 0x41100000]
    ]
    check(f"sqrt.{mode}.f32 %d, %a;", "f32", given, lambda a: scalar.root(a, "f32", mode))


@pytest.mark.parametrize("mode", MODES)
def test_reciprocals_are_rounded_once(mode: str) -> None:
    given = [(x,) for x in [*SINGLE, *numbers_of("f32", 200)]]
    check(f"rcp.{mode}.f32 %d, %a;", "f32", given, lambda a: scalar.divide(ONE, a, "f32", mode))


@pytest.mark.parametrize(
    ("name", "kind"), list(product(["min", "max"], ["f32", "f64", "f16", "bf16"]))
)
def test_extremes_prefer_numbers_to_nan_and_know_signs_of_zero(name: str, kind: str) -> None:
    given = list(product(corners(kind), repeat=2))
    check(
        f"{name}.{kind} %d, %a, %b;",
        kind,
        given,
        lambda a, b: scalar.extreme(a, b, kind, name == "min"),
    )


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_extremes_with_nan_pass_it_on(kind: str) -> None:
    given = list(product(corners(kind), repeat=2))
    check(
        f"max.NaN.{kind} %d, %a, %b;",
        kind,
        given,
        lambda a, b: scalar.extreme(a, b, kind, False, propagate=True),
    )


@pytest.mark.parametrize(("name", "kind"), list(product(["min", "max"], ["f32", "f16", "bf16"])))
def test_extremes_of_absolute_values_have_the_signs_product(name: str, kind: str) -> None:
    top = {"f32": 1 << 31}.get(kind, 1 << 15)

    def model(a: int, b: int) -> int:
        return scalar.extreme(a & ~top, b & ~top, kind, name == "min") | ((a ^ b) & top)

    check(
        f"{name}.xorsign.abs.{kind} %d, %a, %b;",
        kind,
        list(product(corners(kind), repeat=2)),
        model,
    )


def test_extremes_with_ftz_compare_zeros() -> None:
    given = list(product(SINGLE, repeat=2))
    check(
        "min.ftz.f32 %d, %a, %b;",
        "f32",
        given,
        lambda a, b: scalar.extreme(flushed(a, "f32"), flushed(b, "f32"), "f32", True),
    )


@pytest.mark.parametrize(
    ("name", "kind"), list(product(["neg", "abs"], ["f32", "f64", "f16", "bf16"]))
)
def test_only_the_sign_changes(name: str, kind: str) -> None:
    top = 1 << (scalar.fields(kind)[2] - 1)
    check(
        f"{name}.{kind} %d, %a;",
        kind,
        [(x,) for x in corners(kind)],
        lambda a: a ^ top if name == "neg" else a & ~top,
    )


def test_neg_with_ftz_flushes() -> None:
    check(
        "neg.ftz.f32 %d, %a;", "f32", [(x,) for x in SINGLE], lambda a: flushed(a, "f32") ^ 1 << 31
    )


@pytest.mark.parametrize(("name", "kind"), list(product(["add", "sub", "mul"], ["f16", "bf16"])))
def test_halves_are_rounded_once(name: str, kind: str) -> None:
    given = list(product(corners(kind), repeat=2)) + list(
        zip(numbers_of(kind, 300), numbers_of(kind, 300, 1), strict=True)
    )
    check(f"{name}.{kind} %d, %a, %b;", kind, given, lambda a, b: NAMES[name](a, b, kind))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_fma_of_halves_rounds_once(kind: str) -> None:
    given = [
        (a, b, c) for a, b in product(corners(kind)[::3], repeat=2) for c in corners(kind)[::2]
    ]
    given += list(zip(*(numbers_of(kind, 400, seed) for seed in range(3)), strict=True))
    check(
        f"fma.rn.{kind} %d, %a, %b, %c;", kind, given, lambda a, b, c: scalar.fused(a, b, c, kind)
    )


def test_fma_of_halves_with_relu_has_no_negative_results() -> None:
    given = list(zip(*(numbers_of("bf16", 200, seed) for seed in range(3)), strict=True))

    def model(a: int, b: int, c: int) -> int:
        found = scalar.fused(a, b, c, "bf16")
        return 0 if found >> 15 and value(found, "bf16") != "nan" else found  # -0 too

    check("fma.rn.relu.bf16 %d, %a, %b, %c;", "bf16", given, model)


@pytest.mark.parametrize(("modifier", "change"), [("ftz", flushed), ("sat", saturated)])
def test_f16_with_ftz_and_sat(modifier: str, change: Callable[[int, str], int]) -> None:
    inward = flushed if modifier == "ftz" else lambda bits, kind: bits
    given = list(product(corners("f16"), repeat=2))

    def model(a: int, b: int) -> int:
        return change(scalar.add(inward(a, "f16"), inward(b, "f16"), "f16"), "f16")

    check(f"add.{modifier}.f16 %d, %a, %b;", "f16", given, model)


@pytest.mark.parametrize(("name", "kind"), list(product(["add", "mul", "max"], ["f16", "bf16"])))
def test_pairs_are_two_halves(name: str, kind: str) -> None:
    low, high = (
        list(zip(numbers_of(kind, 100, s), numbers_of(kind, 100, s + 1), strict=True))
        for s in (0, 2)
    )
    x, y = (
        [
            a | c << 16
            for a, c in zip(*((pair[i] for pair in part) for part in (low, high)), strict=True)
        ]
        for i in (0, 1)
    )
    found = apply(f"{name}.{kind}x2 %d, %a, %b;", f"{kind}x2", (f"{kind}x2", x), (f"{kind}x2", y))
    model = NAMES.get(name, lambda a, b, kind: scalar.extreme(a, b, kind, False))
    for d, (a, b), (c, e) in zip(found, low, high, strict=True):
        assert same(int(d) & 0xFFFF, model(a, b, kind), kind) and same(
            int(d) >> 16, model(c, e, kind), kind
        )


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_that_of_ieee_754(name: str) -> None:
    given = list(product(corners("f64"), repeat=2))
    mode = ".rn" if name == "div" else ""
    check(f"{name}{mode}.f64 %d, %a, %b;", "f64", given, lambda a, b: NAMES[name](a, b, "f64"))


def test_fma_of_float64_rounds_once() -> None:
    given = [
        (a, b, c) for a, b in product(corners("f64")[::4], repeat=2) for c in corners("f64")[::3]
    ]
    given += list(zip(*(numbers_of("f64", 100, seed) for seed in range(3)), strict=True))
    check("fma.rn.f64 %d, %a, %b, %c;", "f64", given, lambda a, b, c: scalar.fused(a, b, c, "f64"))


def test_roots_and_reciprocals_of_float64() -> None:
    given = [(x,) for x in corners("f64")]
    check("sqrt.rn.f64 %d, %a;", "f64", given, lambda a: scalar.root(a, "f64"))
    check("rcp.rn.f64 %d, %a;", "f64", given, lambda a: scalar.divide(0x3FF0000000000000, a, "f64"))


def test_copysign_takes_the_sign_of_the_first() -> None:
    given = list(product(SINGLE, repeat=2))
    check("copysign.f32 %d, %a, %b;", "f32", given, lambda a, b: (a & 1 << 31) | (b & ~(1 << 31)))


# comparisons

ORDERED = ["eq", "ne", "lt", "le", "gt", "ge"]
ALL = [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"]


@pytest.mark.parametrize(("kind", "name"), list(product(["f32", "f64", "f16", "bf16"], ALL)))
def test_comparisons_with_nan_are_false_or_true_as_they_say(kind: str, name: str) -> None:
    given = list(product(corners(kind), repeat=2))
    found = apply(
        f"setp.{name}.{kind} %d, %a, %b;",
        "pred",
        (kind, [a for a, _ in given]),
        (kind, [b for _, b in given]),
    )
    assert [bool(p) for p in found] == [order(a, b, kind)(name) for a, b in given]


@pytest.mark.parametrize(("kind", "name"), list(product(["u32", "s32", "u64", "s16"], ORDERED)))
def test_comparisons_of_whole_numbers(kind: str, name: str) -> None:
    given = list(product(corners(kind), repeat=2))
    found = apply(
        f"setp.{name}.{kind} %d, %a, %b;",
        "pred",
        (kind, [a for a, _ in given]),
        (kind, [b for _, b in given]),
    )
    assert [bool(p) for p in found] == [
        scalar.compare(name, scalar.wrapped(a, kind), scalar.wrapped(b, kind)) for a, b in given
    ]


@pytest.mark.parametrize(
    ("name", "plain"), [("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")]
)
def test_unsigned_comparisons_have_names_of_their_own(name: str, plain: str) -> None:
    given = list(product(corners("u32"), repeat=2))
    found = apply(
        f"setp.{name}.u32 %d, %a, %b;",
        "pred",
        ("u32", [a for a, _ in given]),
        ("u32", [b for _, b in given]),
    )
    assert [bool(p) for p in found] == [scalar.compare(plain, a, b) for a, b in given]


def test_ftz_compares_subnormal_numbers_as_zeros() -> None:
    given = list(product(SINGLE, repeat=2))
    found = apply(
        "setp.lt.ftz.f32 %d, %a, %b;",
        "pred",
        ("f32", [a for a, _ in given]),
        ("f32", [b for _, b in given]),
    )
    assert [bool(p) for p in found] == [
        order(flushed(a, "f32"), flushed(b, "f32"), "f32")("lt") for a, b in given
    ]


@pytest.mark.parametrize(
    ("join", "model"),
    [("and", lambda t, p: t and p), ("or", lambda t, p: t or p), ("xor", lambda t, p: t != p)],
)
def test_two_predicates_are_joined_with_a_third(
    join: str, model: Callable[[bool, bool], bool]
) -> None:
    given = list(product([1, 2], [1, 2], [0, 1]))
    x, y, p = (list(each) for each in zip(*given, strict=True))
    first, second = apply(
        f"setp.lt.{join}.s32 %d0|%d1, %a, %b, %c;",
        ["pred", "pred"],
        ("s32", x),
        ("s32", y),
        ("pred", p),
    )
    assert [bool(d) for d in first] == [model(a < b, bool(c)) for a, b, c in given]
    assert [bool(d) for d in second] == [model(not a < b, bool(c)) for a, b, c in given]


def test_a_comparison_of_pairs_writes_a_predicate_for_each_half() -> None:
    x, y = [0x3C004000, 0x7E003C00, 0x00008000], [0x40003C00, 0x3C003C00, 0x80000000]
    low, high = apply(
        "setp.gt.f16x2 %d0|%d1, %a, %b;", ["pred", "pred"], ("f16x2", x), ("f16x2", y)
    )
    assert [list(map(bool, low)), list(map(bool, high))] == [
        [True, False, False],
        [False, False, False],
    ]


def test_set_gives_ones_or_all_bits() -> None:
    x, y = [1, 2, 3], [2, 2, 2]
    assert list(apply("set.lt.u32.s32 %d, %a, %b;", "u32", ("s32", x), ("s32", y))) == [
        0xFFFFFFFF,
        0,
        0,
    ]
    assert list(apply("set.ge.f32.s32 %d, %a, %b;", "f32", ("s32", x), ("s32", y))) == [0, ONE, ONE]


def test_choices_by_a_predicate_and_by_a_sign() -> None:
    assert list(
        apply("selp.b32 %d, %a, %b, %c;", "b32", ("b32", [1, 2]), ("b32", [3, 4]), ("pred", [1, 0]))
    ) == [1, 4]
    signs = [0, 1, 2**31, 2**32 - 1]
    found = apply(
        "slct.b32.s32 %d, %a, %b, %c;", "b32", ("b32", [1] * 4), ("b32", [2] * 4), ("s32", signs)
    )
    assert list(found) == [1, 1, 2, 2]
    found = apply(
        "slct.b32.f32 %d, %a, %b, %c;",
        "b32",
        ("b32", [1] * 4),
        ("b32", [2] * 4),
        ("f32", [0x80000000, 0x7FC00000, ONE, 1 << 31 | 1]),
    )
    assert list(found) == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "name", ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
)
def test_properties_of_numbers(name: str) -> None:
    def model(bits: int) -> bool:
        exponent, rest = bits >> 23 & 255, bits & 0x7FFFFF
        is_nan, is_inf, small = (
            exponent == 255 and rest > 0,
            exponent == 255 and rest == 0,
            exponent == 0,
        )
        answers = {
            "finite": exponent < 255,
            "infinite": is_inf,
            "number": not is_nan,
            "notanumber": is_nan,
        }
        return bool(
            (answers | {"normal": exponent < 255 and not small, "subnormal": small and rest > 0})[
                name
            ]
        )

    assert [bool(p) for p in apply(f"testp.{name}.f32 %d, %a;", "pred", ("f32", SINGLE))] == [
        model(x) for x in SINGLE
    ]


# what is refused


@pytest.mark.parametrize(
    "instruction",
    [
        "add.rna.f32 %d, %a, %a;",
        "add.rn.rz.f32 %d, %a, %a;",
        "add.f32.f32 %d, %a, %a;",
        "mul.hi.f32 %d, %a, %a;",
        "min.rn.f32 %d, %a, %a;",
        "max.xorsign.f32 %d, %a, %a;",
        "max.abs.f32 %d, %a, %a;",
        "div.f32 %d, %a, %a;",
        "setp.lo.f32 %d, %a, %a;",
        "fma.f32 %d, %a, %a;",
        "add.f32 %d, %a;",
        "tex.1d.v4.f32.s32 %d, %a, %a;",
        "add.f32 %d, %a, %unknown;",
        "add.f64 %d, %a, %a;",
    ],
)
def test_what_is_not_understood_is_refused_with_its_text(instruction: str) -> None:
    with pytest.raises(ptx.NotUnderstood, match=instruction.split()[0].replace(".", r"\.")):
        apply(instruction, "f32", ("f32", [0, 0]))
