"""
What a backend does and does not say: that it computes in a narrower dtype than its inputs have,
that it does not take a dtype at all, which sizes it supports, and the order of its axes.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.array_libraries import by_autograd
from attnverify.backends.calls.headless import layouts_of
from attnverify.backends.calls.terms import LAYOUTS, TERMS, line_of, may_be_causal, translated
from attnverify.backends.declarations import STRICT
from attnverify.backends.implementation import Backend, Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.dtypes import largest, round_to
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.fixed_cases import fixed_cases, fixed_recipe
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import resized, shrink_key
from attnverify.judge.case import Case, case_of
from attnverify.judge.comparison import compare, format_apart
from attnverify.judge.errors import Disagreement, Unsupported, WrongDtype
from attnverify.judge.invoke import announce, convert_and_call
from attnverify.judge.judging import is_right, judge
from attnverify.judge.observation import Observation, arrays, observe_one
from attnverify.precision import find_fields
from attnverify.reference.oracle import evaluate_spec
from attnverify.verdicts.fitting import fitted_recipes


def loaded(source: str) -> Backend:
    """Load a backend, and find out which results its functions return."""
    backend = load(source)
    backend.alone = find_alone(backend)
    return backend


def find_alone(backend: Backend, operation: str = "") -> dict[str, bool]:
    """
    Ask the functions of a user's file that says nothing of it, or those of one operation, whether
    they answer a plain call with their output alone where there is a second result.
    """
    return {
        own.asked_as: _answers_alone(own)
        for own in backend.implementations
        if backend.declared is not STRICT
        and own.operation.second_result not in ("", *backend.declared.features)
        and operation in ("", own.operation.name)
    }


def _answers_alone(implementation: Implementation) -> bool:
    """
    Tell whether the first call that is answered, plain, with one option or of whole tiles, is
    answered without a second result.
    """
    declared, name = implementation.backend.declared, implementation.operation.name
    dtype = next(iter(declared.dtypes), "float32")
    cases = fixed_cases(name)
    options = {option: value for each in cases for option, value in each.options.items()}
    first = cases[0]
    alone = [replace(first, options=first.options | {name: options[name]}) for name in options]
    tiles = resized(first, {letter: 64 for letter in "NMDE" if letter in first.sizes})
    for recipe in fitted_recipes([*cases[:ASKED], *alone, tiles], declared.limits):
        with suppress(Disagreement, Unsupported):
            case = case_of(recipe, dtype)
            announce.get()(implementation, dtype, case, None)
            outputs = convert_and_call(implementation, case)
            return isinstance(outputs, (list, tuple)) and len(outputs) == 2 and outputs[1] is None
    return False


NARROWER = {"float64": ("float32",), "float32": ("float16", "bfloat16")}
"""The dtypes that a function may compute in, for inputs of another."""

COMPUTES_IN = "computes in"
"""How the reason begins where that is what a function does."""

DOES_NOT_TAKE = "does not take"
"""How the reason begins where a function fails for the dtype of its inputs alone."""

ABOUT_DTYPES = (COMPUTES_IN, DOES_NOT_TAKE)
"""Beginnings of the reasons that DTYPES may declare."""

FIRST_ASKED = 8
"""Where narrower arithmetic explains none of the first failing cases, the others are not asked."""

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
    kinds = {
        _kind_of_failure(implementation, case_of(case.recipe, "float32")) for case in cases[:ASKED]
    }
    right = kinds == {""} or (hidden and kind not in kinds)
    return f"{DOES_NOT_TAKE} {dtype}: {words}" if right else ""


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
        promotes = isinstance(error, WrongDtype) and error.got in ("float32", "float64")
        return words if promotes and implementation.library.name == "numpy" else ""
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


@dataclass(frozen=True)
class Narrower:
    """
    A dtype in which a function computes, an element that shows it, and the cases that it explains.
    """

    dtype: str
    witness: str
    explained: frozenset[Case]

    def __str__(self) -> str:
        return f"{COMPUTES_IN} {self.dtype}: {self.witness}"


def find_narrower(
    implementation: Implementation, failing: list[Case], passing: list[Case]
) -> Narrower | None:
    """
    Find the dtype in which a function computes whose answers are wrong in the dtype of its inputs.

    It takes a witness: an element that is wrong in the dtype of the inputs, and within a bound of
    the narrower dtype that excludes 0. And nobody against it: PRECISION speaks of no other
    arithmetic, and no case holds a right number that the narrower dtype cannot hold.
    """
    if is_claimed(implementation, failing[0].dtype):
        return None
    for dtype in NARROWER.get(failing[0].dtype, ()):
        found = _explain_cases(implementation, failing, dtype)
        if found and not any(_refutes(implementation, case, dtype) for case in passing):
            return found
    return None


def is_claimed(implementation: Implementation, dtype: str) -> bool:
    """
    Tell whether PRECISION speaks of a dtype: the wide format of a preset is float32, and what means
    float64 names it.
    """
    declared, names = implementation.backend.precision, (implementation.operation.name,)
    fields = find_fields(declared, *names, implementation.name, dtype)
    if dtype == "float32":
        return bool(fields)
    others = find_fields(declared, *names, implementation.name, "any other")
    return fields != others or any(str(x).startswith(dtype) for x in fields.values())


def _explain_cases(
    implementation: Implementation, failing: list[Case], dtype: str
) -> Narrower | None:
    """Find what arithmetic in a dtype explains; None without a witness, or with one against it."""
    explained, witness = set[Case](), ""
    for number, case in enumerate(failing, 1):
        seen = _observe(implementation, case)
        if seen is not None and _wider_numbers(seen, dtype, right=True):
            return None
        words = _explain(implementation, seen, dtype) if seen is not None else None
        if words is not None:
            explained.add(case)
            witness = witness or words
        if number == FIRST_ASKED and not explained:
            return None
    return Narrower(dtype, witness, frozenset(explained)) if witness else None


def _refutes(implementation: Implementation, case: Case, dtype: str) -> bool:
    seen = _observe(implementation, case)
    return seen is not None and _wider_numbers(seen, dtype, right=True)


def _observe(implementation: Implementation, case: Case) -> Observation | None:
    try:
        return observe_one(implementation, case)
    except (Disagreement, Unsupported):
        return None


def _wider_numbers(seen: Observation, dtype: str, right: bool) -> bool:
    """
    Tell whether an answer holds a number that a dtype cannot hold, among those that are ``right``
    or among all: what is computed, not what is handed through as it came.
    """
    for actual, expected, bound in zip(seen.actual, seen.expected, seen.bounds, strict=True):
        if actual.dtype.kind != "f" or actual.shape != expected.shape:
            continue
        wider = np.isfinite(actual) & (round_to(actual, dtype) != actual)
        if bound is not None:
            wider &= bound > 0
        if right:
            wider &= _is_right(actual, expected, bound, seen.dtype)
        if wider.any():
            return True
    return False


def _is_right(actual: ndarray, expected: ndarray, bound: ndarray | None, dtype: str) -> ndarray:
    """Tell which elements are right, where the bound says anything."""
    right = compare(actual, expected, bound, largest(dtype)).arrays[3]
    return right if bound is None else right & np.isfinite(bound)


def _explain(implementation: Implementation, seen: Observation, dtype: str) -> str | None:
    """
    Describe an element that shows an answer to be as near as the narrower dtype lets it be: within
    its bound at the rounded inputs, and what the rounding of the inputs alone changes. "" where no
    element shows it, None where one is further off.

    Of float32 the answer must consist of half-precision numbers besides: an error within the bound
    of half precision alone may be any small fault.
    """
    if seen.dtype == "float32" and _wider_numbers(seen, dtype, right=False):
        return None
    operation, top = seen.case.operation, largest(dtype)
    floats = [x for x in leaves(seen.inputs) if isinstance(x, ndarray) and x.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        if any((np.abs(x[np.isfinite(x)]) > top).any() for x in floats):
            return ""  # it overflows before anything is computed
        rounded = map_leaves(lambda leaf: _round_leaf(leaf, dtype), seen.inputs)
        narrow = arrays(evaluate_spec(operation, rounded))[: len(seen.actual)]
        if [x.shape for x in narrow] != [x.shape for x in seen.actual]:
            return None
        own = (
            [np.zeros(x.shape) for x in narrow]
            if operation.exact
            else arrays(bounds.bound(operation.name, rounded, implementation.precision(dtype)))
        )
        pairs = zip(own[: len(narrow)], narrow, seen.expected, strict=True)
        limits = [limit + np.nan_to_num(np.abs(near - law)) for limit, near, law in pairs]
    held = zip(seen.actual, seen.expected, limits, strict=True)
    if not all(compare(*each, top).passed for each in held):
        return None
    return _describe_witness(seen, limits, dtype)


def _describe_witness(seen: Observation, limits: list[ndarray], dtype: str) -> str:
    """Describe the element whose error is the most beyond its own bound; "" where there is none."""
    for actual, expected, bound, limit in zip(
        seen.actual, seen.expected, seen.bounds, limits, strict=True
    ):
        if actual.dtype.kind != "f":
            continue
        with np.errstate(all="ignore"):
            own = compare(actual, expected, bound, largest(seen.dtype))
            telling = ~own.arrays[3] & np.isfinite(actual) & (limit < np.abs(actual))
        if telling.any():
            ratio = np.where(telling, own.arrays[2], -1.0)
            at = tuple(int(i) for i in np.unravel_index(ratio.argmax(), ratio.shape))
            got, wanted = format_apart(actual[at], expected[at])
            return (
                f"got {got} for {wanted} at {at} of {seen.recipe}, "
                f"{ratio[at]:.2g} times the bound of {seen.dtype} and "
                f"{compare(actual, expected, limit).arrays[2][at]:.2g} of that of {dtype}"
            )
    return ""


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
    sizes = recipe.sizes
    few = {letter: min(sizes[letter], 2) for letter in "BH" if letter in sizes}
    wide = resized(recipe, few | {letter: width for letter in "DE" if letter in sizes})
    plain = replace(wide, mask=None, dropout=None)
    square = resized(plain, {"N": sizes["M"]}) if {"N", "M"} <= sizes.keys() else plain
    yield from dict.fromkeys((wide, plain, square))


PLAIN = {"B": 2, "H": 3, "N": 5, "M": 5, "D": 8, "E": 8}
"""What every kernel takes, with as many heads as nothing else."""

LEAD = (2, 3)
"""The leading axes of what has any number of them."""


def find_plain_terms(implementation: Implementation, dtype: str) -> dict[str, Any]:
    """
    Find the order of axes, or that every call is causal, or both, by which plain calls are right of
    which none is as the file has it; {} for a function of ours, and where there is no such thing.
    """
    operation, declared = implementation.operation, implementation.backend.declared
    if declared is STRICT or not (layouts_of(operation) or may_be_causal(operation)):
        return {}
    if any(is_right(implementation, case) for case in _plain_calls(operation, dtype, {})):
        return {}
    layouts: list[dict[str, Any]] = [{"LAYOUT": one} for one in _other_layouts(implementation)]
    asked = list(layouts)
    if "CAUSAL" not in declared.terms and _takes_no_causality(implementation, dtype):
        asked += [layout | {"CAUSAL": True} for layout in ({}, *layouts)]
    for said in asked:
        there_and_back = {"LAYOUT": "BNHD"} if said.get("LAYOUT") == "BHND" else {}
        other = saying(implementation, said | there_and_back)
        if all(is_right(other, case) for case in _plain_calls(operation, dtype, said)):
            return said
    return {}


def _other_layouts(implementation: Implementation) -> tuple[str, ...]:
    """Name the layouts that a file may have meant instead of its own."""
    own = implementation.backend.declared.terms.get("LAYOUT", "BHND")
    others = {"BHND": layouts_of(implementation.operation), "BNHD": ("BHND",)}
    return others.get(own, ())


def _plain_calls(operation: Operation, dtype: str, said: dict[str, Any]) -> list[Case]:
    """Make calls that every kernel takes: causal ones where that is said."""
    sizes = PLAIN | {"G": PLAIN["H"]} if operation.shares_keys else PLAIN
    recipes = [fixed_recipe(operation, sizes, seed=seed) for seed in (7, 8)]
    if operation.axes and next(iter(operation.axes.values())).startswith("..."):
        recipes = [replace(one, options=one.options | {"lead": LEAD}) for one in recipes]
    if "?" in operation.traits.parameters:
        recipes = [replace(one, options=one.options | {"biases": False}) for one in recipes]
    features = {"causal": True} if "CAUSAL" in said else {}
    return [case_of(recipe, dtype) for recipe in fitted_recipes(recipes, features)]


def _takes_no_causality(implementation: Implementation, dtype: str) -> bool:
    """Tell whether a call may be causal and the function has no argument that would say so."""
    if not may_be_causal(implementation.operation):
        return False
    case = _plain_calls(implementation.operation, dtype, {"CAUSAL": True})[-1]
    try:
        judge(implementation, case)
    except Unsupported:
        return True
    except Disagreement:
        pass
    return False


def saying(implementation: Implementation, said: dict[str, Any]) -> Implementation:
    """Return the implementation as it is where its file says this besides."""
    operation, function = implementation.operation, implementation.function
    forward, library = getattr(function, "forward", None), implementation.backend.library
    if forward is None or library is None:
        other: Any = translated(function, operation, said)
    else:
        other = by_autograd(translated(forward, operation.forward, said), library.name)
        other.forward = forward
    return replace(implementation, function=other)


MOST_TERMS = 3
"""So many things a file may have left unsaid at once."""

HELD = 60
"""Cases that what is found must hold in, the smallest failing ones first."""


def find_terms(
    implementation: Implementation, failing: dict[str, list[Case]], passing: list[Case]
) -> dict[str, Any]:
    """
    Find the fewest terms that a file does not say and by which all is right, what fails without
    them and what does not. {} for a function of ours, and where none explains all.
    """
    declared, operation = implementation.backend.declared, implementation.operation
    if declared is STRICT or operation.outside is not None:
        return {}
    concerned = {
        name: layouts_of(operation) if name == "LAYOUT" else term.tried
        for name, term in TERMS.items()
        if name not in declared.terms and term.concerns(operation)
    }
    few = [case for cases in failing.values() for case in sorted_by_size(cases)[:ASKED]]
    rest = sorted_by_size([*chain(*failing.values()), *passing])
    held = [*dict.fromkeys((*few, *rest))][:HELD]
    if concerned == {} or any(case.rows for case in held):
        return {}
    for count in range(1, MOST_TERMS + 1):
        for names in combinations(concerned, count):
            for values in product(*(concerned[name] for name in names)):
                said = dict(zip(names, values, strict=True))
                other = saying(implementation, said)
                if all(is_right(other, case) for case in held):
                    return said
    return {}


def sorted_by_size(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: shrink_key(case.recipe))


def describe_terms(said: dict[str, Any]) -> str:
    """Say what is taken, with the lines that say so in a file."""
    lines = "; ".join(line_of(name, value) for name, value in said.items())
    how = LAYOUTS[said["LAYOUT"]][1] if [*said] == ["LAYOUT"] else "otherwise"
    return f"the same calls are right {how}; {MEANT}{lines}"


MEANT = "if meant so, add: "
