"""A right implementation in the arithmetic that it claims, with one factor that is off by 1 + x."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.calls.call_adapter import adapt_signature
from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.dtypes import numpy_dtype
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.checks.projected_factors import (
    ROW_MEAN,
    directions,
    factors_of_parameters,
    has_projected_factors,
)
from attnverify.checks.systematic_error import factors_of
from tests.rounding_variants import answer, gradients, scores
from tests.rounding_variants.grammar import Derivation, derive
from tests.rounding_variants.machine import Machine

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "scale": ("query", "u", "v", "key_pos_bias", "query_pos_bias"),
    "position scores": ("position", "key_pos_embeddings", "key_pos_bias"),
    "output": ("value",),
    "float mask": ("mask",),
}
"""A factor on all of these arguments, before anything is rounded, is one on the stage."""
ADDITIVE = {"scale": ("w_score",)}
"""The same where the query goes through a tanh first."""
NOTHING = "nothing"
"""The factor of no stage: what it is planted in stays right."""
RESULT = "result"
"""The one factor of an operation that has no other: that on what it returns."""


def factors_that_count(operation: Operation) -> tuple[str, ...]:
    """
    Name the factors that can be off: stages of scores and attentions, each gradient and the mean
    of its rows, each parameter of a layer; none where the operation only moves numbers.
    """
    if operation.exact:
        return ()
    if has_projected_factors(operation):
        return tuple(directions(operation.name, "float64", 0))
    return factors_of(operation) or ((RESULT,) if computes(operation) else ())


def computes(operation: Operation) -> bool:
    """Whether it returns rounded numbers."""
    return operation.name in ("softmax", "dropout", "sinusoidal_positions") or (
        operation.name.startswith("get_")
    )


@dataclass(frozen=True)
class Unrounded(Machine):
    """A machine that stores what it answers as it was before it was rounded."""

    def out(self, x: ndarray) -> ndarray:
        return x


def planted(operation: str, arithmetic: str, dtype: str, factor: str, off: float) -> Implementation:
    """The operation with one factor too large by ``off``, as the implementation of a backend."""
    return planted_in(derive(operation, arithmetic), dtype, factor, off)


def planted_in(derived: Derivation, dtype: str, factor: str, off: float) -> Implementation:
    """The same in any order of evaluation."""
    op, arithmetic = CATALOGUE[derived.operation], derived.arithmetic

    def function(**given: Any) -> Any:
        inputs = map_leaves(widened, given)
        result = compute_off(derived, dtype, inputs, factor, 1 + off)
        return map_leaves(lambda x: x if x is None else x.astype(numpy_dtype(dtype)), result)

    backend = Backend(
        arithmetic, arithmetic, library=array_library("numpy"), precision=derived.declaration(dtype)
    )
    backend.implementations = [Implementation(backend, op, "", adapt_signature(function, op))]
    return backend.implementations[0]


def widened(x: Any) -> Any:
    """Floating point numbers as the specification reads them; others as they are."""
    is_number = isinstance(x, ndarray) and x.dtype != bool and x.dtype.kind not in "iu"
    return np.asarray(x, np.float64) if is_number else x


def compute_off(
    derived: Derivation, dtype: str, inputs: dict[str, Any], factor: str, gain: float
) -> Any:
    """What the implementation answers with this factor multiplied."""
    op = CATALOGUE[derived.operation]
    if (factor in (RESULT, "output") and not op.is_attention) or factor.startswith("gradient "):
        place = int(factor.removeprefix("gradient ")) if op.is_gradient else 0
        return with_result_off(derived, dtype, inputs, place, gain)
    context = PATCHES[factor](gain) if factor in PATCHES else nullcontext()
    with context:
        at = Machine.of(derived, dtype)
        return answer(at, op.name, with_arguments_off(inputs, factor, gain))


def with_arguments_off(inputs: dict[str, Any], factor: str, gain: float) -> dict[str, Any]:
    """The arguments with those of a stage multiplied, or the parameters of a layer."""
    if "parameters" in inputs:
        names = factors_of_parameters(inputs["parameters"])[factor]
        multiply = lambda layer: layer | {name: layer[name] * gain for name in names}
        given = inputs["parameters"]
        changed = [multiply(each) for each in given] if isinstance(given, list) else multiply(given)
        return inputs | {"parameters": changed}
    named = ADDITIVE if "w_score" in inputs and factor in ADDITIVE else ARGUMENTS
    return inputs | {name: inputs[name] * gain for name in named.get(factor, ()) if name in inputs}


def with_result_off(
    derived: Derivation, dtype: str, inputs: dict[str, Any], place: int, gain: float
) -> Any:
    """What is answered with one of its results multiplied before it is rounded."""
    at = Machine.of(derived, dtype)
    right, places = answers(derived, dtype, Digested(inputs)), count()
    off = at.out(right.unrounded[place] * at.work(gain))
    return map_leaves(lambda x: off if next(places) == place else x, right.tree)


class Digested:
    """Arguments that are equal where their numbers are."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs
        told = (x.tobytes() if isinstance(x, ndarray) else repr(x).encode() for x in leaves(inputs))
        self.digest = sha256(b"|".join(told)).digest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digested) and self.digest == other.digest


@dataclass(frozen=True)
class Answer:
    """What is answered, and each of its leaves before it was rounded."""

    tree: Any
    unrounded: list[Any]


@lru_cache(maxsize=8)
def answers(derived: Derivation, dtype: str, given: Digested) -> Answer:
    """The right answer, kept for the other factors and sizes of errors of the same call."""
    at, operation = Machine.of(derived, dtype), derived.operation
    wide = answer(Unrounded(at.P, at.order), operation, given.inputs)
    return Answer(answer(at, operation, given.inputs), list(leaves(wide)))


@contextmanager
def slopes_off(gain: float) -> Iterator[None]:
    right = scores.slopes
    wrong: Callable[..., ndarray] = lambda at, H: at.to(right(at, H) * at.work(gain), at.P.bias)
    with patch.object(scores, "slopes", wrong):
        yield


@contextmanager
def row_mean_off(gain: float) -> Iterator[None]:
    right = gradients.row_gradient
    wrong: Callable[..., ndarray] = lambda at, w, dP, D, *of_mean: right(
        at, w, dP, D * at.work(gain), *of_mean
    )
    with patch.object(gradients, "row_gradient", wrong):
        yield


PATCHES = {"slopes": slopes_off, ROW_MEAN: row_mean_off}
"""Factors on what no argument holds."""
