"""
Sequences: several calls in a row, as a training loop or a decoder makes them. A result may depend
on its arguments alone.

Long then short, one mask then another of the same length, one dtype then another, and the first
call once more: caches, memory windows and buffers that outlive their call show here. A step that is
wrong only in company is a side effect; one that is wrong alone is a wrong value, and is reported
there.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import reload
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.memory_layouts import shares_memory
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of, case_shown
from attnverify.judge.errors import Disagreement, NotCompiled, Unsupported
from attnverify.judge.invoke import call, dtype_keyword, to_backend_arrays
from attnverify.judge.judging import hold_outputs, is_right, judge
from attnverify.judge.side_effects import leaf_paths

OTHER_DTYPE = {
    "float64": "bfloat16",
    "float32": "float16",
    "float16": "float32",
    "bfloat16": "float32",
}
"""The dtype of the call before the last: a narrow one before a wide one, and the other way."""


def call_steps(first: Recipe, other: Recipe, dtype: str) -> list[tuple[str, Case]]:
    """Choose the steps, each in words."""
    steps = [
        ("the first call", first, dtype),
        ("another geometry", other, dtype),
        ("the first call again", first, dtype),
    ]
    if first.mask is not None:
        mask = first.mask | {"form": "bool", "pattern": "random"}
        one, two = (
            replace(first, mask=mask | {"seed": seed}) for seed in (mask["seed"], mask["seed"] + 1)
        )
        steps += [
            ("the same geometry under a boolean mask", one, dtype),
            ("the same geometry under another mask", two, dtype),
        ]
    if dtype in OTHER_DTYPE:
        steps.append(("another dtype", first, OTHER_DTYPE[dtype]))
    steps.append(("the first call once more", first, dtype))
    return [(words, case_of(recipe, own)) for words, recipe, own in steps]


def judge_sequence(
    first: Recipe, other: Recipe, implementation: Implementation, dtype: str
) -> None:
    """
    Raise Disagreement at the first step that is wrong in this company though it is right on its
    own.

    A sequence without two right steps shows nothing: it is Unsupported.
    """
    gone: list[str] = []
    right: set[Case] = set()
    for words, case in call_steps(first, other, dtype):
        try:
            judge(implementation, case)
        except Unsupported:
            continue
        except Disagreement as error:
            if isinstance(error, NotCompiled):
                continue
            if case in right or passes_when_reloaded(implementation, case):
                message = (
                    f"{words} is wrong after {', '.join(gone)}: the result depends on "
                    f"earlier calls\n  {error}\n  recipe: {case.recipe}"
                )
                raise Disagreement(message, "state") from None
            continue  # wrong on its own: told under values
        gone.append(words)
        right.add(case)
    if len(gone) < 2:
        raise Unsupported("no two calls of the sequence are right on their own")


def passes_when_reloaded(implementation: Implementation, case: Case) -> bool:
    """
    Tell whether a freshly loaded backend gives the right answer; what is imported by name cannot be
    loaded afresh.

    A copy that has only been wrong serves again. One that was right has shown that earlier calls
    matter: the next question gets another.
    """
    fresh = reload(implementation)
    if fresh is None:
        return False
    try:
        judge(fresh, case)
    except (Disagreement, Unsupported):
        return False
    implementation.backend.copy = None
    return True


def judge_output_ownership(recipe: Recipe, implementation: Implementation, dtype: str) -> None:
    """
    Require two calls to give arrays of their own: no output shares memory with another of its call,
    or of the call before.

    A static buffer is overwritten by the next call; one array in two places changes in both. What a
    library's own autograd hands out twice within a call is not its user's, and what cannot be
    written to may be shared.
    """
    given = to_backend_arrays(implementation, case_of(recipe, dtype))
    given |= dtype_keyword(implementation, dtype)
    try:
        calls = [
            ("", call(implementation, given)),
            (" of the next call", call(implementation, given)),
        ]
    except Disagreement as error:
        raise Unsupported(f"the call {error}: see values") from None
    outputs = [
        (path + which, x)
        for which, output in calls
        for path, x in zip(leaf_paths({"output": output}), leaves(output), strict=True)
    ]
    for (one, x), (other, y) in combinations(
        [(path, x) for path, x in outputs if is_writable(x)], 2
    ):
        within = other.endswith("of the next call") == one.endswith("of the next call")
        if shares_memory(x, y) and not (within and implementation.operation.is_gradient):
            raise Disagreement(f"{one} shares memory with {other}")


def is_writable(x: Any) -> bool:
    flags = getattr(x, "flags", None)
    return hasattr(x, "shape") and getattr(flags, "writeable", True)


def judge_written_anew(
    pair: Callable[[bool], tuple[Recipe, Recipe]], implementation: Implementation, dtype: str
) -> None:
    """
    Require the answer to arrays that hold other numbers than at the call before, in the same place:
    a cache of keys and a parameter are written in place between two calls.
    """
    recipe, again = pair(implementation.is_emulated)
    first, second = (case_shown(implementation, case_of(x, dtype)) for x in (recipe, again))
    if not (is_right(implementation, first) and is_right(implementation, second)):
        raise Unsupported(WRONG_BY_ITSELF)
    keywords = dtype_keyword(implementation, dtype)
    given, other = (to_backend_arrays(implementation, case) for case in (first, second))
    call(implementation, given | keywords)
    for into, x in zip(leaves(given), leaves(other), strict=True):
        write(into, x)
    outputs = call(implementation, given | keywords)
    try:
        hold_outputs(outputs, second, implementation)
    except Disagreement as error:
        told = f"the inputs were written anew in place after a call\n  {error}\n  recipe: {again}"
        raise Disagreement(told, "state") from None


WRONG_BY_ITSELF = "wrong by itself: told beside"


def write(into: Any, x: Any) -> None:
    """Write an array's numbers into another one."""
    if hasattr(into, "copy_"):
        into.copy_(x)
    elif hasattr(into, "shape"):
        into[...] = x


def judge_in_inference(
    recipes: Callable[[bool], tuple[Recipe, ...]], own: Implementation, dtype: str
) -> None:
    """
    Require the answers to be right as inference calls for them, of a copy that is loaded afresh:
    what it keeps from there cannot take part in training.
    """
    library, fresh = own.backend.library, reload(own)
    if library is None or library.in_inference is None or fresh is None:
        raise Unsupported("no inference mode, or nothing that can be loaded afresh")
    own.backend.copy = None
    cases = [case_of(recipe, dtype) for recipe in recipes(own.is_emulated)]
    right = [case for case in cases if is_right(own, case)]
    if not right:
        raise Unsupported(WRONG_BY_ITSELF)
    for case in right:
        given = to_backend_arrays(fresh, case) | dtype_keyword(fresh, dtype)
        with library.in_inference():
            outputs = call(fresh, given)
        hold_outputs(outputs, case, fresh, "in inference mode")
