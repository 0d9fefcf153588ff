"""
Cases: a recipe in a dtype, with all that is known of it before anybody is called.

Every part is worked out when it is first asked for, and kept for as long as the case is: all
implementations of an operation are shown the same cases, one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.catalogue.rows import single_row
from attnverify.derived import Derived
from attnverify.derived.today import BOUNDS as DERIVED
from attnverify.derived.today import ROWS
from attnverify.inputs.expand import checksum, expand, recipe_of_forward
from attnverify.inputs.given import (
    GIVEN,
    count_pairs,
    read_arrays,
    recipe_of_file,
    recipes_of_rows,
    sizes_of,
    speaks_of_gradients,
)
from attnverify.inputs.masks import scores_shape
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.judge.weak_cases import rejects_all, simple_answers, trivial_answers
from attnverify.precision import FLOAT64, REFERENCE, Precision
from attnverify.reference.blocks import SMALL, block_letter, cut_in_blocks, join_blocks
from attnverify.reference.oracle import evaluate_spec

bounds.BOUNDS.update(DERIVED)


@dataclass(frozen=True)
class Case:
    """
    A recipe in a dtype; :func:`case_of` makes one. Inputs and expected outputs are shared, and
    read-only.
    """

    recipe: Recipe
    dtype: str
    _errors: dict[Precision, Any] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _bounds: dict[Precision, Any] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _least: dict[Precision, Any] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _discriminating: dict[Precision, bool] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __str__(self) -> str:
        return f"{self.recipe} in {self.dtype}"

    @property
    def operation(self) -> Operation:
        return CATALOGUE[self.recipe.operation]

    @property
    def inputs(self) -> Inputs:
        return expand(self.recipe, self.dtype) if self.recipe.is_large else self._kept_inputs

    @cached_property
    def _kept_inputs(self) -> Inputs:
        return expand(self.recipe, self.dtype)

    @cached_property
    def rows(self) -> "tuple[Case, ...]":
        """
        Sampled rows of a call that is too large for the specification, each a case of its own;
        ``()`` where everything is judged.
        """
        if self.recipe.values["family"] != GIVEN:
            return ()
        return tuple(case_of(row, self.dtype) for row in recipes_of_rows(self.recipe))

    @cached_property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Of each output of floats; of a call that is judged in rows, of the one they are in."""
        if self.rows:
            query, value = self.inputs["query"], self.inputs["value"]
            width = (query if self.operation.is_gradient else value).shape[-1]
            return [(*query.shape[:-1], width)]
        arrays = (leaf for leaf in leaves(self.expected) if isinstance(leaf, ndarray))
        return [leaf.shape for leaf in arrays if leaf.dtype.kind == "f"]

    @cached_property
    def forward(self) -> "Case":
        """The call whose gradient this is, on the same inputs."""
        return Case(recipe_of_forward(self.recipe), self.dtype)

    def prepare(self, precision: Precision) -> None:
        """Work out what is expected, and the bounds, before anybody is called and timed."""
        for case in self.rows or (self,):
            if case.least_bounds(precision) is None:
                case.strict_bounds(precision)
            _ = case.expected

    @property
    def checksum(self) -> str:
        """Of the inputs: two cases of one recipe that differ in it were not drawn alike."""
        return checksum(self.recipe, self.dtype)

    @cached_property
    def expected(self) -> Any:
        """What the specification answers."""
        expected = evaluate_spec(self.operation, self.inputs)
        for leaf in leaves(expected):
            if isinstance(leaf, ndarray):
                leaf.setflags(write=False)
        return expected

    def bounds(self, precision: Precision) -> Any:
        """
        Compute the error bounds of the outputs under a declared arithmetic; None for an operation
        that moves numbers and computes none, 0 for its gradient: a gradient is added to what is
        there, and the sum of 0 and -0 is 0.
        """
        if self.operation.exact:
            return (
                map_leaves(
                    lambda expected: None if expected is None else np.zeros(np.shape(expected)),
                    self.expected,
                )
                if self.operation.is_gradient
                else None
            )
        if precision not in self._bounds:
            own, reference = self._error(precision), self._reference_error
            self._bounds[precision] = bounds.with_reference(own, reference, precision.slack)
        return self._bounds[precision]

    def strict_bounds(self, precision: Precision) -> Any:
        """
        Compute the bounds without what the specification's own float64 may err: who keeps within
        these keeps within the bounds. That share takes as long to work out as the bound itself, and
        is less than a 10^8th of it in any other dtype. In float64 they are the bounds.
        """
        if self.operation.exact or precision.storage.p == FLOAT64.p:
            return self.bounds(precision)
        return bounds.scaled(self._error(precision), precision.slack)

    def least_bounds(self, precision: Precision) -> Any:
        """
        Compute what is no more than the bounds, in a tenth of their time; None where they are
        worked out already, or in no time, or nothing less is known.
        """
        if precision in self._errors or self.rows or self.operation.name not in DERIVED:
            return None
        if precision not in self._least:
            found = errors_of(self)(precision, Derived.least)
            self._least[precision] = bounds.scaled(found, precision.slack)
        return self._least[precision]

    def _error(self, precision: Precision) -> Any:
        """What an implementation may err under a declared arithmetic."""
        if precision not in self._errors:
            self._errors[precision] = errors_of(self)(precision)
        return self._errors[precision]

    @property
    def _reference_error(self) -> Any:
        """
        The part of the bounds that is the same under every declared arithmetic: what the
        specification's own float64 may err.
        """
        return self._error(REFERENCE)

    def is_discriminating(self, precision: Precision) -> bool:
        """
        Tell whether trivial answers apply to it, and none of them passes; of sampled rows, none
        that one of them does not reject.
        """
        if self.rows:
            return any(row.is_discriminating(precision) for row in self.rows)
        if precision not in self._discriminating:
            answers = self._trivial_answers
            with np.errstate(all="ignore"):
                self._discriminating[precision] = bool(answers) and (
                    self._rejects_in_rows(answers, precision)
                    or rejects_all(
                        map(self.in_row, answers),
                        self.in_row(self.expected),
                        self.in_row(self.strict_bounds(precision)),
                    )
                )
        return self._discriminating[precision]

    def _rejects_in_rows(self, answers: list[Any], precision: Precision) -> bool:
        """
        Tell whether five rows reject every answer, where the bounds are not worked out: by twice
        their own, since a gradient of few rows may be bounded by a narrower form.
        """
        if self.least_bounds(precision) is None:
            return False
        shape = self.inputs["query"].shape
        axis = 0 if len(shape) == 3 else -2
        if shape[axis] < 10:
            return False
        rows = slice(0, None, shape[axis] // 5)
        error = bounds.error(self.operation.name, {**self.inputs, ROWS: rows}, precision)
        place = (rows,) if axis == 0 else (..., rows, slice(None))
        limit = bounds.scaled(error[0], 2 * precision.slack)
        wanted, given = [self.expected[0][place]], (x[0] for x in answers)
        return rejects_all(([x[place]] for x in given), wanted, [limit])

    def is_judged(self, precision: Precision) -> bool:
        """
        Tell whether nine elements of ten have a finite bound: where an intermediate number may
        overflow, nothing is said of the result.
        """
        if self.rows:
            return any(row.is_judged(precision) for row in self.rows)
        pairs = zip(leaves(self.strict_bounds(precision)), leaves(self.expected), strict=True)
        given = [(limit, x) for limit, x in pairs if limit is not None]
        outside = sum(np.count_nonzero(np.isinf(limit) & ~np.isnan(x)) for limit, x in given)
        return bool(outside * 10 <= sum(x.size for _, x in given))

    def in_row(self, outputs: Any) -> Any:
        """
        Return what a row of a large call is judged by: of a gradient the one by the query, since
        those by key and value are sums over all rows. Of every other case all outputs.
        """
        is_row = "row" in self.recipe.values
        return outputs[0] if is_row and self.operation.is_gradient else outputs

    @property
    def _trivial_answers(self) -> list[Any]:
        if self.recipe.is_large:  # those that cost no call
            return list(simple_answers(self.operation, self.inputs, self.expected))
        return self._kept_answers

    @cached_property
    def _kept_answers(self) -> list[Any]:
        with np.errstate(all="ignore"):
            return list(trivial_answers(self.operation, self.inputs, self.expected))


def errors_of(case: Case) -> Callable[..., Any]:
    """
    Find the errors of a small case under any arithmetic, with what they share computed once; those
    of a large one block after block.
    """
    if case.recipe.is_large and (letter := block_letter(case.operation, case.recipe, case.inputs)):
        return partial(errors_in_blocks, case, letter)
    shape = scores_shape(case.operation, case.inputs) or ()
    others = (case.recipe.sizes.get(letter, 1) for letter in ("E" if shape else "BHNME"))
    small = not case.recipe.is_large and prod(shape) * prod(others) <= SMALL
    return (shared_errors if small else errors_of_large)(case)


@lru_cache(maxsize=1024)
def shared_errors(case: Case) -> Callable[..., Any]:
    return bounds.prepare(case.operation.name, case.inputs)


@lru_cache(maxsize=1)
def errors_of_large(case: Case) -> Callable[..., Any]:
    """Keep those of the last case alone: of a declared arithmetic, and of the specification's."""
    return shared_errors.__wrapped__(case)


def errors_in_blocks(case: Case, letter: str, precision: Precision) -> Any:
    """Find the errors of a few entries of the batch, or of a few heads, after the others."""
    blocks = cut_in_blocks(case.operation, case.recipe, case.inputs, letter)
    found = [bounds.error(case.operation.name, block, precision) for block in blocks]
    return join_blocks(case.operation, case.recipe, found, letter)


def case_of(recipe: Recipe, dtype: str) -> Case:
    """
    Find the case of a recipe in a dtype, the same one whoever asks; of large ones those of one
    operation in one dtype.
    """
    if not recipe.is_large:
        return small_case(recipe, dtype)
    return large_cases(CATALOGUE[recipe.operation].forward.name, dtype)(recipe, dtype)


small_case = lru_cache(maxsize=640)(Case)
"""More than one operation and its gradient are shown in a dtype; each may hold megabytes."""


@lru_cache(maxsize=1)
def large_cases(operation: str, dtype: str) -> Callable[[Recipe, str], Case]:
    """Keep the large cases of one operation and its gradient, and forget those of another."""
    return lru_cache(maxsize=64)(Case)


def refuse_what_is_refused(recipe: Recipe, dtype: str) -> None:
    """
    Raise ValueError where the specification refuses the call of a recipe. Of a large attention it
    is asked for one row: its shapes and kinds of numbers are those of all rows.
    """
    operation, inputs = CATALOGUE[recipe.operation], expand(recipe, dtype)
    if operation.is_attention and count_pairs(recipe.sizes) > ASKED_WHOLE:
        sizes_of(operation, inputs)
        inputs = single_row(operation, inputs, recipe.sizes["N"] - 1)
    evaluate_spec(operation, inputs)


ASKED_WHOLE = 2**14
"""Pairs of a query and a key up to which the specification is asked for everything."""


def refuse_given(operation: Operation, path: str, dtype: str) -> None:
    """
    Raise ValueError where somebody's own arrays are no arguments of an operation, or where they
    speak of gradients and are none of its gradient's.
    """
    speaks = speaks_of_gradients(read_arrays(path))
    for one in (operation, operation.gradient if speaks else None):
        if one is not None:
            refuse_what_is_refused(recipe_of_file(one, path), dtype)


def case_shown(implementation: Implementation, case: Case) -> Case:
    """
    Find the case as an implementation is shown it: nothing arrives at the weights, or the lse, of
    one that returns none.
    """
    if not (implementation.is_alone and case.operation.is_gradient):
        return case
    options = case.recipe.options | {case.operation.forward.second_result: False}
    return case_of(replace(case.recipe, options=options), case.dtype)
