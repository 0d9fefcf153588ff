"""
An independent statement of the PTX ISA, one number at a time: integers of Python and fractions, no
NumPy.

A floating-point number is its bits; in between it is a :class:`fractions.Fraction`, or the words
"nan", "inf", "-inf".
"""

from collections.abc import Callable
from fractions import Fraction
from math import isqrt

FORMATS = {"f32": (24, 8), "f64": (53, 11), "f16": (11, 5), "bf16": (8, 8), "tf32": (11, 8)}
"""Significant digits and bits of the exponent."""

Number = Fraction | str


def fields(kind: str) -> tuple[int, int, int]:
    """
    Bits of the fraction, the bias, and bits of the whole; a TF32 lies in the upper bits of 32.
    """
    digits, exponent = FORMATS[kind]
    return digits - 1, (1 << (exponent - 1)) - 1, digits + exponent


def value(bits: int, kind: str) -> Number:
    fraction, bias, width = fields(kind)
    sign = -1 if bits >> (width - 1) else 1
    exponent = bits >> fraction & ((1 << (width - 1 - fraction)) - 1)
    rest = bits & ((1 << fraction) - 1)
    if exponent == 2 * bias + 1:
        return "nan" if rest else "inf" if sign > 0 else "-inf"
    scale = Fraction(2) ** (max(exponent, 1) - bias - fraction)
    return sign * scale * (rest + ((1 << fraction) if exponent else 0))


def negative(bits: int, kind: str) -> bool:
    return bool(bits >> (fields(kind)[2] - 1))


def nan(kind: str) -> int:
    return (1 << (fields(kind)[2] - 1)) - 1


def infinity(kind: str, minus: bool) -> int:
    fraction, bias, width = fields(kind)
    return ((2 * bias + 1) << fraction) | (minus << (width - 1))


def zero(kind: str, minus: bool) -> int:
    return minus << (fields(kind)[2] - 1)


def nearest(x: Fraction, mode: str) -> int:
    """A fraction as a whole number."""
    floor, rest = x.numerator // x.denominator, x - x.numerator // x.denominator
    if mode == "rm" or rest == 0:
        return floor
    if mode == "rp":
        return floor + 1
    if mode == "rz":
        return floor + (x < 0)
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    return floor + ((x > 0) if mode == "rna" else floor % 2)


def encode(x: Number, kind: str, mode: str = "rn", minus: bool = False) -> int:
    """The bits of a number rounded to a format; ``minus`` is the sign of a zero."""
    if isinstance(x, str):
        return nan(kind) if x == "nan" else infinity(kind, x == "-inf")
    fraction, bias, width = fields(kind)
    if x == 0:
        return zero(kind, minus)
    exponent = max(logarithm(abs(x)), 1 - bias)
    scaled = nearest(x / Fraction(2) ** (exponent - fraction), mode)
    if abs(scaled) == 2 << fraction:
        scaled, exponent = scaled // 2, exponent + 1
    if exponent > bias:
        whole = mode in ("rn", "rna") or (mode == "rp" and x > 0) or (mode == "rm" and x < 0)
        return infinity(kind, x < 0) - (0 if whole else 1)
    size, normal = abs(scaled), abs(scaled) >> fraction
    return ((x < 0) << (width - 1)) | (
        ((exponent + bias) << fraction) * normal + (size - (normal << fraction))
    )


def logarithm(x: Fraction) -> int:
    """The exponent of a positive number."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def flushed(bits: int, kind: str) -> int:
    fraction, _, width = fields(kind)
    subnormal = not bits >> fraction & ((1 << (width - 1 - fraction)) - 1)
    return zero(kind, negative(bits, kind)) if subnormal else bits


def saturated(bits: int, kind: str) -> int:
    x = value(bits, kind)
    if x == "nan" or x == "-inf" or (isinstance(x, Fraction) and x <= 0):
        return 0
    return encode(Fraction(1), kind) if x == "inf" or x >= 1 else bits


# arithmetic on bits


def add(a: int, b: int, kind: str, mode: str = "rn") -> int:
    x, y = value(a, kind), value(b, kind)
    if "nan" in (x, y) or {x, y} == {"inf", "-inf"}:
        return nan(kind)
    if isinstance(x, str) or isinstance(y, str):
        return a if isinstance(x, str) else b
    both = negative(a, kind) and negative(b, kind)
    minus = both or (mode == "rm" and (negative(a, kind) or negative(b, kind) or x != 0))
    return encode(x + y, kind, mode, minus)


def turned(a: int, kind: str) -> int:
    return a ^ (1 << (fields(kind)[2] - 1))


def subtract(a: int, b: int, kind: str, mode: str = "rn") -> int:
    return add(a, turned(b, kind), kind, mode)


def multiply(a: int, b: int, kind: str, mode: str = "rn") -> int:
    x, y = value(a, kind), value(b, kind)
    minus = negative(a, kind) != negative(b, kind)
    if "nan" in (x, y):
        return nan(kind)
    if isinstance(x, str) or isinstance(y, str):
        return nan(kind) if 0 in (x, y) else infinity(kind, minus)
    return encode(x * y, kind, mode, minus)


def fused(a: int, b: int, c: int, kind: str, mode: str = "rn") -> int:
    x, y, z = (value(part, kind) for part in (a, b, c))
    minus = negative(a, kind) != negative(b, kind)
    product: Number
    if "nan" in (x, y, z) or ({x, y} & {"inf", "-inf"} and 0 in (x, y)):
        return nan(kind)
    if isinstance(x, str) or isinstance(y, str):
        product = "-inf" if minus else "inf"
        return nan(kind) if isinstance(z, str) and z != product else infinity(kind, minus)
    if isinstance(z, str):
        return c
    product = x * y
    same = minus == negative(c, kind)
    of_zero = minus if same else mode == "rm"
    return encode(product + z, kind, mode, of_zero)


def divide(a: int, b: int, kind: str, mode: str = "rn") -> int:
    x, y = value(a, kind), value(b, kind)
    minus = negative(a, kind) != negative(b, kind)
    if "nan" in (x, y) or (x == 0 and y == 0) or (isinstance(x, str) and isinstance(y, str)):
        return nan(kind)
    if isinstance(x, str) or y == 0:
        return infinity(kind, minus)
    return zero(kind, minus) if isinstance(y, str) else encode(x / y, kind, mode, minus)


def root(a: int, kind: str, mode: str = "rn") -> int:
    x = value(a, kind)
    if x == 0:
        return a
    if x in ("nan", "-inf") or (isinstance(x, Fraction) and x < 0):
        return nan(kind)
    if isinstance(x, str):
        return a
    # 200 binary digits and a last one that says that there are more
    whole = isqrt(x.numerator * x.denominator << 800)
    exact = whole * whole == x.numerator * x.denominator << 800
    return encode(Fraction(2 * whole + (not exact), x.denominator << 401), kind, mode)


def order(a: int, b: int, kind: str) -> Callable[[str], bool]:
    """Whether a comparison of two numbers holds."""
    x, y = value(a, kind), value(b, kind)
    unordered = "nan" in (x, y)
    line = {"-inf": Fraction(-(10**400)), "inf": Fraction(10**400)}
    p, q = (line.get(part, part) if isinstance(part, str) else part for part in (x, y))

    def holds(name: str) -> bool:
        if name in ("num", "nan"):
            return unordered == (name == "nan")
        if unordered:
            return name.endswith("u") and len(name) == 3
        return compare(name[:2], p, q)

    return holds


def compare(name: str, p: object, q: object) -> bool:
    equal, less = p == q, p < q  # type: ignore[operator]
    table = {
        "eq": equal,
        "ne": not equal,
        "lt": less,
        "le": less or equal,
        "gt": not (less or equal),
        "ge": not less,
    }
    return table[name]


def extreme(a: int, b: int, kind: str, least: bool, propagate: bool = False) -> int:
    """The smaller or the larger of two numbers; -0 is smaller than +0."""
    x, y = value(a, kind), value(b, kind)
    if x == "nan" or y == "nan":
        return nan(kind) if propagate or x == y else b if x == "nan" else a
    if x == 0 and y == 0:
        return max(a, b) if least else min(a, b)
    return a if order(a, b, kind)("lt" if least else "gt") else b


# whole numbers


def wrapped(x: int, kind: str) -> int:
    bits = int(kind[1:])
    x %= 1 << bits
    return x - (1 << bits) if kind[0] == "s" and x >> (bits - 1) else x


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def clamped(x: int, kind: str) -> int:
    low, high = limits(kind)
    return min(max(x, low), high)


def to_whole(bits: int, of: str, kind: str, mode: str) -> int:
    """A floating-point number as a whole one, within the range of its type."""
    x = value(bits, of)
    low, high = limits(kind)
    if x == "nan":
        return wrapped(1 << (int(kind[1:]) - 1), kind) if of == "f64" or kind[1:] == "64" else 0
    if isinstance(x, str):
        return high if x == "inf" else low
    return clamped(nearest(x, mode), kind)
