"""
Observations: what an implementation answered to a recipe, beside what the law says, kept for a
diagnosis.
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
from attnverify.judge.case import checked_output
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import convert_and_call
from attnverify.precision import FORMATS
from attnverify.reference.oracle import bounds_of, expected_of


@dataclass(frozen=True)
class Observation:
    """
    One answer, array by array.

    actual, expected  the outputs and the law's; bounds: the law's, None where bits must agree
    ratio             the worst error as a share of the bound; it is wrong above 1
    """

    recipe: Recipe
    dtype: str
    inputs: Inputs
    actual: tuple[ndarray, ...]
    expected: tuple[ndarray, ...]
    bounds: tuple[ndarray | None, ...]
    ratio: float

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
            None if bound is None else tolerance(bound, other, self.dtype),
            largest_representable(self.dtype),
        )
        return comparison.budget if comparison.passed else max(comparison.budget, 1.0 + 1e-9)


def largest_representable(dtype: str) -> float:
    return largest(dtype) if dtype != "bool" else np.inf


def tolerance(bound: ndarray, other: ndarray, dtype: str) -> ndarray:
    """
    What another function in the same arithmetic may err by: the law's bound, or the largest of its
    row where that is more, since another function may put the row's difficulty elsewhere; where the
    law is exact, the usual bound of the call, or a few roundings.
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
    implementation: Implementation, recipes: Sequence[Recipe], dtype: str, until: float
) -> list[Observation]:
    """
    The answers to the recipes, wrong ones first; what raises, is not supported or has another form
    says nothing.
    """
    seen: list[Observation] = []
    for recipe in dict.fromkeys(recipes):
        if time.monotonic() < until or not seen:
            try:
                seen.append(observe_one(implementation, recipe, dtype))
            except (Disagreement, Unsupported):
                continue
    return sorted(seen, key=lambda observation: not observation.wrong)


def observe_one(implementation: Implementation, recipe: Recipe, dtype: str) -> Observation:
    """
    One answer; raises Disagreement where it has another form than the law's, and what
    :func:`attnverify.judge.case.call` raises.
    """
    case = expected_of(recipe, dtype)
    bound = bounds_of(
        recipe, dtype, implementation.precision(dtype if dtype != "bool" else "float64")
    )
    return build_observation(
        implementation,
        recipe,
        dtype,
        case.inputs,
        convert_and_call(implementation, recipe, dtype, case),
        case.expected,
        bound,
    )


def build_observation(
    implementation: Implementation,
    recipe: Recipe,
    dtype: str,
    inputs: Inputs,
    outputs: Any,
    expected: Any,
    bound: Any,
) -> Observation:
    """Outputs, law and bound as an observation."""
    law = arrays(expected)
    own = [leaf for leaf in leaves(outputs) if leaf is not None]
    if len(own) != len(law):
        raise Disagreement(f"output: wanted {len(law)} arrays, got {len(own)}")
    pairs = list(zip(own, law, strict=True))
    if any(tuple(getattr(output, "shape", ())) != e.shape for output, e in pairs):
        return observation_of_wrong_shape(implementation, recipe, dtype, inputs, pairs)
    actual = tuple(
        checked_output(output, e, dtype, implementation, "output") for output, e in pairs
    )
    bounds = (
        tuple([leaf for leaf in leaves(bound) if leaf is not None])
        if bound is not None
        else (None,) * len(law)
    )
    each = [
        compare(a, e, b, largest_representable(dtype))
        for a, e, b in zip(actual, law, bounds, strict=True)
    ]
    ratio = max((c.budget if c.passed else max(c.budget, 1 + 1e-9) for c in each), default=0.0)
    return Observation(recipe, dtype, inputs, actual, tuple(law), bounds, ratio)


def observation_of_wrong_shape(
    implementation: Implementation,
    recipe: Recipe,
    dtype: str,
    inputs: Inputs,
    pairs: Sequence[tuple[Any, ndarray]],
) -> Observation:
    """
    Outputs of other shapes than the law's: wrong in any case, and still perhaps another function's,
    to a few roundings.
    """
    actual = tuple(
        checked_output(output, np.empty(tuple(np.shape(output))), dtype, implementation, "output")
        for output, _ in pairs
    )
    bounds = tuple(None if implementation.operation.exact else np.zeros(a.shape) for a in actual)
    return Observation(recipe, dtype, inputs, actual, tuple(e for _, e in pairs), bounds, np.inf)
