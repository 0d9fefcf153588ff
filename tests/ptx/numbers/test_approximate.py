"""
Approximate instructions stay within what the ISA states, reach close to it, and are exact where it
says so.
"""

from collections.abc import Callable
from itertools import product
from math import inf, isnan

import mpmath
import numpy as np
import pytest

from attnverify import ptx
from attnverify.ptx.numbers.errors import APPROXIMATE
from tests.ptx.numbers.scalar import flushed, value
from tests.ptx.small import apply, corners, numbers_of

Function = Callable[[mpmath.mpf], mpmath.mpf]
FUNCTIONS: dict[str, Function] = {
    "ex2": lambda x: mpmath.mpf(2) ** x,
    "lg2": lambda x: mpmath.log(x, 2),
    "rcp": lambda x: 1 / x,
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tanh": mpmath.tanh,
}


def ulp(y: mpmath.mpf, digits: int = 24, least: int = -126) -> mpmath.mpf:
    exponent = max(int(mpmath.floor(mpmath.log(abs(y), 2))), least) if y else least
    return mpmath.mpf(2) ** (exponent - digits + 1)


# The errors as the ISA states them; those in ulp are from the correctly rounded result, which is
# half of one from the exact.
STATED: dict[tuple[str, str], Callable[[mpmath.mpf, mpmath.mpf], mpmath.mpf]] = {
    ("ex2", "f32"): lambda x, y: 2.5 * ulp(y),
    ("rcp", "f32"): lambda x, y: 1.5 * ulp(y),
    ("lg2", "f32"): lambda x, y: mpmath.mpf(2) ** -22 * (1 if 0.5 < x < 2 else abs(y)),
    ("sqrt", "f32"): lambda x, y: abs(y) * mpmath.mpf(2) ** -23,
    ("rsqrt", "f32"): lambda x, y: abs(y) * mpmath.mpf(2) ** mpmath.mpf("-22.9"),
    ("tanh", "f32"): lambda x, y: abs(y) * mpmath.mpf(2) ** -11,
    ("sin", "f32"): lambda x, y: (
        mpmath.mpf(2) ** mpmath.mpf("-20.5" if abs(x) <= 2 * mpmath.pi else "-14.7")
    ),
    ("cos", "f32"): lambda x, y: (
        mpmath.mpf(2) ** mpmath.mpf("-20.5" if abs(x) <= 2 * mpmath.pi else "-14.7")
    ),
    ("ex2", "f16"): lambda x, y: abs(y) * mpmath.mpf(2) ** mpmath.mpf("-9.9"),
    ("ex2", "bf16"): lambda x, y: abs(y) * mpmath.mpf(2) ** -7,
    ("tanh", "f16"): lambda x, y: mpmath.mpf(2) ** mpmath.mpf("-10.987"),
    ("tanh", "bf16"): lambda x, y: mpmath.mpf(2) ** -8,
}
LEAST = {"f32": -126, "f16": -14, "bf16": -126}
SPACING = {"f32": mpmath.mpf(2) ** -149, "f16": mpmath.mpf(2) ** -24, "bf16": mpmath.mpf(2) ** -133}


def spelled(name: str, kind: str) -> str:
    return f"{name}.approx.ftz.bf16" if (name, kind) == ("ex2", "bf16") else f"{name}.approx.{kind}"


def inputs(name: str, kind: str) -> list[int]:
    drawn = numbers_of(kind, 250)
    within = {"sin": 300.0, "cos": 300.0, "ex2": 14.0}.get(name, inf)
    chosen = [bits for bits in drawn if abs(value(bits, kind)) < within]  # type: ignore[arg-type,operator]
    top = 1 << (31 if kind == "f32" else 15)
    return [bits & ~top for bits in chosen] if name in ("lg2", "sqrt", "rsqrt") else chosen


def shares(name: str, kind: str, seed: int) -> list[float]:
    """The errors of drawn arguments, in shares of what is stated."""
    given = inputs(name, kind)
    found = apply(f"{spelled(name, kind)} %d, %a;", kind, (kind, given), seed=seed)
    told = []
    with mpmath.workdps(40):
        for bits, d in zip(given, found, strict=True):
            x, y = (
                mpmath.mpf(value(bits, kind).numerator) / value(bits, kind).denominator,
                value(int(d), kind),
            )  # type: ignore[union-attr]
            exact = FUNCTIONS[name](x)
            # where no number of the format is near enough, the nearest is given
            allowed = max(
                STATED[name, kind](x, exact), SPACING[kind] / 2, half_of_spacing(exact, kind)
            )
            told.append(float((mpmath.mpf(y.numerator) / y.denominator - exact) / allowed))  # type: ignore[union-attr]
    return told


def half_of_spacing(y: mpmath.mpf, kind: str) -> mpmath.mpf:
    return ulp(y, {"f32": 24, "f16": 11, "bf16": 8}[kind], LEAST[kind]) / 2


@pytest.mark.parametrize(("name", "kind"), list(STATED))
def test_errors_stay_within_what_is_stated_and_use_it(name: str, kind: str) -> None:
    told = [share for seed in range(4) for share in shares(name, kind, seed)]
    assert max(map(abs, told)) <= 1
    assert max(told) > 0.6 and min(told) < -0.6


def test_every_approximate_instruction_of_the_machine_is_judged_here() -> None:
    assert set(STATED) == set(APPROXIMATE)


def test_errors_lean_to_one_side_in_some_launches() -> None:
    means = [float(np.mean(shares("sqrt", "f32", seed))) for seed in range(8)]
    assert max(means) > 0.5 and min(means) < -0.5


def test_the_same_seed_gives_the_same_bits() -> None:
    given = numbers_of("f32", 100)
    once, again, other = (
        apply("ex2.approx.f32 %d, %a;", "f32", ("f32", given), seed=seed) for seed in (3, 3, 4)
    )
    assert list(once) == list(again) != list(other)


SPELLED = {f"{name} {kind}": (spelled(name, kind) + " %d, %a;", kind) for name, kind in STATED}
QUOTIENTS = {how: (f"div.{how}.f32 %d, %a, %b;", "f32") for how in ("approx", "full")}


@pytest.mark.parametrize(("text", "kind"), (SPELLED | QUOTIENTS).values(), ids=SPELLED | QUOTIENTS)
def test_every_thread_has_the_same_error_for_the_same_argument(text: str, kind: str) -> None:
    """Compilers have several threads compute one number, and store it to one place."""
    given = 100 * {"f32": [0x3E99999A], "f16": [0x34CD], "bf16": [0x3E9A]}[kind]
    for seed in range(8):
        found = apply(text, kind, (kind, given), (kind, given), seed=seed)
        assert len(set(found)) == 1


def test_without_latitude_results_are_rounded_correctly() -> None:
    given = inputs("ex2", "f32")
    found = apply("ex2.approx.f32 %d, %a;", "f32", ("f32", given), latitude=0.0)
    x = np.array(given, np.uint32).view(np.float32)
    assert np.array_equal(found.view(np.float32), np.exp2(x.astype(np.float64)).astype(np.float32))


CERTAIN = {
    "ex2": {"-inf": 0.0, "-0": 1.0, "+0": 1.0, "inf": inf},
    "lg2": {"-inf": "nan", "-1": "nan", "-0": -inf, "+0": -inf, "inf": inf},
    "rcp": {"-inf": -0.0, "-0": -inf, "+0": inf, "inf": 0.0},
    "sqrt": {"-inf": "nan", "-1": "nan", "-0": -0.0, "+0": 0.0, "inf": inf},
    "rsqrt": {"-inf": "nan", "-1": "nan", "-0": -inf, "+0": inf, "inf": 0.0},
    "sin": {"-inf": "nan", "-0": -0.0, "+0": 0.0, "inf": "nan"},
    "cos": {"-inf": "nan", "-0": 1.0, "+0": 1.0, "inf": "nan"},
    "tanh": {"-inf": -1.0, "-0": -0.0, "+0": 0.0, "inf": 1.0},
}
"""The tables of the ISA."""

BITS = {
    "-inf": 0xFF800000,
    "inf": 0x7F800000,
    "-0": 1 << 31,
    "+0": 0,
    "-1": 0xBF800000,
    "nan": 0x7FC00000,
}


@pytest.mark.parametrize("name", CERTAIN)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_corner_cases_are_those_of_the_tables(name: str, seed: int) -> None:
    table = CERTAIN[name] | {"nan": "nan"}
    found = apply(
        f"{name}.approx.f32 %d, %a;", "f32", ("f32", [BITS[x] for x in table]), seed=seed
    ).view(np.float32)
    for wanted, got in zip(table.values(), found, strict=True):
        assert (
            isnan(got)
            if wanted == "nan"
            else (got == wanted and np.signbit(got) == np.signbit(wanted))
        ), (name, table)


def test_tanh_passes_subnormal_numbers_through() -> None:
    small = [1, 0x7FFFFF, 0x80000001]
    assert list(apply("tanh.approx.f32 %d, %a;", "f32", ("f32", small))) == small


@pytest.mark.parametrize("name", ["ex2", "lg2", "rcp", "rsqrt", "sqrt"])
def test_ftz_flushes_operands_and_results(name: str) -> None:
    given = [1, 0x7FFFFF, 0x80000001, 0xC2FC8000, 0x7EFFFFFF, 0x7F000000]
    found = apply(f"{name}.approx.ftz.f32 %d, %a;", "f32", ("f32", given), latitude=0.0)
    plain = apply(
        f"{name}.approx.f32 %d, %a;",
        "f32",
        ("f32", [flushed(x, "f32") for x in given]),
        latitude=0.0,
    )
    assert [int(d) for d in found] == [flushed(int(d), "f32") for d in plain]


def test_beyond_100_pi_the_sine_may_be_anything() -> None:
    given = [int(b) for b in np.linspace(400, 1e6, 500, dtype=np.float32).view(np.uint32)]
    found = apply("sin.approx.f32 %d, %a;", "f32", ("f32", given), seed=5).view(np.float32)
    exact = np.sin(np.array(given, np.uint32).view(np.float32).astype(np.float64))
    assert np.abs(found).max() <= 1 and np.abs(found - exact).max() > 0.5


# quotients


def quotients(how: str) -> tuple[list[tuple[int, int]], np.ndarray]:
    given = list(product(corners("f32"), repeat=2))
    given = given[::2] + list(zip(numbers_of("f32", 200), numbers_of("f32", 200, 1), strict=True))
    return given, apply(
        f"div.{how}.f32 %d, %a, %b;",
        "f32",
        ("f32", [a for a, _ in given]),
        ("f32", [b for _, b in given]),
    )


@pytest.mark.parametrize("how", ["full", "approx"])
def test_approximate_quotients_are_within_2_ulp(how: str) -> None:
    given, found = quotients(how)
    for (a, b), d in zip(given, found.view(np.float32), strict=True):
        x, y = (np.array(bits, np.uint32).view(np.float32).astype(np.float64) for bits in (a, b))
        with np.errstate(all="ignore"):
            exact = np.float32(x / y)
        if how == "approx" and 2.0**126 < abs(y) < inf:
            assert isnan(d) if np.isinf(x) or np.isnan(x) else d == 0
        elif isnan(exact) or np.isinf(exact):
            assert isnan(d) == isnan(exact) and (
                isnan(d) or d == exact or abs(d) == np.finfo(np.float32).max
            )
        else:
            assert abs(int(exact.view(np.int32)) - int(d.view(np.int32))) <= 2 or (
                exact == 0 and abs(d) <= 2.0**-148
            )


@pytest.mark.parametrize(
    "text",
    [
        "lg2.approx.f16 %d, %a;",
        "tanh.approx.ftz.f32 %d, %a;",
        "ex2.f32 %d, %a;",
        "ex2.approx.bf16 %d, %a;",
    ],
)
def test_functions_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(ptx.NotUnderstood):
        apply(text, "f32", ("f32", [0]))
