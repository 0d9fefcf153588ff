"""
The four rules that every bound is built from: rounded, accumulation, dot, operand.

Model: fl(a op b) = (a op b)(1 + d) + e with |d| <= u and |e| <= eta. `E` is an absolute error bound
of `x`, elementwise; None stands for an exact x. An element that a format cannot hold gets the bound
inf: it lies outside the declared domain.
"""

from collections.abc import Sequence
from functools import cache, reduce
from itertools import combinations
from math import ceil

import numpy as np
from numpy import ndarray

from attnverify.precision import FLOAT64, Format, Precision


def gamma(k: float, u: float) -> float:
    """Bound k roundings of relative size u, in a row: k u / (1 - k u)."""
    return k * u / (1 - k * u) if k * u < 1 else float("inf")


def rounding_error(
    x: ndarray, E: ndarray | None, fmt: Format, k: int = 1, *, fits: bool = False
) -> ndarray:
    """
    k more roundings to `fmt`: E + g(k, u) (|x| + E) + k eta; `fits` leaves the overflow check to
    the caller.
    """
    size = np.abs(x) if E is None else np.abs(x) + E
    grown = gamma(k, fmt.u) * size + k * fmt.eta
    E = grown if E is None else E + grown
    return E if fits else with_overflow(E, size, fmt)


def storage_error(x: ndarray, E: ndarray, kept: Format, fmt: Format) -> ndarray:
    """
    Bound the error after x, so far kept in the format `kept`, is stored in `fmt`: the second
    rounding to one format is none.
    """
    return E if kept.p == fmt.p and kept.emin == fmt.emin else rounding_error(x, E, fmt)


def with_overflow(E: ndarray, size: ndarray, fmt: Format) -> ndarray:
    """Give E, and inf where a number of that size does not fit into the format."""
    if fmt.p == FLOAT64.p or not size.size or size.max() <= fmt.max / (1 + 2 * fmt.u):
        return E
    return np.where(size > fmt.max / (1 + 2 * fmt.u), np.inf, E)


def accumulation_error(n: int, precision: Precision) -> float:
    """
    Bound the relative error of a sum of n products in any order.

    gamma_n holds for every order, fused multiply-add included; n u (Jeannerod and Rump) holds
    without restriction on n where products and sums are rounded one by one, and takes over where n
    u reaches 0.01.
    """
    lanes, acc = precision.lanes, precision.acc
    steps = n if lanes == 1 else min(n, ceil(n / lanes) + lanes)
    unit = max(precision.acc_unit or 0.0, acc.u)
    whole = (
        gamma(steps, unit)
        if steps * unit < 0.01 or unit > acc.u
        else max(steps * unit, gamma(1, 0.01))
    )
    return whole + (gamma(16, precision.partial.u) if precision.partial else 0.0)


def underflow(n: int, precision: Precision) -> float:
    """
    Bound what a sum of n products loses below the smallest normal numbers: eta a product, and eta
    an addition where subnormal results are flushed (else they are exact); eta_partial for each of
    the roundings of split-K partials.
    """
    acc, partial = precision.acc, precision.partial
    return n * (1 + acc.ftz) * acc.eta + (16 * partial.eta if partial else 0.0)


def operand_error(
    x: ndarray, E: ndarray | None, precision: Precision, *, stored: bool = True
) -> ndarray | None:
    """
    Bound the error of x on its way into a matrix product: one rounding to the declared operand
    format, and flushed subnormals.

    A number that the storage format holds exactly (`stored`, E None) is not rounded by an operand
    format at least as wide, and an exact zero by none: what stands in a hidden slot does not come
    back multiplied by eta.
    """
    fmt, storage = precision.operand, precision.storage
    if fmt is not None and not (stored and E is None and storage.p <= fmt.p):
        zero = x == 0 if E is None else (x == 0) & (E == 0)
        E = np.where(zero, 0.0, rounding_error(x, E, fmt))
    if storage.ftz:
        size = np.abs(x)
        flushed = np.where(
            size < 2 * storage.tiny, np.minimum(size + (0.0 if E is None else E), storage.tiny), 0.0
        )
        E = flushed if E is None else E + flushed
    return E


def dot_error(
    a: ndarray,
    Ea: ndarray | None,
    b: ndarray,
    Eb: ndarray | None,
    precision: Precision,
    n: int | None = None,
    scale: float = 1.0,
) -> ndarray:
    """
    Bound the error of the matrix product a @ b, summed in any order:

        acc(n) (|a|+Ea)(|b|+Eb) + Ea (|b|+Eb) + |a| Eb + `underflow`

    where acc(n) comes from the arithmetic and the two products after it from the operands. n is the
    number of terms. `scale`: a factor of a that may follow the sum instead, which must fit without.
    """
    n = a.shape[-1] if n is None else n
    size_a, size_b = np.abs(a), np.abs(b)
    top_a = size_a if Ea is None else size_a + Ea
    top_b = size_b if Eb is None else size_b + Eb
    grown = accumulation_error(n, precision) * top_a
    E = (grown if Ea is None else grown + Ea) @ top_b + underflow(n, precision)
    if Eb is not None:
        E += size_a @ Eb
    fmt = sums_format(precision)
    most = fmt.max / (1 + 2 * fmt.u) * scale
    if n * largest(top_a) * largest(top_b) <= most:  # no sum is larger
        return E
    return with_overflow(E, top_a @ top_b / scale, fmt)


def sums_format(precision: Precision) -> Format:
    """Choose what a sum must fit: `acc`, or `partial` where parts of it are kept in that."""
    return precision.partial or precision.acc


def start_error(size: ndarray, terms: int, precision: Precision) -> ndarray:
    """
    Bound what a sum of products loses where it begins with an addend of that size: acc(terms) size.

    Many a BLAS adds the product onto C, ((c + a_1 b_1) + a_2 b_2) ..., so that every step rounds at
    the size of c, where fl(c + fl(sum)) rounds there once. `terms` counts the addends with the
    products, in `dot_error` of that sum too: each product then passes one more addition for each.
    """
    return accumulation_error(terms, precision) * size


def partial_sums(terms: Sequence[ndarray]) -> tuple[ndarray, ndarray]:
    """
    Bound what adding some terms two by two may keep on the way: the largest sum of the sizes of all
    partial sums but the last, over every tree of additions, and the largest size of one of them.
    """
    whole = frozenset(range(len(terms)))
    sums = {frozenset([i]): term for i, term in enumerate(terms)}
    kept = {leaf: np.zeros_like(terms[0]) for leaf in sums}
    for subset, splits in subsets_and_splits(len(terms)):
        sums[subset] = sums[splits[0][0]] + sums[splits[0][1]]
        inner = reduce(np.maximum, [kept[one] + kept[other] for one, other in splits])
        kept[subset] = inner + (np.abs(sums[subset]) if subset != whole else 0.0)
    most = reduce(np.maximum, [np.abs(x) for subset, x in sums.items() if subset != whole])
    return kept[whole], most


Subset = frozenset[int]


@cache
def subsets_and_splits(n: int) -> tuple[tuple[Subset, tuple[tuple[Subset, Subset], ...]], ...]:
    """List the sums of two terms and more, the short ones first, and the two parts of each."""
    found = []
    for count in range(2, n + 1):
        for subset in map(frozenset, combinations(range(n), count)):
            first, *others = sorted(subset)
            parts = [
                frozenset([first, *more])
                for size in range(count - 1)
                for more in combinations(others, size)
            ]
            found.append((subset, tuple((part, subset - part) for part in parts)))
    return tuple(found)


def largest(size: ndarray) -> float:
    return float(size.max()) if size.size else 0.0


def sum_error(
    x: ndarray, E: ndarray | None, axes: tuple[int, ...], precision: Precision, n: int | None = None
) -> ndarray:
    """
    Bound the error of a sum over some axes: acc(n) sum(|x| + E) + sum(E) + `underflow`. n is the
    number of terms.
    """
    n = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64)) if n is None else n
    top = np.abs(x).sum(axes) if E is None else (np.abs(x) + E).sum(axes)
    grown = accumulation_error(n, precision) * top + underflow(n, precision)
    return with_overflow(grown if E is None else grown + E.sum(axes), top, sums_format(precision))
