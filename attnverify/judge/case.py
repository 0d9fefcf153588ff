"""
Judging one case: run an implementation on a recipe and hold everything that it did to the law.
"""

import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import Library, dtype_name, overlap
from attnverify.backends.loader import Implementation
from attnverify.catalogue.dtypes import largest
from attnverify.catalogue.operation import DTYPES, WITHOUT_FLOATS
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.expand import Inputs, Recipe
from attnverify.inputs.memory_layouts import LAYOUTS, arrange
from attnverify.judge import state_guard
from attnverify.judge.comparison import Comparison, compare
from attnverify.judge.process_state import Values
from attnverify.judge.state_guard import Change
from attnverify.precision import Precision
from attnverify.reference.oracle import Lawful, bounded, lawful, strong
from attnverify.timing import spent_on


class Disagreement(AssertionError):
    """
    An implementation did something else than the law says.

    ``kind`` says what in a word or two, so that failures of different kinds are told apart;
    ``budget`` is the worst share of the bound. Where numbers were compared, ``comparison`` has
    them, and ``path`` says of which output they are.
    """

    def __init__(
        self,
        message: str,
        kind: str = "form",
        budget: float = 0.0,
        comparison: Comparison | None = None,
        path: str = "output",
    ) -> None:
        super().__init__(message)
        self.kind, self.budget, self.comparison, self.path = kind, budget, comparison, path


class Unsupported(Exception):
    """The implementation says that it does not support this case."""


class Poisoned(Exception):
    """
    After this call the device answers no more, whatever it is asked: nothing else can be judged in
    this process.
    """


Announce = Callable[[Implementation, str, Recipe | None, dict[str, Any] | None], None]
announce: ContextVar[Announce] = ContextVar(
    "announce", default=lambda implementation, dtype, recipe, check: None
)
"""
Who is told of a recipe or a check before it is run: the worker of an isolated backend
(attnverify/isolation/worker.py), should it never return.
"""


@dataclass(frozen=True)
class Verdict:
    """
    What one case showed.

    budget  the worst share of the bound; strong: no impostor would have passed; judged: at least
            nine elements of ten have a finite bound
    """

    budget: float
    judged: bool
    case: tuple[Recipe, str, Precision]

    @property
    def strong(self) -> bool:
        return self.judged and strong(*self.case)


def judge(implementation: Implementation, recipe: Recipe, dtype: str) -> Verdict:
    """Hold the outputs to the law; raise Disagreement or Unsupported."""
    announce.get()(implementation, dtype, recipe, None)
    case = lawful(recipe, dtype)
    outputs = perform(implementation, recipe, dtype, case)
    precision = implementation.precision(dtype if dtype != "bool" else "float64")
    comparisons = list(
        compared(outputs, case.expected, bounded(recipe, dtype, precision), dtype, implementation)
    )
    for path, comparison in comparisons:
        if not comparison.passed:
            message = f"{path}: {comparison}" + shapes_of(case.inputs)
            raise Disagreement(message, kind_of(comparison), comparison.budget, comparison, path)
    total = sum(comparison.total for _, comparison in comparisons)
    outside = sum(comparison.outside for _, comparison in comparisons)
    budget = max((comparison.budget for _, comparison in comparisons), default=0.0)
    return Verdict(budget, outside * 10 <= total, (recipe, dtype, precision))


def perform(implementation: Implementation, recipe: Recipe, dtype: str, case: Lawful) -> Any:
    """Convert the inputs, poison the free memory, call, wait for the device."""
    given = hand_over(implementation, recipe, dtype, case.inputs)
    keywords = dtype_keyword(implementation, dtype)
    poison_memory(implementation, case.expected, dtype)
    return call(implementation, given | keywords)


SILENT = ("ignore", re.compile(".*", re.IGNORECASE), Warning, None, 0)
"""A filter that no implementation would set itself."""


def call(
    implementation: Implementation,
    arguments: Inputs,
    changes: list[Change] | None = None,
    before: Values | None = None,
) -> Any:
    """
    The bare call. What it raises is told apart: "not supported" is no fault, everything else is.

    Warnings are silent and NumPy's error state is the default one, whatever the caller's. What the
    judge depends on is put back if the call changes it; everything is, and is appended to
    ``changes``, where that is asked for. ``before``: the surroundings, looked at if it is empty;
    afterwards they are what it says, for a next call.
    """
    library = implementation.backend.library
    assert library is not None
    try:
        with (
            warnings.catch_warnings(),
            np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"),
        ):
            warnings.filters.insert(0, SILENT)  # type: ignore[attr-defined]
            before = {} if before is None else before
            if not before:
                before |= state_guard.look(vital=changes is None)
            try:
                with spent_on("backend"):
                    outputs = implementation.function(**arguments)
                    library.synchronize()
            finally:
                found = state_guard.restore(before)
    except NotImplementedError as error:
        raise Unsupported(" ".join(str(error).split())[:200] or "no reason given") from None
    except BaseException as error:
        if (
            not isinstance(error, (Exception, SystemExit, GeneratorExit))
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            # somebody at the terminal, or a test runner; where SIGINT is ignored
            # (attnverify/isolation/worker.py) it is the implementation
            raise
        if not answers(library):
            raise Poisoned(f"left its device unusable: {told(error)}") from error
        raise Disagreement(f"raised {told(error)}", f"raised {type(error).__name__}") from error
    if changes is not None:
        changes += found
    return outputs


def answers(library: Library) -> bool:
    """
    Whether the device still does the least that can be asked of it: an illegal memory access is
    told by every later call.
    """
    try:
        library.to_numpy(library.from_numpy(np.zeros(1), "float32"))
        library.synchronize()
    except Exception:
        return False
    return True


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def dtype_keyword(implementation: Implementation, dtype: str) -> Inputs:
    """
    ``{"dtype": ...}`` in the library's own type, for results without a float input, where the
    function takes one.
    """
    if implementation.operation.name not in WITHOUT_FLOATS or not getattr(
        implementation.function, "takes_dtype", False
    ):
        return {}
    assert implementation.backend.library is not None
    return {"dtype": implementation.backend.library.from_numpy(np.zeros(1), dtype).dtype}


def hand_over(implementation: Implementation, recipe: Recipe, dtype: str, inputs: Inputs) -> Inputs:
    """The inputs as arrays of the backend, laid out in memory as the recipe says."""
    kinds = layout_kinds(recipe, len(inputs))
    return {
        name: converted(implementation, value, dtype, kind)
        for (name, value), kind in zip(inputs.items(), kinds, strict=True)
    }


def layout_kinds(recipe: Recipe, count: int) -> list[str]:
    if recipe.layout["kind"] != "mixed":
        return [recipe.layout["kind"]] * count
    return mixed_kinds(recipe.layout["seed"], count)


@lru_cache(maxsize=1024)
def mixed_kinds(seed: int, count: int) -> list[str]:
    kinds: list[str] = (
        np.random.default_rng(seed).choice(["contiguous", *LAYOUTS], size=count).tolist()
    )
    return kinds


def converted(
    implementation: Implementation, value: Any, dtype: str, kind: str = "contiguous"
) -> Any:
    library = implementation.backend.library
    assert library is not None
    return map_leaves(
        lambda leaf: (
            arrange(library.from_numpy, leaf.copy(), dtype, kind)
            if isinstance(leaf, ndarray)
            else leaf
        ),
        value,
    )


def poison_memory(implementation: Implementation, expected: Any, dtype: str) -> None:
    """Leave NaN in the memory that the outputs will probably be given."""
    library = implementation.backend.library
    assert library is not None
    arrays = [
        leaf for leaf in leaves(expected) if isinstance(leaf, ndarray) and leaf.dtype.kind == "f"
    ]
    freed = [library.from_numpy(np.full(x.shape, np.nan), dtype) for x in arrays]
    del freed


def compared(
    outputs: Any,
    expected: Any,
    bound: Any,
    dtype: str,
    implementation: Implementation,
    path: str = "output",
) -> Iterator[tuple[str, Comparison]]:
    """
    Walk outputs and law together; type, shape and dtype are exact before any number is compared.
    """
    if isinstance(expected, (list, tuple)):
        if not isinstance(outputs, (list, tuple)) or len(outputs) != len(expected):
            raise Disagreement(f"{path}: wanted {len(expected)} arrays, got {came(outputs)}")
        bounds = bound if bound is not None else [None] * len(expected)
        for index, (output, law, limit) in enumerate(zip(outputs, expected, bounds, strict=True)):
            yield from compared(output, law, limit, dtype, implementation, f"{path}[{index}]")
    elif expected is None or outputs is None:
        if expected is not outputs:
            raise Disagreement(f"{path}: wanted {came(expected)}, got {came(outputs)}")
    else:
        actual = array_of(outputs, expected, dtype, implementation, path)
        yield path, compare(actual, expected, bound, largest(dtype) if dtype != "bool" else np.inf)


def array_of(
    output: Any, expected: ndarray, dtype: str, implementation: Implementation, path: str
) -> ndarray:
    """The output as a NumPy array, once it is the right kind of thing."""
    library, operation = implementation.backend.library, implementation.operation
    assert library is not None
    sample = sample_of(library)
    if not isinstance(output, type(sample)):
        raise Disagreement(
            f"{path}: wanted {type(sample).__name__} of shape {expected.shape}, got {came(output)}"
        )
    if tuple(output.shape) != expected.shape:
        raise Disagreement(f"{path}: wanted shape {expected.shape}, got {tuple(output.shape)}")
    wanted = "bool" if expected.dtype == bool else dtype
    if dtype_name(output) != wanted:
        if (
            operation.name in WITHOUT_FLOATS
            and dtype_name(output) in DTYPES
            and not getattr(implementation.function, "takes_dtype", False)
        ):
            raise Unsupported(f"takes no dtype: returns {dtype_name(output)}")
        raise Disagreement(f"{path}: wanted dtype {wanted}, got {dtype_name(output)}")
    if str(getattr(output, "device", "")) != str(getattr(sample, "device", "")):
        raise Disagreement(f"{path}: wanted device {sample.device}, got {output.device}")
    return library.to_numpy(output)


@lru_cache(maxsize=16)
def sample_of(library: Library) -> Any:
    """An array as the library makes one: every output is of its type, and on its device."""
    return library.from_numpy(np.zeros(1), "float32")


def came(thing: Any) -> str:
    """What came, in a few words."""
    if isinstance(thing, (list, tuple)):
        return f"{type(thing).__name__} of {len(thing)}"
    return (
        f"{type(thing).__name__} {tuple(thing.shape)}"
        if hasattr(thing, "shape")
        else type(thing).__name__
        if thing is not None
        else "None"
    )


def kind_of(comparison: Comparison) -> str:
    """What went wrong at the worst element."""
    if np.isnan(comparison.actual) != np.isnan(comparison.expected):
        return "NaN"
    if comparison.expected == 0 and comparison.bound == 0:
        return "not exactly 0"
    return "infinity" if np.isinf(comparison.actual) else "wrong number"


def shapes_of(inputs: Inputs) -> str:
    """
    Where in the output the law was broken is told by the comparison; what went in is told here.
    """
    shapes = ", ".join(
        f"{name} {leaf.shape}" for name, leaf in inputs.items() if isinstance(leaf, ndarray)
    )
    return f"\n  inputs: {shapes}" if shapes else ""


def judge_side_effects(
    implementation: Implementation, recipe: Recipe, dtype: str, around: Values | None = None
) -> None:
    """
    Inputs unchanged, outputs no alias of them, the surroundings as they were, and a second call
    that says the same.

    ``around``: the surroundings as an earlier case left them, which are held to without another
    look.
    """
    announce.get()(implementation, dtype, recipe, None)
    library = implementation.backend.library
    assert library is not None
    case = lawful(recipe, dtype)
    given = hand_over(implementation, recipe, dtype, case.inputs)
    before = [snapshot(library.to_numpy, leaf) for leaf in leaves(given)]
    keywords = dtype_keyword(implementation, dtype)
    poison_memory(implementation, case.expected, dtype)
    changes: tuple[list[Change], list[Change]] = ([], [])
    around = {} if around is None else around
    first = call(implementation, given | keywords, changes[0], around)
    inputs = list(zip(names(given), leaves(given), strict=True))
    for (name, leaf), then in zip(inputs, before, strict=True):
        if snapshot(library.to_numpy, leaf) != then:
            raise Disagreement(f"{name}: the input was changed in place")
    arrays = [(name, leaf) for name, leaf in inputs if hasattr(leaf, "shape")]
    for path, output in zip(names({"output": first}), leaves(first), strict=True):
        for name, leaf in arrays if hasattr(output, "shape") else ():
            if overlap(output, leaf):
                raise Disagreement(f"{path} shares memory with the input {name}")
    state_guard.stir(around)
    second = call(implementation, given | keywords, changes[1], around)
    if left := state_guard.lasting(*changes):
        raise Disagreement("; ".join(left), "surroundings")
    repeated(implementation, first, second)


def repeated(implementation: Implementation, first: Any, second: Any) -> None:
    """Where determinism is claimed, a second call with the same arguments gives the same bits."""
    library = implementation.backend.library
    assert library is not None
    if implementation.backend.deterministic:
        for one, two in zip(leaves(first), leaves(second), strict=True):
            if hasattr(one, "shape") and snapshot(library.to_numpy, one) != snapshot(
                library.to_numpy, two
            ):
                raise Disagreement(
                    "a second call with the same arguments gives other bits, though DETERMINISTIC "
                    "is declared"
                )


def snapshot(to_numpy: Any, leaf: Any) -> Any:
    """Everything about an array that a call must leave as it was: bytes, shape, strides."""
    if not hasattr(leaf, "shape"):
        return leaf
    strides = (
        leaf.stride() if callable(getattr(leaf, "stride", None)) else getattr(leaf, "strides", None)
    )
    return to_numpy(leaf).tobytes(), tuple(leaf.shape), strides


def names(tree: Any, path: str = "") -> Iterator[str]:
    """The path of every leaf: ``parameters.output.weight``, ``mems[1]``."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            yield from names(branch, f"{path}.{name}" if path else name)
    elif isinstance(tree, (list, tuple)):
        for index, branch in enumerate(tree):
            yield from names(branch, f"{path}[{index}]")
    else:
        yield path
