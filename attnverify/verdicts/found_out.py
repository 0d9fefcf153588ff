"""
What a backend does and does not say: that it computes in a narrower dtype than its inputs have,
that it does not take a dtype at all, and which sizes it supports.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.loader import Implementation
from attnverify.catalogue.dtypes import largest, round_to
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported, WrongDtype
from attnverify.judge.judging import judge
from attnverify.judge.observation import Observation, arrays, observe_one
from attnverify.reference.oracle import evaluate_spec

NARROWER = {"float64": ("float32",), "float32": ("float16", "bfloat16")}
"""The dtypes that a function may compute in, for inputs of another."""

COMPUTES_IN = "computes in"
"""How the reason begins where that is what a function does."""

DOES_NOT_TAKE = "does not take"
"""How the reason begins where a function fails for the dtype of its inputs alone."""

ABOUT_DTYPES = (COMPUTES_IN, DOES_NOT_TAKE)
"""Beginnings of the reasons that DTYPES may declare."""

ASKED = 3
"""Failing cases that are judged once more in float32, to tell the dtype from other causes."""


def find_untaken_dtype(
    implementation: Implementation, failing: dict[str, list[Case]], hidden: bool = False
) -> str:
    """
    Say that a function does not take a dtype, where every case of it fails in the same way and
    passes in float32: it raises an error about types, or its NumPy promotes half precision. "" for
    every other failure. What is ``hidden`` may do harm in float32, of another kind.
    """
    if len(failing) != 1:
        return ""
    ((kind, cases),) = failing.items()
    dtype, words = cases[0].dtype, _describe_type_error(implementation, cases[0])
    if dtype == "float32" or not words:
        return ""
    kinds = {_kind_of_failure(implementation, c) for c in cases_in_float32(cases[:ASKED])}
    right = kinds == {""} or (hidden and kind not in kinds)
    return f"{DOES_NOT_TAKE} {dtype}: {words}" if right else ""


def cases_in_float32(cases: list[Case]) -> Iterator[Case]:
    return (case_of(case.recipe, "float32") for case in cases)


def _describe_type_error(implementation: Implementation, case: Case) -> str:
    """Say what a case raises about types, or which dtype NumPy makes of its own; "" otherwise."""
    try:
        judge(implementation, case)
    except Unsupported:
        return ""
    except Disagreement as error:
        words = " ".join(str(error).split())
        about_types = "TypeError" in error.kind or "NoLoop" in error.kind
        if error.kind.startswith("raised") and (about_types or "not implemented for" in words):
            return words
        library = implementation.backend.library
        library = implementation.backend.library
        promotes = isinstance(error, WrongDtype) and error.got in ("float32", "float64")
        return words if promotes and library is not None and library.name == "numpy" else ""
    return ""


def _kind_of_failure(implementation: Implementation, case: Case) -> str:
    """Judge a case: the kind of its failure, "" where it passes."""
    try:
        judge(implementation, case)
    except Unsupported:
        return "unsupported"
    except Disagreement as error:
        return error.kind
    return ""


def find_narrower(implementation: Implementation, case: Case) -> str:
    """
    Find the dtype in which a function computes whose answer is wrong in the dtype of its inputs; ""
    where the error is larger than that explains.

    Of float32 the answer must consist of half-precision numbers besides: an error within the bound
    of half precision alone may be any small fault.
    """
    try:
        seen = observe_one(implementation, case)
    except (Disagreement, Unsupported):
        return ""
    for dtype in NARROWER.get(case.dtype, ()):
        held = all((round_to(x, dtype) == x).all() for x in seen.actual if x.dtype.kind == "f")
        if (held or case.dtype == "float64") and _is_explained(implementation, seen, dtype):
            return dtype
    return ""


def _is_explained(implementation: Implementation, seen: Observation, dtype: str) -> bool:
    """
    Tell whether an answer is as near as the narrower dtype lets it be: within its bound at the
    rounded inputs, and what the rounding of the inputs alone changes.
    """
    operation, top = seen.case.operation, largest(dtype)
    floats = [x for x in leaves(seen.inputs) if isinstance(x, ndarray) and x.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        if any((np.abs(x[np.isfinite(x)]) > top).any() for x in floats):
            return True  # it overflows before anything is computed
        rounded = map_leaves(lambda leaf: _round_leaf(leaf, dtype), seen.inputs)
        narrow = arrays(evaluate_spec(operation, rounded))
        limits = (
            [np.zeros(x.shape) for x in narrow]
            if operation.exact
            else arrays(bounds.bound(operation.name, rounded, implementation.precision(dtype)))
        )
        return [x.shape for x in narrow] == [x.shape for x in seen.actual] and all(
            compare(actual, expected, limit + np.nan_to_num(np.abs(near - expected)), top).passed
            for actual, expected, near, limit in zip(
                seen.actual, seen.expected, narrow, limits, strict=True
            )
        )


def _round_leaf(leaf: Any, dtype: str) -> Any:
    is_float = isinstance(leaf, ndarray) and leaf.dtype.kind == "f"
    return round_to(leaf, dtype) if is_float else leaf


WIDTHS = (64, 32, 16, 128)
"""Widths of a head that kernels are written for."""


def has_heads_of_any_width(operation: Operation) -> bool:
    """
    Tell whether the width of a head is free: that of a layer is bound to its parameters, which have
    widths of their own.
    """
    return "query" in operation.arguments and not operation.traits.parameters


def supported_variants(recipe: Recipe, width: int) -> Iterator[Recipe]:
    """
    Yield a recipe with the width of a head that a kernel is written for, then with less and less
    that it need support.
    """
    sizes = recipe.sizes | {letter: width for letter in "DE" if letter in recipe.sizes}
    sizes |= {letter: min(sizes[letter], 2) for letter in "BH" if letter in sizes}
    wide = replace(recipe, sizes=sizes)
    plain = replace(wide, mask=None, dropout=None)
    yield from dict.fromkeys(
        (
            wide,
            plain,
            replace(plain, sizes=sizes | {"N": sizes["M"]} if {"N", "M"} <= set(sizes) else sizes),
        )
    )
