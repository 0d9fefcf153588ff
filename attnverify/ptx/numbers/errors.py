"""
Approximate instructions: their exact value, moved by a draw within the error that the PTX ISA
states.

A draw is made of a share that all results of a launch have in common, as hardware errs in its own
systematic way, and of one of each argument: bounds that only hold because errors cancel are met by
both. The same argument has the same result in every thread, as a circuit answers it: threads that
compute a number twice over, as compilers have them, store the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnverify.ptx.kinds import Array
from attnverify.ptx.numbers.formats import BF16, F16, F32, Format, rounded

__all__ = ["APPROXIMATE", "Draw", "Stated", "approximate", "step"]


class Draw:
    """
    The errors of one launch: numbers in [-1, 1], leaning to one side by a share drawn once.
    ``latitude`` 0 gives exact results.
    """

    def __init__(self, seed: int, latitude: float = 1.0) -> None:
        self.random = np.random.default_rng(seed)
        self.latitude = np.float32(latitude)
        self.orders: dict[int, Array] = {}
        self.lean = np.float32(
            self.random.choice([0.0, 0.0, -1.0, 1.0, self.random.uniform(-1, 1)])
        )
        self.key = np.uint32(self.random.integers(1 << 32))

    def order(self, size: int) -> Array:
        """In which order so many products are added: one for a launch."""
        if size not in self.orders:
            self.orders[size] = self.random.permutation(size) if self.latitude else np.arange(size)
        return self.orders[size]

    def shares(self, *arguments: Array) -> Array:
        """One for each argument, or pair of arguments, of float32 numbers."""
        hashed = np.full(1, self.key)
        for x in arguments:
            hashed = mixed(hashed ^ np.ascontiguousarray(x, np.float32).view(np.uint32))
        each = hashed.astype(np.float32) * np.float32(2**-31) - np.float32(1)
        return self.latitude * (self.lean + (1 - np.abs(self.lean)) * each)


def mixed(bits: Array) -> Array:
    """Bits of which each depends on all, as MurmurHash3 ends."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return bits ^ (bits >> np.uint32(16))


@dataclass(frozen=True)
class Stated:
    """
    What the ISA says of an approximate instruction: its function, its format, and the largest
    error.

    ``ulps`` counts steps from the correctly rounded result; ``error`` is a distance from the exact
    one, a function of both.
    """

    function: Callable[[Array], Array]
    to: Format
    words: str
    ulps: int = 0
    error: Callable[[Array, Array], Array] | None = None
    certain: Callable[[Array], Array] = lambda x: x == 0


def relative(power: float) -> Callable[[Array, Array], Array]:
    return lambda x, y: np.abs(y) * 2.0**power


def absolute(power: float) -> Callable[[Array, Array], Array]:
    return lambda x, y: np.full_like(y, 2.0**power)


def of_logarithm(x: Array, y: Array) -> Array:
    return np.where((x > 0.5) & (x < 2), 2.0**-22, np.abs(y) * 2.0**-22)


def of_angle(x: Array, y: Array) -> Array:
    """Beyond 100 pi nothing is guaranteed: 2 reaches every result there is."""
    angle = np.abs(x)
    return np.where(angle <= 2 * np.pi, 2.0**-20.5, np.where(angle <= 100 * np.pi, 2.0**-14.7, 2.0))


def subnormal(x: Array) -> Array:
    return np.abs(x) < F32.tiny


ANGLE = "absolute 2^-20.5 within 2 pi, 2^-14.7 within 100 pi, nothing beyond"
LOGARITHM = "absolute 2^-22 in (0.5, 2), relative 2^-22 elsewhere"

APPROXIMATE: dict[tuple[str, str], Stated] = {
    ("ex2", "f32"): Stated(np.exp2, F32, "2 ulp", ulps=2),
    ("rcp", "f32"): Stated(np.reciprocal, F32, "1 ulp", ulps=1),
    ("ex2", "f16"): Stated(np.exp2, F16, "relative 2^-9.9", error=relative(-9.9)),
    ("ex2", "bf16"): Stated(np.exp2, BF16, "relative 2^-7", error=relative(-7)),
    ("lg2", "f32"): Stated(np.log2, F32, LOGARITHM, error=of_logarithm),
    ("sqrt", "f32"): Stated(np.sqrt, F32, "relative 2^-23", error=relative(-23)),
    ("rsqrt", "f32"): Stated(
        lambda x: 1 / np.sqrt(x), F32, "relative 2^-22.9", error=relative(-22.9)
    ),
    ("sin", "f32"): Stated(np.sin, F32, ANGLE, error=of_angle),
    ("cos", "f32"): Stated(np.cos, F32, ANGLE, error=of_angle),
    ("tanh", "f32"): Stated(np.tanh, F32, "relative 2^-11", error=relative(-11), certain=subnormal),
    ("tanh", "f16"): Stated(np.tanh, F16, "absolute 2^-10.987", error=absolute(-10.987)),
    ("tanh", "bf16"): Stated(np.tanh, BF16, "absolute 2^-8", error=absolute(-8)),
}

LIMITED = ("sin", "cos", "tanh")
"""No result is beyond 1."""


def approximate(name: str, kind: str, x: Array, draw: Draw) -> Array:
    """The function of float32 numbers, off by a draw, as float32 numbers of the format ``kind``."""
    stated = APPROXIMATE[name, kind]
    exact = stated.function(x.astype(np.float64))
    certain = stated.certain(x) | np.isinf(x)
    if stated.error is None:
        return step(exact.astype(np.float32), stated.ulps, certain, draw.shares(x))
    error = np.where(certain | ~np.isfinite(exact), 0.0, stated.error(x, exact))
    moved = np.where(error > 0, exact + draw.shares(x) * error, exact)
    if name in LIMITED:
        moved = np.clip(moved, -1.0, 1.0)
    return within(exact, error, moved, stated.to).astype(np.float32)


def step(x: Array, ulps: int, certain: Array, shares: Array) -> Array:
    """float32 numbers moved by so many steps at most; none becomes infinite or changes its sign."""
    bits = x.view(np.int32)
    steps = np.rint(shares * np.float32(ulps)).astype(np.int32)
    magnitude = bits & np.int32(0x7FFFFFFF)
    moved = np.clip(magnitude + steps, 0, 0x7F7FFFFF) | (bits & np.int32(-0x80000000))
    return np.where(certain | (magnitude >= np.int32(0x7F800000)), bits, moved).view(np.float32)


def within(exact: Array, error: Array, moved: Array, to: Format) -> Array:
    """
    Find the number of the format nearest to ``moved`` that is no further off than allowed, or
    nearest to the exact one if none is.
    """
    near = rounded(moved, to)
    inner = np.where(moved < exact, rounded(moved, to, "rp"), rounded(moved, to, "rm"))
    chosen = np.where(np.abs(near - exact) <= error, near, inner)
    good = (np.abs(chosen - exact) <= error) & np.isfinite(chosen)
    return np.where(good, chosen, rounded(exact, to))
