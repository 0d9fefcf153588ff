"""
Observations: what an implementation answered to a recipe, beside what the specification says, kept
for a diagnosis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.dtypes import largest, numpy_dtype
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.case import Case, case_shown
from attnverify.judge.comparison import Comparison, compare, largest_difference
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import (
    call,
    convert_and_call,
    dtype_keyword,
    to_backend_arrays,
)
from attnverify.judge.judging import checked_output
from attnverify.precision import FORMATS, Precision
from attnverify.reference.staged_attention import StagedAttention, spec_stages


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

    @cached_property
    def distances(self) -> dict[Any, float]:
        """How far candidates are from it, as far as they were asked."""
        return {}

    @cached_property
    def stages(self) -> StagedAttention:
        """The stages of an attention as the specification has them, which hundreds change."""
        return spec_stages(self.case.operation, self.inputs, self.dtype)

    @property
    def size(self) -> int:
        """How many numbers go in."""
        return sum(leaf.size for leaf in leaves(self.inputs) if isinstance(leaf, ndarray))

    def distance(self, answer: Any) -> float:
        """
        Compute the worst distance between the outputs and another answer as a share of the
        yardstick; inf where the two cannot be compared.
        """
        others = self.asked_for(answer)
        if [x.shape for x in others] != [x.shape for x in self.actual]:
            return np.inf
        found = [self.compared(number, other) for number, other in enumerate(others)]
        return max((c.budget if c.passed else max(c.budget, JUST_OUT) for c in found), default=0.0)

    def is_far(self, answer: Any) -> bool:
        """
        Tell at once that another answer is beyond several yardsticks, where that is plain whatever
        it is widened by; False says nothing.
        """
        others = self.asked_for(answer)
        if [x.shape for x in others] != [x.shape for x in self.actual]:
            return True
        return any(self.is_plainly_far(number, other) for number, other in enumerate(others))

    def is_plainly_far(self, number: int, other: ndarray) -> bool:
        """The same of one output, by its largest error and by the largest of all its bounds."""
        bound = self.bounds[number]
        if bound is None or bound.shape != other.shape or other.dtype != float or not other.size:
            return False
        widened, usual = self.widened_bounds[number]
        size, error = float(np.abs(other).max()), largest_difference(self.actual[number], other)
        u, eta = FORMATS[self.dtype].u, FORMATS[self.dtype].eta
        most = max(float(widened.max()), 16 * u * size if usual is None else usual)
        return bool(PLAINLY * max(most, 20 * u * size + 4 * eta) < error < largest(self.dtype))

    def asked_for(self, answer: Any) -> list[ndarray]:
        """The arrays of another answer, without a last one that was not asked for here."""
        found = arrays(answer)
        unasked = len(found) > len(self.actual) == len(self.expected)
        return found[: len(self.actual)] if unasked else found

    @cached_property
    def law(self) -> float:
        """The distance of the specification, by which each candidate's own is told to be small."""
        return self.distance(self.expected)

    @cached_property
    def law_of_most(self) -> float:
        """The same without the few elements that may have been rounded otherwise."""
        return self.distance_of_most(self.expected)

    @cached_property
    def widened_bounds(self) -> dict[int, tuple[ndarray, float | None]]:
        """The bounds as the comparison with any candidate widens them, by the output's number."""
        bounds = {number: bound for number, bound in enumerate(self.bounds) if bound is not None}
        return {number: widen_to_rows(bound) for number, bound in bounds.items()}

    @cached_property
    def expected_sizes(self) -> list[ndarray]:
        """The largest finite size of each row of what is expected, by the output's number."""
        with np.errstate(all="ignore"):
            return [sizes_of(x)[1] for x in self.expected]

    @property
    def is_telling(self) -> bool:
        """Whether some of what was seen is a number, or nothing was to be."""
        parts = [x for x in self.actual if x.size]
        return not parts or any(bool(np.isfinite(x).any()) for x in parts)

    def distance_of_most(self, answer: Any) -> float:
        """
        The same without the few elements that may have been rounded to the other side of a tie: at
        most two of a hundred.
        """
        others = self.asked_for(answer)
        if [x.shape for x in others] != [x.shape for x in self.actual]:
            return np.inf
        ratios = [self.compared(number, other).arrays[2] for number, other in enumerate(others)]
        least = [np.sort(ratio, axis=None)[-1 - ratio.size // 50] for ratio in ratios if ratio.size]
        return float(max(least, default=0.0))

    def compared(self, number: int, other: ndarray) -> Comparison:
        """
        Return an output beside a candidate's, which is stored as well: what it rounds to zero or
        infinity is none of its errors. Exactly, where the output has not the shape that its bound
        is for.
        """
        actual, bound = self.actual[number], self.bounds[number]
        if np.iscomplexobj(other):  # a power of a negative number: nobody's answer
            other = np.full(other.shape, np.nan)
        with np.errstate(all="ignore"):
            if other.dtype != bool:
                other = other.astype(numpy_dtype(self.dtype)).astype(np.float64)
        limit = None
        if bound is not None and bound.shape == other.shape:
            own, (widened, usual) = sizes_of(other), self.widened_bounds[number]
            limit = widen_to_size(widened, usual, own, self.dtype)
            shapes = [x.shape for x in self.expected]
            if other.ndim and number < len(shapes) and shapes[number] == other.shape:
                limit = limit * growth(own[1], self.expected_sizes[number])
        return compare(actual, other, limit, largest_representable(self.dtype))


JUST_OUT = 1.0 + 1e-9
PLAINLY = 4e4
"""Four times what a bound grows by at most where a candidate's numbers are larger."""


def sizes_of(x: ndarray) -> tuple[ndarray, ndarray]:
    """Return the size of each finite number, 0 elsewhere, and the largest of each row."""
    size = np.abs(x) if x.dtype != bool else x.astype(np.float64)
    if not np.isfinite(size.sum()):
        size = np.where(np.isfinite(x), size, 0.0)
    return size, size.max(axis=-1, keepdims=True, initial=0.0) if size.ndim else size


def growth(rows: ndarray, expected: ndarray) -> ndarray:
    """
    How much larger the rows of a candidate are than the expected ones, where they are: its rounding
    errors are larger too.
    """
    with np.errstate(all="ignore"):
        ratio = rows / expected
    return np.minimum(np.where(ratio > 1.0, np.where(ratio < np.inf, ratio, 1.0), 1.0), 1e4)


def largest_representable(dtype: str) -> float:
    return largest(dtype) if dtype != "bool" else np.inf


def tolerance(bound: ndarray, other: ndarray, dtype: str) -> ndarray:
    """
    Compute the tolerance for a comparison with a candidate function: the bound, widened to the
    largest of its row, because the candidate's rounding errors may fall on other elements of the
    row. Where the specification is exact: the usual bound of the call, or a few roundings.
    """
    return widen_to_size(*widen_to_rows(bound), sizes_of(other), dtype)


def widen_to_rows(bound: ndarray) -> tuple[ndarray, float | None]:
    """Return each bound widened to the largest of its row, and the usual one where there is one."""
    finite = np.where(np.isfinite(bound), bound, 0.0)
    row = finite.max(axis=-1, keepdims=True, initial=0.0) if finite.ndim else finite
    positive = finite[finite > 0]
    return np.maximum(bound, row), float(np.median(positive)) if positive.size else None


def widen_to_size(
    widened: ndarray, usual: float | None, sizes: tuple[ndarray, ndarray], dtype: str
) -> ndarray:
    """Return the bounds, no smaller than a few roundings of an answer or than the usual bound."""
    size, rows = sizes
    with np.errstate(all="ignore"):
        u, eta = (FORMATS[dtype].u, FORMATS[dtype].eta) if dtype != "bool" else (0.0, 0.0)
        if usual is None:
            usual = 16 * u * size.max(initial=0.0)
        few = 4 * (u * size + eta) + 16 * u * rows
        wide: ndarray = np.maximum(widened, np.maximum(np.minimum(usual, 1e300), few))
    return wide


def arrays(tree: Any) -> list[ndarray]:
    return [np.asarray(leaf) for leaf in leaves(tree) if leaf is not None]


def observe(implementation: Implementation, cases: Sequence[Case]) -> list[Observation]:
    """
    Collect the answers to the cases, wrong ones first; what raises or is not supported says
    nothing.
    """
    seen: list[Observation] = []
    for case in dict.fromkeys(cases):
        try:
            seen.append(observe_one(implementation, case, of_any_number=True))
        except (Disagreement, Unsupported):
            continue
    return sorted(seen, key=lambda observation: not observation.wrong)


def observe_one(
    implementation: Implementation, case: Case, of_any_number: bool = False
) -> Observation:
    """
    Obtain one answer; raises Disagreement where it has another form than the expected one, and what
    :func:`attnverify.judge.invoke.call` raises. Outputs ``of_any_number`` may be those of another
    function.
    """
    case = case_shown(implementation, case)
    own = [leaf for leaf in leaves(convert_and_call(implementation, case)) if leaf is not None]
    expected = returned(implementation, arrays(case.expected))
    if len(own) != len(expected) and not of_any_number:
        raise Disagreement(f"output: wanted {len(expected)} arrays, got {len(own)}")
    if [tuple(getattr(x, "shape", ())) for x in own] != [e.shape for e in expected]:
        return observation_of_wrong_shape(implementation, case, own)
    dtypes = dtypes_of_outputs(case, len(own))
    actual = tuple(
        checked_output(output, e, dtype, implementation, "output")
        for output, e, dtype in zip(own, expected, dtypes, strict=True)
    )
    for limits in (case.strict_bounds, case.bounds):  # the first are cheaper, and hold what passes
        bounds = bounds_seen(implementation, case, limits, len(expected))
        each = [
            compare(a, e, b, largest_representable(dtype))
            for a, e, b, dtype in zip(actual, expected, bounds, dtypes, strict=True)
        ]
        if all(c.passed for c in each):
            break
    ratio = max((c.budget if c.passed else max(c.budget, 1 + 1e-9) for c in each), default=0.0)
    return Observation(case, actual, tuple(expected), bounds, ratio)


def bounds_seen(
    implementation: Implementation, case: Case, limits: Callable[[Precision], Any], count: int
) -> tuple[ndarray | None, ...]:
    """The bounds of what it returns, so many results; None of each that is exact."""
    bound = limits(implementation.precision(case.dtype))
    return (None,) * count if bound is None else tuple(returned(implementation, arrays(bound)))


def returned(implementation: Implementation, results: list[ndarray]) -> list[ndarray]:
    """Those of the specification's results that it returns: a second one may be left out."""
    alone = implementation.is_alone and not implementation.operation.is_gradient
    return results[:1] if alone else results


def observe_answer(
    implementation: Implementation, seen: Observation, changed: Inputs
) -> tuple[ndarray, ...]:
    """
    Obtain the answer to the inputs of an observation with some of them changed; raises as
    :func:`observe_one` does.
    """
    given = to_backend_arrays(implementation, seen.case, changed)
    own = call(implementation, given | dtype_keyword(implementation, seen.dtype))
    outputs = [leaf for leaf in leaves(own) if leaf is not None]
    if len(outputs) != len(seen.expected):
        raise Disagreement(f"output: wanted {len(seen.expected)} arrays, got {len(outputs)}")
    return tuple(
        checked_output(output, expected, dtype, implementation, "output")
        for output, expected, dtype in zip(
            outputs, seen.expected, dtypes_of_outputs(seen.case, len(outputs)), strict=True
        )
    )


def dtypes_of_outputs(case: Case, count: int) -> list[str]:
    """The dtype of each of several outputs; a tree's are all that of the case."""
    return [case.operation.dtype_of_output(place, case.dtype) for place in range(count)]


def passed_observation(implementation: Implementation, case: Case) -> Observation:
    """What is known of a case that passed: the answer is within its bounds of the expected one."""
    case = case_shown(implementation, case)
    expected = tuple(returned(implementation, arrays(case.expected)))
    bounds = bounds_seen(implementation, case, case.strict_bounds, len(expected))
    return Observation(case, expected, expected, bounds, 0.0)


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
    expected = tuple(returned(implementation, arrays(case.expected)))
    return Observation(case, actual, expected, bounds, np.inf)
