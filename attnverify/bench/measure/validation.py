"""
Correct first, and correct while it was timed.

Before anything is timed a contestant answers the very shape of the case, and shares of its answer
are held to the specification. After the rounds so are shares of the outputs of the timed calls,
which nobody knew before. Everything is held to the derived bounds, by the one comparison.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.bench.measure.contestants import Contestant, given
from attnverify.bench.measure.shares import Question, Share
from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import Comparison
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call
from attnverify.judge.judging import compare_outputs


@dataclass(frozen=True)
class Judgement:
    """
    correct, wrong, unsupported, missing or "out of memory"; why; the worst share of the derived
    bound that was used.
    """

    verdict: str
    reason: str = ""
    budget: float = 0.0


def judged(question: Question, contestant: Contestant, implementation: Implementation) -> Judgement:
    """Judge the answer to the case's own shape, before it is timed."""
    dtype = question.case.dtype
    try:
        outputs = call(implementation, given(contestant, implementation, question.asked, dtype))
        budget = check_shares(question.shares, implementation, question.asked, outputs, dtype)
        return Judgement("correct", budget=budget)
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


def check_shares(
    shares: Iterable[Share],
    implementation: Implementation,
    inputs: Inputs,
    outputs: Any,
    dtype: str,
) -> float:
    """Hold shares of the outputs to the specification; the budget that they use."""
    budget = 0.0
    for share in shares:
        if share.at:
            check_shapes(share.operation, inputs, outputs)
        found, bound = share.of(outputs), share.bound(implementation.precision(dtype))
        for path, comparison in compare_outputs(
            found, share.expected, bound, dtype, implementation
        ):
            raise_disagreement(comparison, f"{path}{describe(share)}")
            budget = max(budget, comparison.budget)
    return budget


def check_shapes(operation: Operation, inputs: Inputs, outputs: Any) -> None:
    """Hold the whole outputs to their shapes, of which a share shows nothing. Disagreement."""
    names = [name for name in operation.axes if name != "d_output"]
    if operation.is_gradient:
        wanted = [tuple(inputs[name].shape) for name in names]
    else:
        outputs = [outputs]
        wanted = [(*inputs["query"].shape[:-1], inputs["value"].shape[-1])]
    if not isinstance(outputs, (list, tuple)) or len(outputs) != len(wanted):
        raise Disagreement(f"output: wanted {len(wanted)} arrays, got {type(outputs).__name__}")
    for i, (shape, output) in enumerate(zip(wanted, outputs, strict=True)):
        if tuple(getattr(output, "shape", ())) != shape:
            got = tuple(getattr(output, "shape", ()))
            raise Disagreement(f"output[{i}]: wanted shape {shape}, got {got}", "wrong shape")


def describe(share: Share) -> str:
    """Where a share lies, in words: `` of batch entry 3, head 1, rows 8 to 15``."""
    words = {"B": "batch entry", "H": "head", "N": "rows"}
    places = [
        f"{words[letter]} {at.start}" if at.stop == at.start + 1 else f"rows from {at.start}"
        for letter, at in share.at.items()
        if at.stop is None or at.stop > at.start
    ]
    return f" of {', '.join(places)}" if places else ""


def raise_disagreement(comparison: Comparison, path: str) -> None:
    """Raise what does not pass, as a Disagreement."""
    if not comparison.passed:
        raise Disagreement(
            f"{path}: {comparison}", budget=comparison.budget, comparison=comparison, path=path
        )
