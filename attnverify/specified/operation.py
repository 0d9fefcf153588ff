"""A specification as an operation of the catalogue."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.bounds.softmax_rows import added
from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.outside import Inputs, Mutant, Number
from attnverify.catalogue.pytrees import leaves
from attnverify.catalogue.traits import CHECKS, DTYPES, Traits
from attnverify.derived import Derived, derive, derive_gradient
from attnverify.derived.gradient import Collect
from attnverify.derived.gradient import added as added_up
from attnverify.derived.legal import climb
from attnverify.inputs.recipe import Recipe
from attnverify.precision import Precision
from attnverify.specified.drawing import (
    FAMILIES,
    LAYOUTS,
    draw_sizes,
    expand_arguments,
    fixed_sizes,
)
from attnverify.specified.form import Form
from attnverify.specified.mutants.source import mutants_of, numbers_of_source
from attnverify.specified.mutants.steps import numbers_of_steps
from attnverify.specified.reading import (
    Argument,
    as_results,
    with_whole_numbers,
)

CHAPTER = "outside"
SEEDS = range(2**16)
STEPS = 60
"""Legal evaluations that are looked at before a failure is told."""
TRAITS = Traits(
    tuple(FAMILIES), skipped=dict.fromkeys(CHECKS, "it comes from outside of the catalogue")
)


@dataclass(frozen=True)
class SpecifiedOperation(Operation):
    """
    An operation that is read off somebody's function, of this form; ``source`` is the file it was
    read from, with its name.
    """

    form: Form
    source: str = ""

    @property
    def outside(self) -> "SpecifiedOperation":
        return self

    @property
    def own(self) -> Callable[..., Any]:
        """The function in the user's file."""
        return self.form.function

    @property
    def described(self) -> tuple[Argument, ...]:
        """What its annotations say of each argument of the forward function."""
        return self.form.arguments

    @cached_property
    def run(self) -> Callable[..., Any]:
        """The function in NumPy: itself, or what follows its operations of PyTorch."""
        return self.form.in_numpy(self.own)

    @cached_property
    def floats(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.described if one.kind == "float")

    # what the catalogue asks of an operation

    @property
    def reference(self) -> Callable[..., Any]:
        return self.specification

    @property
    def traits(self) -> Traits:
        form = self.form
        return replace(TRAITS, wide=form.wide, wide_outputs=form.wide_outputs)

    @property
    def letters(self) -> dict[str, str]:
        return {letter: f"size {letter}" for letter in sorted(self.sizes)}

    @property
    def sizes(self) -> frozenset[str]:
        return frozenset(letter for one in self.described for letter in one.letters)

    @property
    def domains(self) -> dict[str, Domain]:
        return {}  # what its numbers may be, it draws itself

    @property
    def dtypes(self) -> tuple[str, ...]:
        return (self.form.dtype,) if self.form.dtype else DTYPES

    mask = None
    takes_dtype = is_attention = is_score = has_heads = has_memory = False
    can_hide = can_hide_from_some = False

    def skips(self, check: str) -> str | None:
        return TRAITS.skipped.get(check)

    # what it brings with it

    @property
    def undeclared(self) -> str:
        return self.form.undeclared

    def fitted(self, sizes: dict[str, int]) -> dict[str, int]:
        return self.form.fitted(sizes)

    def draw(self, choose: Callable[[Sequence[Any]], Any]) -> dict[str, Any]:
        """Draw the parts of a recipe."""
        return {
            "sizes": self.fitted(draw_sizes(choose, self._letters)),
            "values": {"family": choose(tuple(FAMILIES)), "seed": choose(SEEDS)},
            "layout": {"kind": choose(LAYOUTS), "seed": choose(SEEDS)},
            "options": {one.name: choose(one.choices) for one in self._numbers},
        }

    def fixed(self) -> Iterator[dict[str, Any]]:
        """List what every implementation meets: sizes, families, choices, layouts."""
        sizes = map(self.fitted, fixed_sizes(self._letters))
        usual, *others = {tuple(each.items()): each for each in sizes}.values()
        options = {one.name: one.choices[0] for one in self._numbers}
        plain = {"sizes": usual, "values": {"family": "normal", "seed": 7}, "options": options}
        yield plain
        yield from (plain | {"sizes": sizes} for sizes in others)
        for family in FAMILIES:
            yield plain | {"values": {"family": family, "seed": 8}}
        for one in self._numbers:
            for choice in one.choices[1:]:
                yield plain | {"options": options | {one.name: choice}}
        for kind in dict.fromkeys(LAYOUTS):
            yield plain | {"layout": {"kind": kind, "seed": 1}}

    @property
    def _letters(self) -> list[str]:
        return sorted(self.sizes)

    @property
    def _numbers(self) -> list[Argument]:
        return [one for one in self.described if one.kind == "number" and len(one.choices)]

    def expand(self, recipe: Recipe, dtype: str) -> Inputs:
        """Make the arguments of a recipe, what arrives at the outputs of a gradient first."""
        rng = np.random.default_rng(recipe.values["seed"])
        inputs = expand_arguments(self.described, recipe, rng)
        if not self.is_gradient:
            return inputs
        outputs = leaves(self.forward.specification(**inputs))
        shapes = [x.shape for x in outputs if x is not None]
        names = [name for name in self.arguments if name.startswith("d_output")]
        arriving = {
            name: rng.standard_normal(shape) for name, shape in zip(names, shapes, strict=True)
        }
        return arriving | inputs

    def trivial_answers(self, inputs: Inputs, expected: Any) -> Iterator[Any]:
        """
        List cheap wrong answers, each where it is another function: zeros; the mean; an input of
        the same shape; rows moved by one.
        """
        wanted = [x for x in leaves(expected) if x is not None]
        yield [np.zeros_like(x) for x in wanted]
        if self.is_gradient:
            return
        others = [[np.full_like(x, x.mean()) for x in wanted if x.size]]
        first = wanted[0]
        same = [x for x in inputs.values() if isinstance(x, ndarray) and x.shape == first.shape]
        others += [[x, *wanted[1:]] for x in same if x.dtype.kind == "f"]
        others += [[np.roll(x, 1, axis=0) if x.ndim else x for x in wanted]]
        for answer in others:
            if len(answer) == len(wanted) and not all(
                np.array_equal(x, y, equal_nan=True) for x, y in zip(answer, wanted, strict=True)
            ):
                yield answer

    def mutants(self) -> Sequence[Mutant]:
        return mutants_of(self)

    def numbers(self) -> Sequence[Number]:
        """List the numbers of its lines, or of the steps behind a line of PyTorch."""
        followed = self.form.itself is not None
        return tuple(numbers_of_steps(self) if followed else numbers_of_source(self))

    def nearest_to_bound(self, inputs: Inputs, precision: Precision) -> float:
        """Search for the legal evaluation that comes nearest to its bound: the share it uses."""
        return climb(self.derived(inputs), precision, STEPS)

    def with_function(self, function: Callable[..., Any]) -> "SpecifiedOperation":
        """Return the same operation with another function in the place of its own."""
        return replace(self, form=replace(self.form, function=function))

    def evaluate(self, inputs: Inputs) -> Any:
        """Compute what the function, or the gradient of its graph, gives."""
        if self.is_gradient:
            return self.derived(inputs).values
        return as_results(self.run(**with_whole_numbers(inputs)))

    # its bound

    def derived(self, inputs: Inputs) -> Derived:
        """Trace it on some inputs; of a gradient, the gradient's graph."""
        if self.is_gradient:
            return self.collected(inputs)
        return derive(self.run, with_whole_numbers(inputs))

    def collected(self, inputs: Inputs, collect: Collect = added_up) -> Derived:
        """Trace a gradient, of which what arrives at a node is added up, or collected otherwise."""
        arriving = [x for name, x in inputs.items() if name.startswith("d_output")]
        rest = {name: x for name, x in inputs.items() if not name.startswith("d_output")}
        rest = with_whole_numbers(rest)
        return derive_gradient(self.run, rest, arriving, self.floats, collect=collect)

    def bound(self, precision: tuple[Precision, ...], **inputs: Any) -> Any:
        """Bound its errors, as the functions of :mod:`attnverify.bounds` do."""
        errors = partial(self.derived(inputs).errors, wide=self.form.wide_outputs)
        return added([errors(each) for each in precision]) if precision else errors
