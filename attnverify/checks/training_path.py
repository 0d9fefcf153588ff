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
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

from attnverify import bounds
from attnverify.backends.array_libraries import split_gradients
from attnverify.backends.declarations import NO_GRADIENT
from attnverify.backends.loader import Implementation
from attnverify.bounds.error_rules import rounding_error
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.inputs.fixed_cases import fixed_mask, fixed_recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import call, to_backend_arrays
from attnverify.judge.judging import compare_outputs, failure_kind
from attnverify.reference.oracle import evaluate_spec

Check = Callable[[Implementation, str], None]
Subset = frozenset[int]

FEW = 4
"""Inputs that are drawn to be alone, or to be left out, where an operation has many."""

DRAWN = 2
"""Subsets that are drawn beside these."""


def training_checks(operation: str, seed: int) -> list[tuple[str, Check]]:
    """The checks of a gradient that a library's autograd takes."""
    if not CATALOGUE[operation].is_gradient:
        return []
    return [
        ("training: gradients of some inputs", partial(judge_some_inputs, operation, seed)),
        ("training: a second backward pass", partial(judge_second_backward, operation)),
        ("training: gradients added to others", partial(judge_added, operation)),
    ]


def has_training_path(implementation: Implementation) -> bool:
    """Whether its gradients are PyTorch's own, of a function that is there to be called."""
    library, forward = implementation.backend.library, forward_of(implementation)
    return library is not None and library.name == "torch" and forward is not None


def forward_of(implementation: Implementation) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(implementation.function, "forward", None)
    return found


def training_case(operation: str, dtype: str) -> Case:
    """A small case, without a mask where it may be left out: a path without one has a graph too."""
    op = CATALOGUE[operation]
    mask = fixed_mask(op, "random") if op.mask and op.requires(op.mask) else None
    return case_of(fixed_recipe(op, {}, "normal", mask), dtype)


def judge_some_inputs(
    operation: str, seed: int, implementation: Implementation, dtype: str
) -> None:
    """
    Require outputs and gradients to be right whichever inputs need a gradient: each alone, all but
    one, all, none, and some that are drawn.
    """
    case = training_case(operation, dtype)
    expected, limits = gradients_of(case, implementation)
    forward = forward_expectation(case, implementation)
    for words, subset in subsets(len(expected), Random(f"{operation} {seed}"), implementation):
        outputs, grads = made_by(implementation, case, partial(one_step, implementation, subset))
        hold(implementation, dtype, outputs, *forward, f"output while a graph records {words}")
        for number in sorted(subset):
            path = f"gradient {number} while gradients are asked of {words}"
            hold(implementation, dtype, grads[number], expected[number], limits[number], path)


def judge_second_backward(operation: str, implementation: Implementation, dtype: str) -> None:
    """Require the second backward pass through a graph that was retained to be right too."""
    case = training_case(operation, dtype)
    expected, limits = gradients_of(case, implementation)
    found = made_by(implementation, case, partial(second_backward, implementation))
    hold(implementation, dtype, found, expected, limits, "second backward pass, gradient")


def judge_added(operation: str, implementation: Implementation, dtype: str) -> None:
    """Require the gradients of two calls, each added to what is there, to be 1 + g + g."""
    case = training_case(operation, dtype)
    expected, limits = gradients_of(case, implementation)
    fmt = implementation.precision(dtype).storage
    wanted, allowed = [], []
    for g, E in zip(expected, limits, strict=True):
        once = rounding_error(1 + g, E, fmt)
        wanted.append(1 + 2 * g)
        allowed.append(rounding_error(1 + 2 * g, once + E, fmt))
    found = made_by(implementation, case, partial(added_gradients, implementation))
    hold(implementation, dtype, found, wanted, allowed, "gradients of two calls added to 1")


def subsets(
    count: int, rng: Random, implementation: Implementation
) -> Iterator[tuple[str, Subset]]:
    """Which inputs need a gradient, in words; few where a machine emulates each call."""
    everything, few = frozenset(range(count)), FEW if implementation.backend.machine is None else 1
    chosen = range(count) if count <= few else sorted(rng.sample(range(count), few))
    yield "all inputs", everything
    yield "no input", frozenset()
    for number in chosen:
        yield f"input {number} alone", frozenset([number])
        yield f"all but input {number}", everything - {number}
    for _ in range(DRAWN if count > 2 else 0):
        drawn = frozenset(rng.sample(range(count), rng.randrange(2, count)))
        yield f"inputs {', '.join(map(str, sorted(drawn)))}", drawn


def gradients_of(case: Case, implementation: Implementation) -> tuple[list[Any], list[Any]]:
    """What is expected of each gradient, one after the other, and the bounds."""
    limits = case.bounds(implementation.precision(case.dtype))
    return list(leaves(case.expected)), list(leaves(limits))


def forward_expectation(case: Case, implementation: Implementation) -> tuple[Any, Any]:
    """What is expected of the operation whose gradient this is, on the same inputs; its bounds."""
    operation: Operation = implementation.operation.forward
    inputs = {name: x for name, x in case.inputs.items() if not name.startswith("d_")}
    own = Implementation(implementation.backend, operation, implementation.how, lambda: None)
    expected = evaluate_spec(operation, inputs)
    if operation.exact:
        return expected, None
    return expected, bounds.bound(operation.name, inputs, own.precision(case.dtype))


def made_by(implementation: Implementation, case: Case, step: Callable[..., Any]) -> Any:
    """Make a step of training with the inputs of a case, where its kernels run."""
    if not has_training_path(implementation):
        raise Unsupported("its gradients are not PyTorch's own")
    if (machine := implementation.backend.machine) is not None:
        step = machine.runs(step)
    given = to_backend_arrays(implementation, case)
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
