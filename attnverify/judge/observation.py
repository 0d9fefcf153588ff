"""
Observations: what an implementation answered to a recipe, beside what the specification says, kept
for a diagnosis.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.loader import Implementation
from attnverify.catalogue.dtypes import largest, numpy_dtype
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.case import Case
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import convert_and_call
from attnverify.judge.judging import checked_output
from attnverify.precision import FORMATS


@dataclass(frozen=True)
class Observation:
    """
    One answer, array by array.

    actual, expected  the outputs and what is expected; bounds: None where bits must agree
    ratio             the worst error as a share of the bound; it is wrong above 1
    """

    case: Case
    actual: tuple[ndarray, ...]
    expected: tuple[ndarray, ...]
    bounds: tuple[ndarray | None, ...]
    ratio: float

    @property
    def recipe(self) -> Recipe:
        return self.case.recipe

    @property
    def dtype(self) -> str:
        return self.case.dtype

    @property
    def inputs(self) -> Inputs:
        return self.case.inputs

    @property
    def wrong(self) -> bool:
        return self.ratio > 1

    @property
    def size(self) -> int:
        """How many numbers go in."""
        return sum(leaf.size for leaf in leaves(self.inputs) if isinstance(leaf, ndarray))

    def distance(self, answer: Any) -> float:
        """
        The worst distance between the outputs and another answer as a share of the yardstick; inf
        where the two cannot be compared.
        """
        others = arrays(answer)
        if [x.shape for x in others] != [x.shape for x in self.actual]:
            return np.inf
        found = [
            self.error_ratio(*pair) for pair in zip(self.actual, others, self.bounds, strict=True)
        ]
        return max(found, default=0.0)

    def error_ratio(self, actual: ndarray, other: ndarray, bound: ndarray | None) -> float:
        """The same of one output; exactly, where it has not the shape that its bound is for."""
        with np.errstate(
            all="ignore"
        ):  # the other is stored as well: what it rounds to zero or infinity is none of its errors
            other = (
                other
                if other.dtype == bool
                else other.astype(numpy_dtype(self.dtype)).astype(np.float64)
            )
        comparison = compare(
            actual,
            other,
            tolerance(bound, other, self.dtype)
            if bound is not None and bound.shape == other.shape
            else None,
            largest_representable(self.dtype),
        )
        return comparison.budget if comparison.passed else max(comparison.budget, 1.0 + 1e-9)


def largest_representable(dtype: str) -> float:
    return largest(dtype) if dtype != "bool" else np.inf


def tolerance(bound: ndarray, other: ndarray, dtype: str) -> ndarray:
    """
    The tolerance for a comparison with a candidate function: the bound, widened to the largest of
    its row, because the candidate's rounding errors may fall on other elements of the row. Where
    the specification is exact: the usual bound of the call, or a few roundings.
    """
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(bound), bound, 0.0)
        row = finite.max(axis=-1, keepdims=True, initial=0.0) if finite.ndim else finite
        u, eta = (FORMATS[dtype].u, FORMATS[dtype].eta) if dtype != "bool" else (0.0, 0.0)
        size = np.nan_to_num(np.abs(other), nan=0.0, posinf=0.0)
        usual = (
            np.median(finite[finite > 0]) if (finite > 0).any() else 16 * u * size.max(initial=0.0)
        )
        few = 4 * (u * size + eta)
        wide: ndarray = np.maximum(
            np.maximum(bound, row), np.maximum(np.minimum(usual, 1e300), few)
        )
    return wide


def arrays(tree: Any) -> list[ndarray]:
    return [np.asarray(leaf) for leaf in leaves(tree) if leaf is not None]


def observe(
    implementation: Implementation, cases: Sequence[Case], until: float
) -> list[Observation]:
    """
    The answers to the cases, wrong ones first; what raises, is not supported or has another form
    says nothing.
    """
    seen: list[Observation] = []
    for case in dict.fromkeys(cases):
        if time.monotonic() < until or not seen:
            try:
                seen.append(observe_one(implementation, case))
            except (Disagreement, Unsupported):
                continue
    return sorted(seen, key=lambda observation: not observation.wrong)


def observe_one(implementation: Implementation, case: Case) -> Observation:
    """
    One answer; raises Disagreement where it has another form than the expected one, and what
    :func:`attnverify.judge.invoke.call` raises.
    """
    own = [leaf for leaf in leaves(convert_and_call(implementation, case)) if leaf is not None]
    expected = arrays(case.expected)
    if len(own) != len(expected):
        raise Disagreement(f"output: wanted {len(expected)} arrays, got {len(own)}")
    if any(tuple(getattr(x, "shape", ())) != e.shape for x, e in zip(own, expected, strict=True)):
        return observation_of_wrong_shape(implementation, case, own)
    actual = tuple(
        checked_output(output, e, case.dtype, implementation, "output")
        for output, e in zip(own, expected, strict=True)
    )
    bound = case.bounds(implementation.precision(case.dtype))
    bounds = (
        tuple(leaf for leaf in leaves(bound) if leaf is not None)
        if bound is not None
        else (None,) * len(expected)
    )
    each = [
        compare(a, e, b, largest_representable(case.dtype))
        for a, e, b in zip(actual, expected, bounds, strict=True)
    ]
    ratio = max((c.budget if c.passed else max(c.budget, 1 + 1e-9) for c in each), default=0.0)
    return Observation(case, actual, tuple(expected), bounds, ratio)


def observation_of_wrong_shape(
    implementation: Implementation, case: Case, outputs: Sequence[Any]
) -> Observation:
    """
    Outputs of other shapes than the expected ones: wrong in any case, and still perhaps another
    function's, to a few roundings.
    """
    actual = tuple(
        checked_output(
            output, np.empty(tuple(np.shape(output))), case.dtype, implementation, "output"
        )
        for output in outputs
    )
    bounds = tuple(None if implementation.operation.exact else np.zeros(a.shape) for a in actual)
    return Observation(case, actual, tuple(arrays(case.expected)), bounds, np.inf)
