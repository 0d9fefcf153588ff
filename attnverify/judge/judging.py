"""
Judging one case: run an implementation on a recipe and hold everything that it did to the
specification.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import RECORDED, Library, Recorded, dtype_name
from attnverify.backends.implementation import Implementation
from attnverify.backends.torch_steps import logarithms, steps_of, stores_exponentials
from attnverify.catalogue.dtypes import largest
from attnverify.catalogue.pytrees import differentiable_inputs, leaves
from attnverify.catalogue.traits import DTYPES
from attnverify.inputs.recipe import Inputs
from attnverify.judge.case import Case, case_shown
from attnverify.judge.comparison import Comparison, compare
from attnverify.judge.errors import Disagreement, Unsupported, WrongDtype
from attnverify.judge.invoke import announce, convert_and_call
from attnverify.precision import Precision, find_fields


@dataclass(frozen=True)
class Verdict:
    """
    What one case showed.

    budget  the worst share of the bound; judged: at least nine elements of ten have a finite bound
    """

    budget: float
    judged: bool
    case: Case
    precision: Precision

    @property
    def discriminating(self) -> bool:
        """Whether no trivial answer would have passed."""
        return self.judged and self.case.is_discriminating(self.precision)


def judge(implementation: Implementation, case: Case, known: float = 0.0) -> Verdict:
    """
    Hold the outputs to the specification; raise Disagreement or Unsupported. ``known``: the share
    of the bound that others have used, below which that of this case may be told too large.
    """
    case = case_shown(implementation, case)
    announce.get()(implementation, case.dtype, case, None)
    with recorded_outputs() as recorded:
        outputs = convert_and_call(implementation, case)
    comparisons = hold_as_shown(outputs, case, implementation, recorded, known)
    if recorded and not case.rows:
        comparisons += hold_recorded(
            recorded[-1].outputs, case.forward, forward_implementation(implementation)
        )
    total, outside = (
        sum(getattr(x, name) for _, x in comparisons) for name in ("total", "outside")
    )
    budget = max((comparison.budget for _, comparison in comparisons), default=0.0)
    return Verdict(budget, outside * 10 <= total, case, implementation.precision(case.dtype))


MOST_BY_ROUNDING, MODERATE = 1e5, 16
"""
So many times the bound is more than any steps that are stored have been seen to widen it, where no
input is larger.
"""


def hold_as_shown(
    outputs: Any,
    case: Case,
    implementation: Implementation,
    recorded: list[Recorded],
    known: float,
) -> list[tuple[str, Comparison]]:
    """
    Compare the outputs of a case; where they exceed the bound, again under each arithmetic that
    PyTorch shows the implementation to have. It is judged by that from now on if the case is right
    then.
    """
    try:
        few = compare_with_least(outputs, case, implementation, known)
        return few or hold_outputs(outputs, case, implementation)
    except Disagreement as error:
        found = error
    precisions, before = {**implementation.precisions}, {**implementation.shown}
    for shown in shown_arithmetics(implementation, case, recorded, may_be_rounding(found, case)):
        implementation.admit(case.dtype, shown)
        with suppress(Disagreement):
            return hold_outputs(outputs, case, implementation)
    implementation.precisions, implementation.shown = precisions, before
    found.without = tuple(name for each in recorded for name in each.without)
    raise found


def may_be_rounding(found: Disagreement, case: Case) -> bool:
    """Tell whether what is wrong may come of steps that are stored: numbers, and not far off."""
    if found.comparison is None:
        return False
    arrays = [x for x in leaves(case.inputs) if isinstance(x, ndarray) and x.dtype.kind == "f"]
    sizes = (np.abs(x[np.isfinite(x)]).max(initial=0) for x in arrays)
    return found.budget <= MOST_BY_ROUNDING or any(size > MODERATE for size in sizes)


def shown_arithmetics(
    implementation: Implementation, case: Case, recorded: list[Recorded], may_round: bool
) -> Iterator[dict[str, str]]:
    """
    Yield what a library shows of an arithmetic that nobody declared otherwise, and was not judged
    so before: a graph with a maximum that is differentiated; exponentials of a softmax that are
    stored in the dtype of the call, as its scores and weights are; logarithms that are stored in
    what a softmax is computed in. An lse that is stored in half precision is none of them: what it
    loses multiplies a row, and grows with the scores.
    """
    P, dtype = implementation.precision(case.dtype), case.dtype
    if recorded and P.maximum == "detached" and recorded[-1].differentiates_a_maximum:
        yield {"maximum": "differentiated"}
    names = implementation.operation.name, implementation.name
    said = find_fields(implementation.backend.precision, *names, dtype).keys()
    library = implementation.backend.library
    if library is None or library.name != "torch" or implementation.backend.machine is not None:
        return
    storing = P.softmax.p > P.storage.p == P.score.p == P.prob.p
    asks_steps = storing and P.step is None and not said & {"softmax", "interior", "step"}
    asks_lse = not P.by_lse and "weights" not in said
    if not may_round or not (asks_steps or asks_lse):
        return
    try:
        steps = steps_of(lambda: convert_and_call(implementation, case))
    except Exception:  # what cannot be watched shows nothing
        return
    if asks_steps and stores_exponentials(steps, dtype):
        yield {"step": P.storage.name + "_ftz" * P.storage.ftz}
    if asks_lse and logarithms(steps) == {P.softmax.name.removesuffix("_ftz")}:
        yield {"weights": "lse"}


WHILE_RECORDED = "while a graph is recorded"


@contextmanager
def recorded_outputs() -> Iterator[list[Recorded]]:
    """Collect the outputs of which a library takes gradients meanwhile."""
    recorded = list[Recorded]()
    token = RECORDED.set(recorded)
    try:
        yield recorded
    finally:
        RECORDED.reset(token)


def forward_implementation(implementation: Implementation) -> Implementation:
    """The operation of which a library takes these gradients."""
    machine = implementation.backend.machine
    function: Any = getattr(implementation.function, "forward", None)
    return replace(
        implementation,
        operation=implementation.operation.forward,
        function=function if machine is None else machine.runs(function),
        precisions={},
        shown={},
    )


def hold_recorded(
    outputs: Any, case: Case, implementation: Implementation, circumstance: str = WHILE_RECORDED
) -> list[tuple[str, Comparison]]:
    """
    Compare the outputs of which gradients were taken. What is wrong without a graph too is told
    under values.
    """
    try:
        return hold_outputs(outputs, case, implementation, circumstance)
    except Disagreement:
        if not is_right(implementation, case):
            return []
    return hold_outputs(outputs, case, implementation, circumstance)


def is_right(implementation: Implementation, case: Case) -> bool:
    """Tell whether a call is supported and right by itself."""
    try:
        judge(implementation, case)
    except (Disagreement, Unsupported):
        return False
    return True


def hold_outputs(
    outputs: Any, case: Case, implementation: Implementation, circumstance: str = ""
) -> list[tuple[str, Comparison]]:
    """Compare the outputs of a case; raise Disagreement where one is wrong."""
    comparisons = compare_until_wrong(outputs, case, implementation, strict=True)
    if not all(comparison.passed for _, comparison in comparisons):
        comparisons = compare_until_wrong(outputs, case, implementation)
    for path, comparison in comparisons:
        if not comparison.passed:
            where, kind = f"{name_output(path, case)} {circumstance}", failure_kind(comparison)
            raise Disagreement(
                f"{where.strip()}: {comparison}" + describe_input_shapes(case.inputs),
                f"{kind} {circumstance}".strip(),
                comparison.budget,
                comparison,
                path,
            )
    return comparisons


def compare_with_least(
    outputs: Any, case: Case, implementation: Implementation, known: float
) -> list[tuple[str, Comparison]]:
    """
    Compare the outputs of a large case by less than its bounds; ``[]`` where that is not known, or
    where one uses more than the share of it.
    """
    least = case.least_bounds(implementation.precision(case.dtype)) if known else None
    if least is None:
        return []
    found = []
    for each in compare_outputs(outputs, case.expected, least, case.dtype, implementation):
        if each[1].wrong or each[1].budget > known:
            return []
        found.append(each)
    return found


def name_output(path: str, case: Case) -> str:
    """Name an output for people: a gradient by the argument that it is of, beside its place."""
    names = [*differentiable_inputs(case.inputs)] if case.operation.is_gradient else []
    found = re.fullmatch(r"output\[(\d+)\]", path)
    number = int(found[1]) if found else len(names)
    return f"the gradient by {names[number]} ({path})" if number < len(names) else path


def compare_until_wrong(
    outputs: Any, case: Case, implementation: Implementation, *, strict: bool = False
) -> list[tuple[str, Comparison]]:
    """
    Compare the outputs of a case beside what is expected, each with its path, up to the first that
    is wrong; ``strict``: by bounds that are cheaper, and narrower by next to nothing.
    """
    found = []
    for path, comparison in compare_with_case(outputs, case, implementation, strict):
        found.append((path, comparison))
        if not comparison.passed:
            break
    return found


def compare_with_case(
    outputs: Any, case: Case, implementation: Implementation, strict: bool = False
) -> Iterator[tuple[str, Comparison]]:
    """Compare all outputs of a case."""
    if case.rows:
        return compare_rows(outputs, case, implementation, strict)
    bound = bounds_of(case, implementation, strict)
    return compare_outputs(outputs, case.expected, bound, case.dtype, implementation)


def bounds_of(case: Case, implementation: Implementation, strict: bool) -> Any:
    precision = implementation.precision(case.dtype)
    return case.strict_bounds(precision) if strict else case.bounds(precision)


def compare_rows(
    outputs: Any, case: Case, implementation: Implementation, strict: bool
) -> Iterator[tuple[str, Comparison]]:
    """Compare sampled rows of the output, or of the query's gradient, of a large call."""
    if case.operation.is_gradient:
        if not isinstance(outputs, (list, tuple)) or not outputs:
            raise Disagreement(f"output: wanted gradients, got {describe_value(outputs)}")
        outputs = outputs[0]
    (shape,) = case.output_shapes
    unseen = np.broadcast_to(0.0, shape)
    output = checked_output(outputs, unseen, case.dtype, implementation, "output")
    for row in case.rows:
        i, bound = row.recipe.values["row"], bounds_of(row, implementation, strict)
        expected, limit = row.in_row(row.expected), row.in_row(bound)
        comparison = compare(output[..., i : i + 1, :], expected, limit, largest(case.dtype))
        yield f"row {i} of {shape[-2]}", comparison


def compare_outputs(
    outputs: Any,
    expected: Any,
    bound: Any,
    dtype: str,
    implementation: Implementation,
    path: str = "output",
) -> Iterator[tuple[str, Comparison]]:
    """
    Walk outputs and expected values together; type, shape and dtype are exact before any number is
    compared.
    """
    if isinstance(expected, dict):
        if not isinstance(outputs, Mapping) or set(outputs) != set(expected):
            wanted = f"a mapping with {', '.join(expected)}"
            raise Disagreement(f"{path}: wanted {wanted}, got {describe_value(outputs)}")
        for name, law in expected.items():
            limit = None if bound is None else bound[name]
            yield from compare_outputs(
                outputs[name], law, limit, dtype, implementation, f"{path}[{name!r}]"
            )
    elif isinstance(expected, (list, tuple)):
        if not isinstance(outputs, (list, tuple)) or len(outputs) != len(expected):
            told = f"{path}: wanted {len(expected)} arrays, got {describe_value(outputs)}"
            raise Disagreement(told + judged_alone(implementation.operation.second_result))
        bounds = bound if bound is not None else [None] * len(expected)
        parts = enumerate(zip(outputs, expected, bounds, strict=True))
        given_first = sorted(parts, key=lambda part: part[1][0] is None)
        for index, (output, value, limit) in given_first:
            own = implementation.operation.dtype_of_output(index, dtype)
            yield from compare_outputs(
                output, value, limit, own, implementation, f"{path}[{index}]"
            )
    elif outputs is None and path == SECOND and (second := implementation.operation.second_result):
        if not implementation.is_alone:
            raise Disagreement(
                f"{path}: wanted the {second}, {expected.shape}, got None{judged_alone(second)}"
            )
    elif expected is None or outputs is None:
        if expected is not outputs:
            raise Disagreement(
                f"{path}: wanted {describe_value(expected)}, got {describe_value(outputs)}"
            )
    else:
        actual = checked_output(outputs, expected, dtype, implementation, path)
        yield path, compare(actual, expected, bound, largest(dtype) if dtype != "bool" else np.inf)


SECOND = "output[1]"


def judged_alone(second: str) -> str:
    """Give the line by which an output is judged without the result beside it."""
    line = f'FEATURES = {{"{second}": False}}'
    return f"; to have the output judged alone: {line}" if second else ""


def checked_output(
    output: Any, expected: ndarray, dtype: str, implementation: Implementation, path: str
) -> ndarray:
    """Convert the output to a NumPy array, once it is the right kind of thing."""
    library, operation = implementation.backend.library, implementation.operation
    assert library is not None
    sample = sample_array(library)
    check_type(output, library, path, expected.shape)
    if tuple(output.shape) != expected.shape:
        told = f"{path}: wanted shape {expected.shape}, got {tuple(output.shape)}"
        raise Disagreement(told, "wrong shape")
    wanted = "bool" if expected.dtype == bool else dtype
    if dtype_name(output) != wanted:
        if (
            operation.takes_dtype
            and dtype_name(output) in DTYPES
            and not getattr(implementation.function, "takes_dtype", False)
        ):
            raise Unsupported(f"takes no dtype: returns {dtype_name(output)}")
        raise WrongDtype(path, wanted, dtype_name(output))
    if str(getattr(output, "device", "")) != str(getattr(sample, "device", "")):
        told = f"{path}: wanted device {sample.device}, got {output.device}"
        raise Disagreement(told, "wrong device")
    return library.to_numpy(output)


def check_type(output: Any, library: Library, path: str, shape: tuple[int, ...]) -> None:
    """
    Require an array of the library itself. One of a class derived from it, or with methods of its
    own, may answer whoever reads it as it likes, and do its work only then.
    """
    wanted = type(sample_array(library))
    nn = getattr(sys.modules.get("torch"), "nn", None)
    if type(output) is not wanted and type(output) is not getattr(nn, "Parameter", wanted):
        told = f"{wanted.__name__} of shape {shape}, got {describe_value(output)}"
        raise Disagreement(f"{path}: wanted {told}")
    for name in getattr(output, "__dict__", ()):
        if hasattr(wanted, name):
            raise Disagreement(f"{path}: wanted a plain array, got one with a {name} of its own")


@lru_cache(maxsize=16)
def sample_array(library: Library) -> Any:
    """Make an array as the library makes one: every output is of its type, and on its device."""
    return library.from_numpy(np.zeros(1), "float32")


def describe_value(thing: Any) -> str:
    """Describe what came, in a few words."""
    if isinstance(thing, Mapping):
        return f"a mapping with {', '.join(map(str, thing)) or 'nothing'}"
    if isinstance(thing, (list, tuple)):
        return f"{type(thing).__name__} of {len(thing)}"
    return (
        f"{type(thing).__name__} {tuple(thing.shape)}"
        if hasattr(thing, "shape")
        else type(thing).__name__
        if thing is not None
        else "None"
    )


def failure_kind(comparison: Comparison) -> str:
    """Say what went wrong at the worst element."""
    if np.isnan(comparison.actual) != np.isnan(comparison.expected):
        return "NaN"
    if comparison.expected == 0 and comparison.bound == 0:
        return "not exactly 0"
    return "infinity" if np.isinf(comparison.actual) else "wrong number"


def describe_input_shapes(inputs: Inputs) -> str:
    """
    Where in the output the specification was broken is told by the comparison; what went in is told
    here.
    """
    shapes = ", ".join(
        f"{name} {leaf.shape}" for name, leaf in inputs.items() if isinstance(leaf, ndarray)
    )
    return f"\n  inputs: {shapes}" if shapes else ""
