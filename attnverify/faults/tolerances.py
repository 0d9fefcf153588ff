"""
What a tolerance lets pass: the seeded faults behind an acceptance rule of the kind that suites
have, on standard normal numbers and everyday sizes, as these draw them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.linalg import norm

from attnverify.backends.array_libraries import array_library
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.faults.user_tests import Function, Measured, measure_check
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.real.calls import everyday_sizes, usual_calls
from attnverify.inputs.real.required_options import option_cases
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.inputs.sampling import resized
from attnverify.precision import FORMATS
from attnverify.reference.oracle import evaluate_spec

__all__ = ["SUITES", "Tolerance", "measure", "measure_tolerance", "parse_tolerance"]

SUITES = {
    "FlashMLA": "atol=8e-4 or rtol=1.57e-2, cosine=5e-6",
    "flash-attention": "rounding=3",
    "FlashInfer": "atol=1e-2, rtol=1e-2",
    "FlashInfer in float16": "atol=1e-3, rtol=1e-3",
    "FlashInfer xqa": "atol=1e-2, rtol=1e-2, share=0.95",
    "cuDNN frontend": "atol=2e-2, rtol=2e-2",
    "TransformerEngine": "atol=1.5e-2, rtol=1.5e-2",
    "vLLM": "atol=1.5e-2, rtol=1e-2",
    "aiter": "atol=1e-2, rtol=1e-2",
    "flash-linear-attention": "rms=5e-3",
    "KernelBench": "atol=1e-2, rtol=1e-2",
    "flashinfer-bench": "atol=1e-2 or rtol=1e-2",
    "GPU MODE": "atol=8e-3, rtol=2e-2",
    "GPU MODE, mixed": "atol=1e-1, rtol=1e-1",
    "ONNX": "atol=1e-7, rtol=1e-3",
}
"""
Rules of public suites, read from their sources in November 2026. That of flash-attention takes the
error of PyTorch in the same dtype twice, and twice a rounding: three roundings of the largest
number stand for it.
"""

MOST = {"B": 2, "H": 4, "N": 128, "M": 128, "P": 128, "F": 256, "A": 64}
DECODE = {"B": 2, "H": 4, "N": 1, "M": 1024, "D": 64, "E": 64}

TINY = FORMATS["float64"].tiny
"""What an infinite rtol is multiplied with in place of 0."""


@dataclass(frozen=True)
class Tolerance:
    """
    What an answer may be off. Each number by ``atol`` plus ``rtol`` of what is expected (by one or
    the other with ``either``), or a ``share`` of them; ``rms``: the root mean square of what is off
    over that of what is expected; ``cosine``: 1 less the cosine of the two; ``rounding``: so many
    times the rounding of the largest number.
    """

    atol: float = np.inf
    rtol: float = np.inf
    share: float = 1.0
    rms: float = np.inf
    cosine: float = np.inf
    rounding: float = np.inf
    either: bool = False

    def accepts(self, given: ndarray, wanted: ndarray, dtype: str) -> bool:
        """Tell whether an answer passes; numbers that are not finite must be the same."""
        if given.shape != wanted.shape:
            return False
        given, finite = given.astype(np.float64), np.isfinite(wanted)
        if not np.array_equal(given[~finite], wanted[~finite], equal_nan=True):
            return False
        given, wanted = given[finite], wanted[finite]
        off, size = np.abs(given - wanted), np.abs(wanted)
        lengths = norm(given) * norm(wanted)
        step = FORMATS[dtype].u
        return bool(
            np.count_nonzero(off <= self.limits(size)) >= self.share * off.size
            and is_at_most(norm(off), self.rms, norm(wanted))
            and is_at_most(lengths - given @ wanted, self.cosine, lengths)
            and is_at_most(off.max(initial=0), self.rounding * step, size.max(initial=0))
        )

    def limits(self, size: ndarray) -> Any:
        """What each number may be off, by the size of what is expected."""
        parts = (np.full_like(size, self.atol), self.rtol * np.maximum(size, TINY))
        given = [part for part in parts if np.isfinite(part).all()]
        if not given:
            return np.inf
        return np.max(given, axis=0) if self.either else np.sum(given, axis=0)


def is_at_most(off: Any, factor: float, size: Any) -> bool:
    return not np.isfinite(factor) or bool(off <= factor * size)


def parse_tolerance(words: str) -> Tolerance:
    """
    Read a rule: the name of a suite, or numbers, all of which must hold.

    >>> parse_tolerance("atol=8e-4 or rtol=1.57e-2, cosine=5e-6").either
    True
    """
    parts = re.split(r"\s*(?:,| or )\s*", SUITES.get(words, words).strip())
    numbers = {name for name, kind in Tolerance.__annotations__.items() if kind is float}
    given = dict[str, float]()
    for part in parts:
        name, _, number = part.partition("=")
        try:
            given[name.strip()] = float(number)
        except ValueError:
            given[part] = 0.0
    if wrong := ", ".join(sorted(given.keys() - numbers)):
        known = f"{', '.join(sorted(numbers))}, each with =, or one of {', '.join(SUITES)}"
        raise ValueError(f"rule: wanted numbers of {known}, got {wrong}")
    return Tolerance(**given, either=" or " in SUITES.get(words, words))


def ordinary_calls(operation: Operation, seed: int) -> tuple[Recipe, ...]:
    """
    The calls of a careful suite: everyday sizes under each kind of mask, each form of each option,
    a step of a cache; standard normal numbers, nothing in hidden slots.
    """
    sizes = everyday_sizes(operation) or {}
    found = [*usual_calls(operation, "quick", MOST)]
    for recipe in option_cases(operation):
        length = {letter: sizes[letter] // 8 for letter in "NM" if letter in recipe.sizes}
        width = {letter: sizes[letter] for letter in "DE" if letter in recipe.sizes}
        found.append(resized(recipe, length | width))
    if (operation.is_attention or operation.shares_keys) and not operation.traits.square:
        found.append(fixed_recipe(operation, DECODE))
    values = ({"family": "normal", "seed": seed + place} for place in range(len(found)))
    return tuple(
        replace(each, values=own, poison=None) for each, own in zip(found, values, strict=True)
    )


def measure_tolerance(
    operation: Operation, tolerance: Tolerance, dtype: str, seed: int = 0
) -> Measured:
    """Measure what a rule notices of an operation's faults in ordinary calls."""

    def passes(answer: Any, inputs: Inputs, expected: Any) -> bool:
        pairs = zip(arrays(answer), arrays(expected), strict=True)
        return all(tolerance.accepts(given, wanted, dtype) for given, wanted in pairs)

    return measure(operation, dtype, seed, passes)


def arrays(tree: Any) -> list[ndarray]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, ndarray)]


def measure(
    operation: Operation, dtype: str, seed: int, passes: Callable[[Any, Inputs, Any], bool]
) -> Measured:
    """Measure a check that makes ordinary calls and looks at the answers alone."""
    calls = [expand(recipe, dtype) for recipe in ordinary_calls(operation, seed)]
    answered = [(inputs, evaluate_spec(operation, inputs)) for inputs in calls]

    def check(function: Function) -> None:
        for inputs, expected in answered:
            assert passes(function(**stored(operation, inputs, dtype)), inputs, expected)

    with np.errstate(all="ignore"):
        found = measure_check(operation.name, operation, check, "numpy")
    return replace(
        found,
        killed=[fault for fault in found.killed if dtype in fault.wrong_in],
        survivors=[fault for fault in found.survivors if dtype in fault.wrong_in],
    )


def stored(operation: Operation, inputs: Inputs, dtype: str) -> Inputs:
    """The arrays of a call in the dtype that each has, copied for each call."""
    from_numpy = array_library("numpy").from_numpy

    def converted(name: str, value: Any) -> Any:
        own = operation.dtype_of(name, dtype)
        return map_leaves(
            lambda x: from_numpy(x.copy(), own) if isinstance(x, ndarray) else x, value
        )

    return {name: converted(name, value) for name, value in inputs.items()}
