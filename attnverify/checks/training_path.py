"""
The training path of PyTorch: gradients asked of some inputs and not of others, the forward pass
while a graph is recorded, a second backward pass through one graph, and gradients that are added to
those that are there.

A kernel may take another path for each: it saves for its backward pass what the forward one would
not write, leaves out what nobody asks for, overwrites what it saved, or hands out a buffer that the
next call fills again. Each call is held to the same specification and the same bounds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import split_gradients
from attnverify.backends.declarations import NO_GRADIENT
from attnverify.backends.implementation import Implementation
from attnverify.bounds.error_rules import rounding_error
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.checks.call_sequences import WRONG_BY_ITSELF
from attnverify.inputs.fixed_cases import fixed_mask, fixed_recipe, pair_count
from attnverify.inputs.real.dealt_calls import usual_family
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of, case_shown
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call, to_backend_arrays
from attnverify.judge.judging import (
    compare_outputs,
    failure_kind,
    forward_implementation,
    hold_recorded,
    is_right,
)
from attnverify.judge.side_effects import leaf_paths, snapshot
from attnverify.precision import FORMATS, Format

Check = Callable[[Implementation, str], None]
Subset = frozenset[int]

FEW = 4
"""Inputs that are drawn to be alone, or to be left out, where an operation has many; of the first
call, and one of each other."""

DRAWN = 2
"""Subsets that are drawn beside these."""


def training_checks(operation: str, seed: int) -> list[tuple[str, Check]]:
    """The checks of a gradient that a library's autograd takes."""
    if not CATALOGUE[operation].is_gradient:
        return []
    return [
        ("training: gradients of some inputs", partial(judge_some_inputs, operation, seed)),
        ("training: a second backward pass", partial(judge_second_backward, operation, seed)),
        ("training: gradients added to others", partial(judge_added, operation, seed)),
    ]


def has_training_path(implementation: Implementation) -> bool:
    """Whether its gradients are PyTorch's own, of a function that is there to be called."""
    library, forward = implementation.backend.library, forward_of(implementation)
    return library is not None and library.name == "torch" and forward is not None


def forward_of(implementation: Implementation) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(implementation.function, "forward", None)
    return found


SEVERAL_TILES = {"B": 1, "H": 2, "N": 130, "M": 257, "D": 64, "E": 64, "P": 258, "F": 256}
"""Sizes of two whole tiles of 64 or of 128, and a part of another, at the width that heads have."""

FEW_PAIRS = 2**13
"""Most pairs of a query and a key in all heads of a drawn call."""

DRAWN_CALLS = 3


@lru_cache(maxsize=64)
def training_recipes(operation: str, seed: int, several: bool = True) -> tuple[Recipe, ...]:
    """
    The calls: a small one without what may be left out, one of several tiles, the same under a
    boolean mask and under a float mask, and some that are drawn. ``several``: or the small one and
    one draw.
    """
    op = CATALOGUE[operation]
    small = fixed_recipe(
        op, {}, "normal", fixed_mask(op, "random") if op.mask and op.requires(op.mask) else None
    )
    drawn = [r for r in draw_recipes(operation, "any", 10, seed) if pair_count(r) <= FEW_PAIRS]
    if not several:
        return small, *drawn[:1]
    boolean = fixed_mask(op, "random") if op.mask else None
    dropout = {"p": 0.25, "seed": 2} if "keep" in op.arguments else None
    family = usual_family(op)
    bare = fixed_recipe(op, SEVERAL_TILES, family)
    masked = replace(fixed_recipe(op, SEVERAL_TILES, family, boolean), dropout=dropout)
    if op.mask not in FLOAT_MASKS:
        return *dict.fromkeys((small, bare, masked)), *drawn[:DRAWN_CALLS]
    added = fixed_recipe(op, SEVERAL_TILES, family, {**(boolean or {}), "form": "finite"})
    return small, bare, masked, added, *drawn[:DRAWN_CALLS]


FLOAT_MASKS = ("mask", "attn_mask")
"""Masks that may be added."""


def training_cases(implementation: Implementation, seed: int, dtype: str) -> Iterator[Case]:
    """The calls as cases; few where each is emulated."""
    several = not implementation.is_emulated
    for recipe in training_recipes(implementation.operation.name, seed, several):
        yield case_shown(implementation, case_of(recipe, dtype))


def over_calls(
    judge_call: Callable[[int, Case], None], implementation: Implementation, seed: int, dtype: str
) -> None:
    """
    Judge each of the calls that is supported, and right by itself: what is not is told elsewhere.
    Unsupported where none is.
    """
    reasons = list[str]()
    for number, case in enumerate(training_cases(implementation, seed, dtype)):
        try:
            judge_call(number, case)
        except Unsupported as reason:
            reasons.append(str(reason))
        except Disagreement:
            if is_right(implementation, case):
                raise
            reasons.append(WRONG_BY_ITSELF)
    if len(reasons) > number:
        raise Unsupported(reasons[0])


def judge_some_inputs(
    operation: str, seed: int, implementation: Implementation, dtype: str
) -> None:
    """
    Require outputs and gradients to be right whichever inputs need a gradient, in each of the
    calls: each input alone, all but one, all, none, and some that are drawn.
    """

    def judge_call(number: int, case: Case) -> None:
        rng = Random(f"{operation} {seed} {number}")
        for words, subset in subsets(case, rng, implementation, few=number > 0):
            judge_subset(implementation, case, words, subset)

    over_calls(judge_call, implementation, seed, dtype)


def judge_subset(implementation: Implementation, case: Case, words: str, subset: Subset) -> None:
    expected, limits = gradients_of(case, implementation)
    step = partial(one_step, implementation, subset)
    given = to_backend_arrays(implementation, case)
    outputs, grads = made_by(implementation, given, step)
    forward = forward_implementation(implementation)
    hold_recorded(outputs, case.forward, forward, f"while a graph records {words}")
    for number in sorted(subset):
        path = f"gradient {number} while gradients are asked of {words}"
        own = implementation.operation.dtype_of_output(number, case.dtype)
        hold(implementation, own, grads[number], expected[number], limits[number], path)


def judge_second_backward(
    operation: str, seed: int, implementation: Implementation, dtype: str
) -> None:
    """Require the second backward pass through a graph that was retained to be right too."""

    def judge_call(_: int, case: Case) -> None:
        wanted = gradients_of(case, implementation)
        hold_step(implementation, case, second_backward, *wanted, "second backward pass, gradient")

    over_calls(judge_call, implementation, seed, dtype)


def judge_added(operation: str, seed: int, implementation: Implementation, dtype: str) -> None:
    """Require the gradients of two calls, each added to what is there, to be 1 + g + g."""

    def format_of(number: int) -> Format:
        own = implementation.operation.dtype_of_output(number, dtype)
        return implementation.precision(dtype).storage if own == dtype else FORMATS[own]

    def judge_call(_: int, case: Case) -> None:
        expected, limits = gradients_of(case, implementation)
        kept = [format_of(number) for number in range(len(expected))]
        once = [
            rounding_error(1 + g, E, fmt) for g, E, fmt in zip(expected, limits, kept, strict=True)
        ]
        with np.errstate(over="ignore"):  # a gradient near the largest number
            wanted = [1 + 2 * g for g in expected]
        allowed = [
            rounding_error(x, first + E, fmt)
            for x, first, E, fmt in zip(wanted, once, limits, kept, strict=True)
        ]
        path = "gradients of two calls added to 1"
        hold_step(implementation, case, added_gradients, wanted, allowed, path)

    over_calls(judge_call, implementation, seed, dtype)


def subsets(
    case: Case, rng: Random, implementation: Implementation, few: bool = False
) -> Iterator[tuple[str, Subset]]:
    """
    Which inputs need a gradient, in words, a float mask alone and left out among them; ``few``: or
    where a machine emulates each call.
    """
    names = [path for path, x in float_inputs(case)]
    everything = frozenset(range(len(names)))
    most = 1 if few or implementation.backend.machine is not None else FEW
    chosen = {*rng.sample(range(len(names)), min(most, len(names)))}
    chosen |= {number for number, name in enumerate(names) if name in FLOAT_MASKS}
    yield "all inputs", everything
    yield "no input", frozenset()
    for number in sorted(chosen):
        yield f"{names[number]} alone", frozenset([number])
        yield f"all but {names[number]}", everything - {number}
    for _ in range(min(most, DRAWN) if len(names) > 2 else 0):
        drawn = frozenset(rng.sample(range(len(names)), rng.randrange(2, len(names))))
        yield ", ".join(names[number] for number in sorted(drawn)), drawn


def float_inputs(case: Case) -> Iterator[tuple[str, ndarray]]:
    """What may need a gradient, by its path, in the order of the gradients."""
    inputs = {name: x for name, x in case.inputs.items() if not name.startswith("d_")}
    for path, x in zip(leaf_paths(inputs), leaves(inputs), strict=True):
        if isinstance(x, ndarray) and x.dtype.kind == "f":
            yield path, x


def gradients_of(case: Case, implementation: Implementation) -> tuple[list[Any], list[Any]]:
    """What is expected of each gradient, one after the other, and the bounds."""
    limits = case.bounds(implementation.precision(case.dtype))
    return list(leaves(case.expected)), list(leaves(limits))


def hold_step(
    implementation: Implementation,
    case: Case,
    step: Callable[..., Any],
    expected: Any,
    limits: Any,
    path: str,
) -> None:
    """Raise Disagreement where a step's gradients are wrong; say which inputs it wrote over."""
    given = to_backend_arrays(implementation, case)
    kept = partial(snapshot, implementation.library.to_numpy)
    before = [*map(kept, leaves(given))]
    found = made_by(implementation, given, partial(step, implementation))
    try:
        hold(implementation, case.dtype, found, expected, limits, path)
    except Disagreement as error:
        now = zip(leaf_paths(given), map(kept, leaves(given)), before, strict=True)
        changed = [name for name, after, then in now if after != then]
        if not changed:
            raise
        words = f"the backward pass writes over {', '.join(changed)}; {error}"
        told = error.kind, error.budget, error.comparison, error.path
        raise Disagreement(words, *told) from None


def made_by(implementation: Implementation, given: dict[str, Any], step: Callable[..., Any]) -> Any:
    """Make a step of training with these inputs, where its kernels run."""
    if not has_training_path(implementation):
        raise Unsupported("its gradients are not PyTorch's own")
    if (machine := implementation.backend.machine) is not None:
        step = machine.runs(step)
    return call(replace(implementation, function=step), given)


class Graph:
    """A graph as it is recorded: inputs that need a gradient, and what arrives at the outputs."""

    def __init__(
        self, implementation: Implementation, given: dict[str, Any], subset: Subset | None = None
    ) -> None:
        self.torch, numbers = import_module("torch"), iter(range(10**6))
        self.arriving, inputs = split_gradients(given)

        def needing(x: Any) -> Any:
            if not (self.torch.is_tensor(x) and x.is_floating_point()):
                return x
            number = next(numbers)
            leaf = x.detach().requires_grad_(subset is None or number in subset)
            self.inputs[number] = leaf
            return leaf

        self.inputs: dict[int, Any] = {}
        self.hands_on = "d_output" in given or "d_new_mems" not in given
        self.given, self.function = map_leaves(needing, inputs), forward_of(implementation)

    def record(self) -> Any:
        """The outputs; what arrives at them is kept for `gradients` and `accumulate`."""
        assert self.function is not None
        outputs = self.function(**self.given)
        flat = [x for x in leaves(outputs) if self.torch.is_tensor(x)]
        pairs = zip(flat, self.arriving, strict=False)
        self.ends = [(y, d) for y, d in pairs if y.requires_grad]
        asked = all(x.requires_grad for x in self.inputs.values())
        if asked and self.hands_on and not self.ends:
            raise NotImplementedError(NO_GRADIENT)
        return map_leaves(lambda x: x.detach() if self.torch.is_tensor(x) else x, outputs)

    def gradients(self, retain: bool = False) -> dict[int, Any]:
        """By each input that needs one; zero where no output hangs on it."""
        wanted = {number: x for number, x in self.inputs.items() if x.requires_grad}
        outputs, arriving = [y for y, _ in self.ends], [d for _, d in self.ends]
        found: Sequence[Any] = [None] * len(wanted)
        if outputs and wanted:
            found = self.torch.autograd.grad(
                outputs, list(wanted.values()), arriving, retain_graph=retain, allow_unused=True
            )
        zeros = self.torch.zeros_like
        pairs = zip(wanted.items(), found, strict=True)
        return {number: zeros(x) if grad is None else grad for (number, x), grad in pairs}

    def accumulate(self) -> None:
        """Add the gradients to those that are there."""
        if self.ends:
            self.torch.autograd.backward(*map(list, zip(*self.ends, strict=True)))


def one_step(implementation: Implementation, subset: Subset, **given: Any) -> Any:
    graph = Graph(implementation, given, subset)
    outputs = graph.record()
    return outputs, graph.gradients()


def second_backward(implementation: Implementation, **given: Any) -> list[Any]:
    graph = Graph(implementation, given)
    graph.record()
    try:
        graph.gradients(retain=True)
        return list(graph.gradients().values())
    except RuntimeError as error:
        if "donated" in str(error):  # what torch.compile compiled, unless it is told otherwise
            raise NotImplementedError("a compiled graph goes back once") from error
        raise


def added_gradients(implementation: Implementation, **given: Any) -> list[Any]:
    graph = Graph(implementation, given)
    for x in graph.inputs.values():
        x.grad = graph.torch.ones_like(x)
    for _ in range(2):
        graph.record()
        graph.accumulate()
    return [x.grad for x in graph.inputs.values()]


def hold(
    implementation: Implementation,
    dtype: str,
    actual: Any,
    expected: Any,
    limits: Any,
    path: str,
) -> None:
    """Raise Disagreement where something is beyond its bound."""
    outputs = compare_outputs(actual, expected, limits, dtype, implementation, path)
    for where, comparison in outputs:
        if not comparison.passed:
            kind = failure_kind(comparison)
            raise Disagreement(f"{where}: {comparison}", kind, comparison.budget, comparison, where)
