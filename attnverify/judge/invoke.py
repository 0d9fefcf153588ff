"""
Calling an implementation: hand the inputs over, call, wait, and restore what the call changed.
"""

import re
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import Library
from attnverify.backends.declarations import (
    FLOAT_MASK,
    NO_FLOAT_MASK,
    NO_GRADIENT,
    STRICT,
    TAKES_AXES,
    features_of,
)
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.memory_layouts import arrange, share_key_and_value
from attnverify.inputs.recipe import Inputs, layout_kinds
from attnverify.judge import state_guard
from attnverify.judge.case import Case
from attnverify.judge.errors import DeviceLost, Disagreement, NotCompiled, Unsupported
from attnverify.judge.module_contents import Values
from attnverify.judge.state_guard import Change
from attnverify.ptx.findings import Finding
from attnverify.timing import account_for

Announce = Callable[[Implementation, str, Case | None, dict[str, Any] | None], None]
announce: ContextVar[Announce] = ContextVar(
    "announce", default=lambda implementation, dtype, case, check: None
)
"""
Who is told of a case or a check before it is run: the worker of an isolated backend
(attnverify/isolation/worker.py), should it never return.
"""


def convert_and_call(implementation: Implementation, case: Case) -> Any:
    """
    Convert the inputs, poison the free memory, call, wait for the device. A third of the calls are
    made while no graph is recorded, where the library has such a thing.
    """
    library = implementation.backend.library
    assert library is not None
    given = to_backend_arrays(implementation, case)
    keywords = dtype_keyword(implementation, case.dtype)
    poison_memory(implementation, case)
    recording = case.operation.is_gradient or int(case.recipe.hash, 16) % 3
    with nullcontext() if recording or not library.without_graph else library.without_graph():
        return call(implementation, given | keywords)


IGNORE_ALL_WARNINGS = ("ignore", re.compile(".*", re.IGNORECASE), Warning, None, 0)
"""A filter that no implementation would set itself."""


def call(
    implementation: Implementation,
    arguments: Inputs,
    changes: list[Change] | None = None,
    before: Values | None = None,
) -> Any:
    """
    Make the bare call. What it raises is told apart: "not supported" is no fault, everything else
    is.

    Warnings are silent and NumPy's error state is the default one, whatever the caller's. What the
    judge depends on is put back if the call changes it; everything is, and is appended to
    ``changes``, where that is asked for. ``before``: the surroundings, looked at if it is empty;
    afterwards they are what it says, for a next call.
    """
    library, declared = implementation.backend.library, implementation.backend.declared
    assert library is not None
    if excluded := declared.excluded(arguments):
        raise Unsupported(f"FEATURES: {excluded}")
    try:
        with (
            warnings.catch_warnings(),
            np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"),
        ):
            warnings.filters.insert(0, IGNORE_ALL_WARNINGS)  # type: ignore[attr-defined]
            before = {} if before is None else before
            if not before:
                before |= state_guard.snapshot(vital=changes is None)
            try:
                with account_for("backend"):
                    outputs = implementation.function(**arguments)
                    library.synchronize()
            finally:
                found = state_guard.diff_and_restore(before)
    except NotImplementedError as error:
        words = " ".join(str(error).split())[:200] or "no reason given"
        promised = declared.promised(arguments)
        if words == NO_GRADIENT and declared.features.get("gradient"):
            promised = ["gradient"]
        if promised:
            told = f"FEATURES promises {', '.join(promised)}: {words}"
            raise Disagreement(told, "promised and not supported") from None
        raise Unsupported(words) from None
    except BaseException as error:
        if (
            not isinstance(error, (Exception, SystemExit, GeneratorExit))
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            # somebody at the terminal, or a test runner; where SIGINT is ignored
            # (attnverify/isolation/worker.py) it is the implementation
            raise
        if not device_responds(library):
            raise DeviceLost(f"left its device unusable: {describe_error(error)}") from error
        if isinstance(error, Finding):
            told = " ".join(str(error).split())
            seen = Disagreement(f"the PTX machine saw: {told}", f"{error.kind} on the PTX machine")
            sources = [place.source for place in (error.place, error.other) if place]
            seen.at = tuple(dict.fromkeys(f"{x.file}:{x.line}" for x in sources if x))
            raise seen from error
        told = f"raised {describe_error(error)}"
        if speaks_of_types(error) and refuses_float_masks(implementation, arguments):
            raise Unsupported(f"{NO_FLOAT_MASK}{told}") from None
        if counts_axes(error) and (taken := axes_taken(implementation, arguments)):
            raise Unsupported(f"{TAKES_AXES}{taken} axes alone: {told}") from None
        if type(error).__module__ in COMPILERS:
            raise NotCompiled(told, last_words(error)) from error
        raise Disagreement(told, f"raised {type(error).__name__}") from error
    if changes is not None:
        changes += found
    return outputs


def speaks_of_types(error: BaseException) -> bool:
    """Tell whether an error is one by which a function refuses what it was given."""
    return isinstance(error, TypeError | AssertionError) or "bool" in str(error).lower()


def refuses_float_masks(implementation: Implementation, arguments: Inputs) -> bool:
    """
    Tell whether a user's function that raises an error for a call with a float mask does so
    whichever axes the mask has, and answers the call with a boolean one. It is asked once.
    """
    declared, known = implementation.backend.declared, implementation.backend.refusing
    name, own = implementation.operation.forward.mask or "", implementation.asked_as
    mask: Any = arguments.get(name)
    is_float = FLOAT_MASK in {*features_of(arguments)} and "float" in str(mask.dtype)
    if declared is STRICT or not is_float or declared.features.get(FLOAT_MASK):
        return False
    if own not in known:
        known[own] = False  # what is called meanwhile does not ask
        alone = mask.reshape(-1, *mask.shape[-2:])[0]
        others = [alone, alone[None, None]]
        truth = mask != mask if name == "attn_mask" else mask == mask
        if not answers(implementation, arguments | {name: truth}):
            del known[own]  # this call is refused whatever its mask, and says nothing
            return False
        known[own] = not any(answers(implementation, arguments | {name: one}) for one in others)
    return known[own]


def counts_axes(error: BaseException) -> bool:
    """Tell whether an error is of a function that unpacks a shape or asserts how long it is."""
    return isinstance(error, AssertionError) or "values to unpack" in str(error)


def axes_taken(implementation: Implementation, arguments: Inputs) -> str:
    """
    Name how many axes the arrays must have that a user's function answers, of an operation that
    asks for no number of them, where it raises an error for these; "" where it answers none. It is
    asked once for each number.
    """
    known, own = implementation.backend.taken, implementation.asked_as
    axes = implementation.operation.axes
    names = [name for name, x in axes.items() if LEADING.match(x) and name in arguments]
    if implementation.backend.declared is STRICT or not names:
        return ""
    given = arguments[names[0]].ndim
    if (own, given) not in known:
        known[own, given] = ""  # what is called meanwhile does not ask
        masks = dict.fromkeys({"mask", "keep"} & {*arguments})
        plain = arguments | masks
        others = {
            count: {name: with_axes(plain[name], count) for name in names} for count in (2, 3, 4, 5)
        }
        found = [str(n) for n, new in others.items() if answers(implementation, plain | new)]
        is_own = str(given) not in found and found != ["2"]  # of rows alone LAYOUT has a word
        known[own, given] = " or ".join(found) if is_own else ""
    return known[own, given]


LEADING = re.compile(r"\.\.\. \w+ \w+$")
"""The axes of matrices behind any number of others."""


def with_axes(x: Any, count: int) -> Any:
    """The same with so many axes: of the leading ones, the first holds all or is left."""
    rows = x.reshape(-1, *x.shape[-2:])
    return rows[0] if count < 3 else rows.reshape(-1, *(1,) * (count - 3), *x.shape[-2:])


def answers(implementation: Implementation, arguments: Inputs) -> bool:
    try:
        call(implementation, arguments)
    except (Disagreement, Unsupported):
        return False
    return True


COMPILERS = ("triton.compiler.errors", "triton.runtime.errors")
"""Where the errors are defined by which Triton says that a kernel cannot be compiled."""


def last_words(error: BaseException) -> str:
    """Return what a compiler says at last: the cause, behind the place and the source."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def device_responds(library: Library) -> bool:
    """
    Tell whether the device still does the least that can be asked of it: an illegal memory access
    is told by every later call.
    """
    try:
        library.to_numpy(library.from_numpy(np.zeros(1), "float32"))
        library.synchronize()
    except Exception:
        return False
    return True


def raising_line(error: BaseException) -> str:
    """The line that raised it, which a bare ``assert`` says nothing of."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line or "") if frames else ""


FROM_ELSEWHERE = (
    '; TARGET = "sm_90a" in the file has Triton kernels that it imports run without one'
)
"""What Triton says without a GPU, in a file that does not import it itself."""


def describe_error(error: BaseException) -> str:
    """
    Its type and words, and those of its cause: Triton's compiler says what is wrong in the latter.
    """
    told = f"{type(error).__name__}: {' '.join((str(error) or raising_line(error)).split())[:300]}"
    told += FROM_ELSEWHERE if "0 active drivers" in told else ""
    return told if error.__cause__ is None else f"{told}, from {describe_error(error.__cause__)}"


def dtype_keyword(implementation: Implementation, dtype: str) -> Inputs:
    """
    Build ``{"dtype": ...}`` in the library's own type, for results without a float input, where the
    function takes one.
    """
    if not implementation.operation.takes_dtype or not getattr(
        implementation.function, "takes_dtype", False
    ):
        return {}
    assert implementation.backend.library is not None
    return {"dtype": implementation.backend.library.from_numpy(np.zeros(1), dtype).dtype}


def to_backend_arrays(
    implementation: Implementation, case: Case, changed: Inputs | None = None
) -> Inputs:
    """
    Convert the inputs to arrays of the backend, laid out in memory as the recipe says; ``changed``:
    what a probe asks in place of some of them.
    """
    library, kinds = implementation.backend.library, layout_kinds(case.recipe, len(case.inputs))
    if library is not None and not library.has_layouts:
        kinds = ["contiguous"] * len(kinds)
    inputs = case.inputs | (changed or {})
    given = {
        name: to_backend_array(
            implementation, value, implementation.operation.dtype_of(name, case.dtype), kind
        )
        for (name, value), kind in zip(inputs.items(), kinds, strict=True)
    }
    return given if changed else share_key_and_value(given, case.recipe.layout["kind"])


def arrays_of_call(implementation: Implementation, inputs: Inputs, dtype: str) -> Inputs:
    """Convert the inputs of a call, each to its own dtype."""
    own = implementation.operation.dtype_of
    return {
        name: to_backend_array(implementation, value, own(name, dtype))
        for name, value in inputs.items()
    }


def to_backend_array(
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


def poison_memory(implementation: Implementation, case: Case) -> None:
    """Leave NaN in the memory that the outputs will probably be given."""
    library = implementation.backend.library
    assert library is not None
    freed = [library.from_numpy(np.full(x, np.nan), case.dtype) for x in case.output_shapes]
    del freed
