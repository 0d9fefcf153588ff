"""
Correct first, and correct while it was timed.

Before anything is timed a contestant answers the very shape of the case, and its answer is held to
the specification: whole where numbers are only moved, else on sampled rows; gradients on all keys
and tables for the last rows of queries. After the rounds the outputs of the timed calls are held to
it too, on rows and heads that nobody knew before. Everything is held to the derived bounds, by the
one comparison.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.loader import Implementation
from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.contestants import Contestant, given
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.rows import has_independent_rows, sampled_rows
from attnverify.checks.long_sequences import judge_row
from attnverify.checks.metamorphic import take_along
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import Comparison
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call
from attnverify.judge.judging import checked_output, compare_outputs
from attnverify.precision import Precision


@dataclass(frozen=True)
class Judgement:
    """
    correct, wrong, unsupported, missing or "out of memory"; why; the worst share of the derived
    bound that was used.
    """

    verdict: str
    reason: str = ""
    budget: float = 0.0


LAST = 8
"""Rows of queries whose gradients are judged before the timing, at the end of the sequence."""

PAIRS = 2**22
"""
Most pairs of a drawn share of a timed call whose gradients are all judged; beyond, only rows of the
query's gradient are, and the record says so.
"""


def uncached_inputs(case: Case, seed: int) -> Inputs:
    """Draw the inputs of a case, which nobody keeps."""
    return expand.__wrapped__(case.recipe(seed), case.dtype)


def judged(case: Case, contestant: Contestant, implementation: Implementation) -> Judgement:
    """Judge the answer to the case's own shape, before it is timed."""
    inputs = uncached_inputs(case, 1)
    if implementation.operation.is_gradient:
        inputs |= {"d_output": last_rows_alone(inputs["d_output"])}
    try:
        outputs = call(implementation, given(contestant, implementation, inputs, case.dtype))
        return Judgement("correct", budget=check_outputs(case, implementation, inputs, outputs))
    except Unsupported as reason:
        return Judgement("unsupported", str(reason))
    except Disagreement as error:
        if error.__cause__ and is_out_of_memory(error.__cause__):
            return Judgement("out of memory", str(error.__cause__))
        return Judgement("wrong", str(error), error.budget)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether Python, PyTorch or CuPy had no memory left: its answer is not known then."""
    return any(kind.__name__ in NO_MEMORY for kind in type(error).__mro__)


NO_MEMORY = ("MemoryError", "OutOfMemoryError")


def last_rows_alone(d_output: ndarray) -> ndarray:
    kept = np.zeros_like(d_output)
    kept[..., -LAST:, :] = d_output[..., -LAST:, :]
    return kept


def check_outputs(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any
) -> float:
    """Hold the outputs to the specification; the budget that they use."""
    if implementation.operation.is_gradient:
        return last_gradients(case, implementation, inputs, outputs)
    if has_independent_rows(CATALOGUE[case.operation]):
        return judge_rows(
            case, implementation, inputs, outputs, sampled_rows(inputs["query"].shape[-2])
        )
    return judge_every_element(case, implementation, inputs, outputs)


def judge_rows(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any, which: list[int]
) -> float:
    """Rows of the output, or of the query's gradient."""
    like = inputs["query"]
    if implementation.operation.is_gradient:
        outputs, shape = outputs[0], like.shape
    else:
        shape = (*like.shape[:-1], inputs["value"].shape[-1])
    result = checked_output(
        outputs, np.broadcast_to(0.0, shape), case.dtype, implementation, "output"
    )
    return find_worst_budget(
        (judge_row(implementation, inputs, result, i, case.dtype), f"row {i}") for i in which
    )


def judge_every_element(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any
) -> float:
    """Judge every element, where the operation has no rows of its own."""
    operation = implementation.operation
    expected = operation.reference(**inputs)
    bound = (
        None
        if operation.exact
        else bounds.bound(operation.name, inputs, implementation.precision(case.dtype))
    )
    return find_worst_budget(
        (comparison, path)
        for path, comparison in compare_outputs(
            outputs, expected, bound, case.dtype, implementation
        )
    )


def last_gradients(
    case: Case, implementation: Implementation, inputs: Inputs, outputs: Any
) -> float:
    """
    Compute the gradients of everything by the last rows of queries: of an end-aligned operation
    they are a small one with all the keys.
    """
    operation, N = implementation.operation, inputs["query"].shape[-2]
    first = max(N - LAST, 0)
    few = inputs | {name: inputs[name][..., first:, :] for name in ("query", "d_output")}
    for name in ("mask", "visible"):
        if inputs.get(name) is not None:
            few[name] = inputs[name][..., first:, :]
    with np.errstate(all="ignore"):
        expected = operation.reference(**few)
        bound = bounds.bound(operation.name, few, implementation.precision(case.dtype))
    outputs = (outputs[0][..., first:, :], *outputs[1:])
    return find_worst_budget(
        (comparison, path)
        for path, comparison in compare_outputs(
            outputs, expected, bound, case.dtype, implementation
        )
    )


def find_worst_budget(comparisons: Any) -> float:
    """
    Find the largest budget of all comparisons; the first that does not pass is a Disagreement.
    """
    budget = 0.0
    for comparison, path in comparisons:
        raise_disagreement(comparison, path)
        budget = max(budget, comparison.budget)
    return budget


def raise_disagreement(comparison: Comparison, path: str) -> None:
    if not comparison.passed:
        raise Disagreement(
            f"{path}: {comparison}", budget=comparison.budget, comparison=comparison, path=path
        )


@dataclass(frozen=True, eq=False)
class Share:
    """
    The part of a timed call of which all gradients are judged: one head, and one batch element
    where no other array is shared among them, drawn after the timing.

    index       the places of the share along its axes
    inputs      of the call that is this share alone
    expected    its gradients
    not_judged  why nothing is judged, or ""
    """

    operation: Operation
    index: dict[str, int]
    inputs: Inputs
    expected: Any = None
    not_judged: str = ""
    bounds: dict[Precision, Any] = field(default_factory=dict)

    def bound(self, precision: Precision) -> Any:
        """Find the bound of its gradients, computed once for all who claim the same arithmetic."""
        if precision not in self.bounds:
            with np.errstate(all="ignore"):
                found = bounds.bound(self.operation.name, self.inputs, precision)
            self.bounds[precision] = found
        return self.bounds[precision]

    def of(self, gradients: Any) -> tuple[Any, ...]:
        """Take the share's part of the gradients of the whole call."""
        axes = [pattern for name, pattern in self.operation.axes.items() if name != "d_output"]
        return tuple(
            gradient[self._slices(pattern.split())]
            for gradient, pattern in zip(gradients, axes, strict=True)
        )

    def _slices(self, letters: list[str]) -> tuple[slice, ...]:
        places = [self.index.get(letter) for letter in letters]
        return tuple(slice(None) if at is None else slice(at, at + 1) for at in places)


def draw_share(case: Case, inputs: Inputs, rng: np.random.Generator) -> Share | None:
    """Draw a share of a timed call now; None where no gradients are asked for."""
    operation = CATALOGUE[case.timed]
    if not operation.is_gradient:
        return None
    axes = [pattern.split() for pattern in operation.axes.values()]
    apart = [letter for letter in "BH" if all(letter in letters for letters in axes)]
    index = {
        letter: int(rng.integers(case.sizes[letter]))
        for letter in apart
        if not (letter == "H" and operation.traits.slopes)
    }
    part = inputs
    for letter, at in index.items():
        part = take_along(operation, part, letter, np.array([at]))
    if (mask := inputs.get("mask", inputs.get("visible"))) is not None and mask.ndim > 2:
        return Share(operation, index, part, not_judged="a mask of its own for each head")
    pairs = int(np.prod(part["query"].shape[:-1])) * part["key"].shape[-2]
    if pairs > PAIRS:
        return Share(operation, index, part, not_judged=f"{pairs} pairs, more than {PAIRS}")
    with np.errstate(all="ignore"):
        return Share(operation, index, part, operation.reference(**part))


def check_timed(
    case: Case,
    implementation: Implementation,
    inputs: Inputs,
    outputs: Any,
    rng: np.random.Generator,
    share: Share | None,
) -> float:
    """
    Judge the outputs of a timed call on rows drawn now, and all gradients of a share of it; the
    budget that they use. Raises Disagreement.
    """
    if not has_independent_rows(CATALOGUE[case.operation]):
        return judge_every_element(case, implementation, inputs, outputs)
    N = inputs["query"].shape[-2]
    which = sorted({0, N - 1, *rng.integers(0, N, size=6).tolist()})
    budget = judge_rows(case, implementation, inputs, outputs, which)
    if share is None or share.not_judged:
        return budget
    compared = compare_outputs(
        share.of(outputs),
        share.expected,
        share.bound(implementation.precision(case.dtype)),
        case.dtype,
        implementation,
    )
    return max(budget, find_worst_budget((comparison, path) for path, comparison in compared))
