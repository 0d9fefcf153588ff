"""
A machine: the declared formats as rounding functions, and the order of evaluation of sums, products
and functions.

Numbers live in float32, or in float64 for float64, and are rounded to what the declaration names
wherever it says that they are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import sqrt
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.precision import Format, Precision, resolve
from tests.rounding_variants.grammar import Derivation, Order

LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Machine:
    """The arithmetic that a backend declares, and the order that it chose."""

    P: Precision
    order: Order

    @classmethod
    def of(cls, derived: Derivation, dtype: str) -> "Machine":
        declared = derived.declaration(dtype)
        return cls(resolve(declared, derived.operation, derived.operation, dtype), derived.order)

    @cached_property
    def work(self) -> Any:
        return np.float64 if self.P.storage.p > 24 else np.float32

    # rounding

    def to(self, x: ndarray, fmt: Format | None) -> ndarray:
        """x rounded to a format, in the machine's own."""
        if fmt is None:
            return x
        if fmt.truncates:
            x = (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        elif fmt.p < np.finfo(self.work).nmant + 1:
            x = x.astype(numpy_dtype(fmt.name.removesuffix("_ftz"))).astype(self.work)
        return np.where(np.abs(x) < fmt.tiny, x * 0, x) if fmt.ftz else x

    def read(self, x: Any) -> ndarray:
        return np.asarray(x).astype(self.work)

    def acc(self, x: ndarray) -> ndarray:
        x = self.to(x, self.P.acc)
        if self.P.acc_unit is None or self.work is np.float64:
            return x
        return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFFFFE)).view(np.float32)

    def score(self, x: ndarray) -> ndarray:
        return self.to(x, self.P.score)

    def prob(self, x: ndarray) -> ndarray:
        return self.to(x, self.P.prob)

    def soft(self, x: ndarray) -> ndarray:
        return self.step(self.to(x, self.P.softmax))

    def step(self, x: ndarray) -> ndarray:
        """x as a softmax that is written out stores it between two steps, if it does."""
        return self.to(x, self.P.step) if self.P.unit_of_steps else x

    def join(self, x: ndarray) -> ndarray:
        return self.to(x, self.P.joined)

    def stage(self, x: ndarray) -> ndarray:
        return self.to(x, self.P.stage)

    def partial(self, x: ndarray) -> ndarray:
        return self.to(x, self.P.partial)

    def out(self, x: ndarray) -> ndarray:
        return self.to(x, self.P.storage).astype(np.float64)

    def operand(self, x: ndarray) -> ndarray:
        """A factor of a matrix product as the product sees it."""
        x = self.to(x, self.P.operand) if self.work is np.float32 else x
        return np.where(np.abs(x) < self.P.storage.tiny, x * 0, x) if self.P.storage.ftz else x

    def constant(self, x: float) -> ndarray:
        """A constant, itself the quotient of rounded numbers."""
        return self.to(np.asarray(x, self.work), self.P.scale_const or self.P.acc)

    # sums

    def multiply_add(self, a: ndarray, b: ndarray, total: ndarray) -> ndarray:
        if self.order.multiply == "rounded":
            return self.acc(total + self.acc(a * b))
        if self.work is np.float32:
            return self.acc((a.astype(np.float64) * b + total).astype(np.float32))
        return self.acc(fused_multiply_add(a, b, total))

    def accumulate(
        self,
        n: int,
        begin: Callable[[int], ndarray],
        go_on: Callable[[int, ndarray], ndarray],
        start: ndarray | None,
    ) -> ndarray:
        """A sum of n terms in the machine's order; `go_on` adds the k-th, `begin` is it alone."""
        first = start if self.order.addend == "first" else None
        several = chains(self.order.sums, n)
        parts = [
            reduce(lambda total, k: go_on(k, total), chain, first)
            if at == 0 and first is not None
            else reduce(lambda total, k: go_on(k, total), chain[1:], begin(chain[0]))
            for at, chain in enumerate(several)
        ]
        if len(parts) > 1:
            parts = [self.partial(part) for part in parts]
        total = self.add_up(parts, "left" if self.order.sums == "blocked" else "pairs")
        return total if start is None or first is not None else self.acc(total + start)

    def add_up(self, parts: Sequence[ndarray], tree: str) -> ndarray:
        """Partial sums, added in `partial` where there is one."""
        return add_tree(parts, tree, lambda a, b: self.partial(self.acc(a + b)))

    def contract(self, x: ndarray, y: ndarray, start: ndarray | None = None) -> ndarray:
        """The sum over the last axis of x y, and of what is added to it."""
        n = x.shape[-1]
        if start is not None:
            shapes = x.shape[:-1], y.shape[:-1], start.shape
            start = np.broadcast_to(start, np.broadcast_shapes(*shapes))
        return self.accumulate(
            n,
            lambda k: self.acc(x[..., k] * y[..., k]),
            lambda k, total: self.multiply_add(x[..., k], y[..., k], total),
            start,
        )

    @property
    def _by_library(self) -> bool:
        wide = self.P.acc.p >= np.finfo(self.work).nmant + 1 and self.P.acc_unit is None
        return self.order.sums == "library" and wide

    def product(self, a: ndarray, b: ndarray, start: ndarray | None = None) -> ndarray:
        """a @ b, and what is added to it."""
        return self.loaded_product(self.operand(a), self.operand(b), start)

    def loaded_product(self, a: ndarray, b: ndarray, start: ndarray | None = None) -> ndarray:
        """The same of what is an operand already."""
        if self._by_library and (start is None or self.order.addend == "last"):
            total = self.acc(a @ b)
            return total if start is None else self.acc(total + start)
        return self.contract(a[..., :, None, :], T(b)[..., None, :, :], start)

    def product_of_pairs(self, x: ndarray, y: ndarray, start: ndarray | None = None) -> ndarray:
        """The sum over the last axis of x y, whose factors are those of a matrix product."""
        return self.contract(self.operand(x), self.operand(y), start)

    def sum(self, x: ndarray, axes: int | tuple[int, ...] = -1) -> ndarray:
        """The sum over some axes, which are left out."""
        axes = (axes,) if isinstance(axes, int) else axes
        if self._by_library:
            return self.acc(x.sum(axes))
        axes = tuple(axis % x.ndim for axis in axes)
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        x = x.transpose(*rest, *axes).reshape(*(x.shape[axis] for axis in rest), -1)
        add = lambda k, total: self.acc(total + x[..., k])
        return self.accumulate(x.shape[-1], lambda k: x[..., k], add, None)

    # functions

    def function(
        self, exact: Callable[[Any], ndarray], x: ndarray, ulps: float, fmt: Format | None = None
    ) -> ndarray:
        """
        A function as good as NumPy's, or off by as many ulps as declared, to either side, but exact
        at 0 and where the result rounds to 0; rounded to a format, that of the softmax if none is
        named. Below the smallest normal number an ulp is the smallest subnormal.
        """
        fmt = fmt or self.P.softmax
        if self.order.functions == "library":
            return self.to(exact(x), fmt)
        wide = exact(x.astype(np.longdouble if self.work is np.float64 else np.float64))
        side = np.where(np.frexp(wide)[0] * 2**9 % 1 < 0.5, -1, 1) * (x != 0)
        off = max(2 * ulps - 1, 0.0) * fmt.u * side
        near = wide * (1 + off)
        if not fmt.ftz:
            small = (fmt.eta < np.abs(wide)) & (np.abs(wide) < fmt.tiny)
            near = np.where(small, wide + off * fmt.tiny, near)
        return self.to(near.astype(self.work), fmt)

    def decay(self, before: ndarray, after: ndarray) -> ndarray:
        """
        exp(before - after) of two levels of the same row, 0 where there was none before: exactly 1
        where the level stays.
        """
        seen = before > -np.inf
        return np.where(seen, self.exp(np.where(seen, before, 0).astype(self.work), after, True), 0)

    def exp(self, s: ndarray, m: ndarray, levels: bool = False) -> ndarray:
        """exp(s - m), 0 where s is minus infinity; of two levels, both are rounded alike."""
        if self.order.exponential == "e":
            return self.step(self.function(np.exp, self.soft(s - m), self.P.exp_ulps))
        lowest, log2e = -self.work(self.P.softmax.max), np.asarray(LOG2E, self.work)
        # a mask near -max overflows here: a kernel of this form must clamp, for it hides nothing;
        level = np.maximum(self.soft(m * log2e), lowest)
        if self.order.exponential == "two fused" and not levels:
            wide = np.maximum(s, lowest).astype(self.work)
            x = self.soft(self._fused(wide, log2e, -level))
            # so it must where the rounding of the level alone is a factor of 2 or more
            x = np.where(np.abs(level) * self.P.softmax.u < 1, x, np.minimum(x, 0))
        else:
            x = self.soft(np.maximum(self.soft(s * log2e), lowest) - level)
        return np.where(s > -np.inf, self.function(np.exp2, x, self.P.exp_ulps), 0)

    def _fused(self, a: ndarray, b: ndarray, c: ndarray) -> ndarray:
        if self.work is np.float32:
            return (a.astype(np.float64) * b + c).astype(np.float32)
        return fused_multiply_add(a, b, c)

    def quotient(self, x: ndarray, size: ndarray) -> ndarray:
        """x / size, or x times the reciprocal; 0 where the size is 0."""
        safe = np.where(size > 0, size, 1)
        by_reciprocal = self.order.division.startswith("reciprocal")
        y = x * self.soft(np.asarray(1 / safe, self.work)) if by_reciprocal else x / safe
        return np.where(size > 0, y, 0)

    # scores

    def scale_of(self, D: int) -> float:
        return 1 / sqrt(D)

    def scaled(self, raw: ndarray, D: int) -> ndarray:
        """A score that was not scaled yet."""
        if self.order.scale == "divided":
            return self.score(raw / self.constant(sqrt(D)))
        return self.score(raw * self.constant(1 / sqrt(D)))

    def factors(self, q: ndarray, k: ndarray, D: int) -> tuple[ndarray, ndarray]:
        """
        Both factors of a score, loaded; scaled before that and kept in `prescale`, or as they were
        loaded, in `acc`.
        """
        keep = None if self.order.scale == "library" else self.P.prescale
        if keep is None:
            q, k = self.operand(q), self.operand(k)
        if self.order.scale == "halves":
            root = self.constant(D**-0.25)
            q, k = (self.to(x * root, keep or self.P.acc) for x in (q, k))
        elif self.scales_first:
            q = self.to(q * self.constant(1 / sqrt(D)), keep or self.P.acc)
        return (q, k) if keep is None else (self.operand(q), self.operand(k))

    @property
    def scales_first(self) -> bool:
        return self.order.scale in ("query", "library", "halves")


def T(x: ndarray) -> ndarray:
    return x.swapaxes(-1, -2)


def clean(x: ndarray) -> ndarray:
    return np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def chains(order: str, n: int) -> list[list[int]]:
    """The terms of a sum in chains that are added one by one, each from its own beginning."""
    terms = list(range(n))
    if order == "backward":
        return [terms[::-1]]
    if order == "pairwise":
        return [[k] for k in terms]
    if order == "blocked":
        size = max(4, -(-n // 8))  # eight partial sums at most
        return [terms[i : i + size] for i in range(0, n, size)]
    if order == "lanes":
        return [terms[i::4] for i in range(min(4, n))]
    return [terms]


def add_tree(
    parts: Sequence[ndarray], tree: str, add: Callable[[ndarray, ndarray], ndarray]
) -> ndarray:
    """Several sums added two by two."""
    if tree == "right":
        return reduce(lambda total, part: add(part, total), reversed(parts))
    if tree == "crossed":
        parts, tree = [*parts[::2], *parts[1::2]], "pairs"
    if tree == "left" or len(parts) < 3:
        return reduce(add, parts)
    middle = (len(parts) + 1) // 2
    return add(add_tree(parts[:middle], tree, add), add_tree(parts[middle:], tree, add))


def fused_multiply_add(a: ndarray, b: ndarray, c: ndarray) -> ndarray:
    """a b + c of float64 numbers, rounded once but for a last bit in a hundred."""
    product, low = _two_product(a, b)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    fused = total + (lost + low)
    return np.where(np.isfinite(fused), fused, a * b + c)


def _two_product(a: ndarray, b: ndarray) -> tuple[ndarray, ndarray]:
    """The product and its rounding error, by Veltkamp's splitting."""
    high_a, high_b = (x * 134217729.0 - (x * 134217729.0 - x) for x in (a, b))
    low_a, low_b, product = a - high_a, b - high_b, a * b
    low = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    return product, low
