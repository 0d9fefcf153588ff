"""
A second look at an answer that passed: a few calls of which the process that answers them knows
nothing, held to the specification by somebody else.

A file may find the judge's own answer in its process, exchange what judges it, or know the draws of
a seed by heart. None of that helps where only the answer is asked for: on draws that depend on the
file itself, compared elsewhere (or, where all is judged in one process, afterwards).
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from sysconfig import get_path
from types import FrameType
from typing import Any

from numpy import ndarray

from attnverify import PACKAGE
from attnverify.backends.array_libraries import dtype_name, numpy_library
from attnverify.backends.declarations import STRICT
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.source import parse_source
from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.failures.finding import Finding
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save_or_say
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of, case_shown
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call, dtype_keyword, to_backend_arrays
from attnverify.judge.judging import check_type, hold_outputs
from attnverify.judge.state_guard import diff_and_restore, snapshot
from attnverify.options import ANSWER
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import CellResult, Options, decide_verdict

Ask = Callable[[Implementation, Recipe, str], tuple[Any, set[str]]]
"""Obtains an answer, and what the call made use of, in words: :func:`bare_answer`, or a worker."""

LOOKS = 3
"""How many answers are looked at."""
DRAWN = 16 * LOOKS
"""Among how many draws they are looked for: some say little, many may be refused."""

ELSEWHERE = "wrong where the judge's own answer is out of reach"


def judge_here(cell: Cell, options: Options, known: tuple[KnownFailure, ...] = ()) -> CellResult:
    """Judge a cell in this process, and look again at what passed."""
    judged = partial(judge_cell, cell, options, known)
    return look_again(judged(), cell, options, bare_answer, judged)


def look_again(
    result: CellResult, cell: Cell, options: Options, ask: Ask, again: Callable[[], CellResult]
) -> CellResult:
    """
    Hold a few more answers to the specification where the values or the gradients of a user's file
    passed, and none of them is known to fail. A wrong one is recorded and the cell judged
    ``again``, with that case: what passes even then is right only where it is judged, or by an
    arithmetic that is shown only now; by that it is looked at once more.
    """
    own = cell.gradient if cell.aspect == "gradients" else cell.implementation
    is_asked = result.verdict == "passed" and not result.regions and not options.inputs
    if own is None or is_ours(own.backend) or not (is_asked and cell.aspect in ANSWER):
        return result
    if result.shown:
        own.admit(cell.dtype, result.shown)
    answered = 0
    for case in unforeseen_cases(own, cell.dtype, options):
        if answered == LOOKS:
            break
        try:
            outputs, inside = ask(own, case.recipe, cell.dtype)
            answered += 1
            result = replace(result, inside=sorted({*result.inside, *inside}))
            tell(own, inside)
            hold_outputs(outputs, case, held_in_numpy(own))
        except Unsupported:
            continue
        except Disagreement as error:
            record = FailureRecord.of(own, case, cell.aspect)
            save_or_say(record, options.failures, None)
            judged = again()
            if judged.verdict == "passed" and judged.shown != result.shown:
                return look_again(judged, cell, options, ask, again)
            return seen_elsewhere(error, case, judged)
    return result


def is_ours(backend: Backend) -> bool:
    """Tell whether a backend is a column of ours, in this process or in another."""
    return backend.declared is STRICT or parse_source(backend.source).is_column


def seen_elsewhere(error: Disagreement, case: Case, judged: CellResult) -> CellResult:
    """Fail a cell that was ``judged`` to be right, with an answer that is wrong elsewhere."""
    if judged.verdict != "passed":
        return judged
    words = f"{case}\n{error}"
    return decide_verdict(replace(judged, findings=[Finding(ELSEWHERE, message=words)]))


def tell(own: Implementation, inside: set[str]) -> None:
    """Note what a call made use of, once for a backend."""
    notes = own.backend.notes
    notes += [line for words in sorted(inside) if (line := f"{own.name} {words}") not in notes]


def unforeseen_cases(own: Implementation, dtype: str, options: Options) -> Iterator[Case]:
    """
    Draw cases that the file cannot have been written for: they depend on every byte of it, and on
    the seed. Those alone that no trivial answer passes.
    """
    seed = int(digest(own.backend.source)[:12], 16) ^ options.seed
    for recipe in draw_recipes(own.operation.name, "any", DRAWN, seed):
        case = case_shown(own, case_of(recipe, dtype))
        if not recipe.is_large and case.is_discriminating(own.precision(dtype)):
            yield case


@cache
def digest(source: str) -> str:
    """Compute the digest of a backend's file, of a module's name where it is none."""
    path = Path(parse_source(source).place)
    return sha256(path.read_bytes() if path.is_file() else source.encode()).hexdigest()


def made_use_of(own: Implementation, dtype: str, options: Options) -> set[str]:
    """Say in words what the calls of a few draws make use of that is no work of its own."""
    found: list[set[str]] = []
    for case in unforeseen_cases(own, dtype, options):
        with suppress(Disagreement, Unsupported):
            found.append(bare_answer(own, case.recipe, dtype)[1])
        if len(found) == LOOKS:
            break
    return set[str]().union(*found)


def held_in_numpy(own: Implementation) -> Implementation:
    """The implementation as one whose answers are NumPy arrays."""
    return replace(own, backend=replace(own.backend, library=numpy_library()))


def bare_answer(implementation: Implementation, recipe: Recipe, dtype: str) -> tuple[Any, set[str]]:
    """
    Answer a recipe, as NumPy arrays; and what the call made use of that is no work of its own, in
    words. The same arrays were given once before, with other numbers in them: an answer that is
    kept by what an array is, or where it lies, is that of the first call. Raises Disagreement and
    Unsupported as :func:`attnverify.judge.invoke.call` does.
    """
    given, inside, before = arguments(implementation, recipe, dtype), set[str](), snapshot()
    arrays = [array for x in leaves(given) if (array := to_write(x)) is not None]
    held = [(array, deepcopy(array)) for array in arrays]
    try:
        for array, numbers in held:
            array[...] = -numbers
        with suppress(Disagreement, Unsupported):
            call(implementation, given)
        for array, numbers in held:
            array[...] = numbers
        with watched(inside):
            outputs = call(implementation, given)
    finally:
        diff_and_restore(before)
    launched = LAUNCHED in inside
    inside -= {LAUNCHED}
    inside |= {NOT_LAUNCHED} if implementation.backend.has_kernels and not launched else set()
    return map_leaves(lambda x: as_numpy(implementation, x), outputs), inside


def arguments(implementation: Implementation, recipe: Recipe, dtype: str) -> Inputs:
    """Build the arguments; of the case they are made from nothing is left."""
    case = Case(recipe, dtype)
    return to_backend_arrays(implementation, case) | dtype_keyword(implementation, dtype)


def to_write(x: Any) -> Any:
    """Return an array of numbers through which it can be written to; None of another."""
    if isinstance(x, ndarray):
        return x if x.dtype.kind in "fV" and x.flags.writeable and 0 not in x.strides else None
    is_tensor = hasattr(x, "detach") and x.is_floating_point() and 0 not in x.stride()
    return x.data if is_tensor else None  # counts no version, as a new array at the same place


def as_numpy(implementation: Implementation, output: Any) -> ndarray | None:
    """Convert an output to a NumPy array of its own dtype; None stays None."""
    if output is None:
        return None
    library, dtype = implementation.backend.library, dtype_name(output)
    assert library is not None
    check_type(output, library, "output", getattr(output, "shape", ()))
    x = library.to_numpy(output)
    return x.astype(numpy_dtype(dtype)) if x.dtype.kind == "f" else x


LAUNCHED, NOT_LAUNCHED = "launches a kernel", "answers calls without a kernel of Triton"

PASSING = (StopIteration, StopAsyncIteration, GeneratorExit, KeyError)
"""Exceptions by which Python ends loops, and caches say what they lack."""

OWN_FOLDERS = ("spec", "numpy_ref", "torch_impl", "cupy_impl", "reference")
"""Where attnverify itself answers."""

ATTENTION_OF_OTHERS = (
    "dot_product_attention",
    "dot_product_flash_attention",
    "dot_product_efficient_attention",
    "dot_product_cudnn_attention",
    "flex_attention",
    "flash_attn",
    "memory_efficient_attention",
    "multi_head_attention",
)
"""Parts of the names by which libraries have attention."""

SHOW_CALLERS = (
    "sys._getframe",
    "gc.get_objects",
    "gc.get_referrers",
    "sys.setprofile",
    "sys.settrace",
)
"""Built-in functions by which a function sees who calls it, and whether it is watched."""


@contextmanager
def watched(inside: set[str]) -> Iterator[None]:
    """
    Write down which functions of interest are called, on threads that begin meanwhile too, and
    after which exceptions a user's code goes on.
    """

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            inside.update(answers_of_others(frame))
        elif event == "c_call":
            inside.update(built_in(frame, argument))

    before, traced = sys.getprofile(), sys.gettrace()
    threading.setprofile(watch)
    sys.setprofile(watch)
    sys.settrace(partial(catch, inside))
    try:
        yield
    finally:
        sys.settrace(traced)
        sys.setprofile(before)
        threading.setprofile(before)


def catch(inside: set[str], frame: FrameType, event: str, argument: Any) -> Any:
    """Follow a frame of a user's file, and write down which exceptions are raised in it."""
    if event == "call" and (is_library(frame.f_code.co_filename) or frame.f_code.co_name[0] == "<"):
        return None
    frame.f_trace_lines = False
    if event == "exception" and not issubclass(argument[0], PASSING):
        inside.add(f"goes on after {argument[0].__name__} (line {frame.f_lineno})")
    return partial(catch, inside)


def answers_of_others(frame: FrameType) -> Iterator[str]:
    """Name the function that begins, where it is an attention of a library, or of ours."""
    code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
    if module.startswith("attnverify."):
        room = module.split(".")[1]
        if room in OWN_FOLDERS and not code.co_name.startswith("<"):
            yield f"calls attnverify.{room} inside"
    elif module.startswith("triton.runtime.") and code.co_name == "run":
        yield LAUNCHED
    elif module == "inspect" and frame.f_back and not is_library(frame.f_back.f_code.co_filename):
        yield f"looks at its caller by inspect.{code.co_name}"
    elif any(part in code.co_name for part in ATTENTION_OF_OTHERS) and is_library(code.co_filename):
        yield f"calls {module}.{code.co_name} inside"


def built_in(frame: FrameType, function: Any) -> Iterator[str]:
    """Name a built-in function, where it is an attention, or shows who calls."""
    name = getattr(function, "__name__", "")
    if any(part in name for part in ATTENTION_OF_OTHERS):
        yield f"calls the library's own {name} inside"
    place = f"{getattr(function, '__module__', '')}.{name}"
    if place in SHOW_CALLERS and not is_library(frame.f_code.co_filename):
        yield f"looks at its caller by {place}"


@cache
def is_library(file: str) -> bool:
    """Tell whether a file is Python's, ours, or one that was installed; asked at every call."""
    return "site-packages" in file or file.startswith((get_path("stdlib"), str(PACKAGE)))
