r"""
Factors of gradients and of layers: one that is off by less than any single element shows.

The residual of a call is projected on what a factor would change: of a gradient on the gradient
itself, and on what the mean that a softmax takes off each row has in it, of a layer on the
derivative of its output by the logarithm of each parameter's factor,

.. math:: \hat\alpha = \langle G, o - \bar o \rangle / \langle G, G \rangle.

A rounding inside of a gradient moves many of its elements at once, so that nothing within a call
may be taken as independent. Calls are: the standard error is that of the mean over ``CALLS`` of
them, drawn apart, and ``ERRORS_OF_FEW`` of it are wanted, beyond which Student's distribution of so
many leaves one in ten million. Where that leaves too large an error for the goal, as many calls are
made as it takes, up to ``MOST_CALLS``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.bounds import error
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import leaves
from attnverify.checks.systematic_error import STEP, Measurement, allowed_rounding
from attnverify.inputs.expand import expand
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import arrays_of_call, call
from attnverify.judge.judging import checked_output
from attnverify.precision import REFERENCE
from attnverify.reference import gradients
from attnverify.timing import account_for

Case = Callable[[Implementation, str], None]
Directions = dict[str, tuple[int, ndarray, ndarray]]
"""
By the name of a factor: the place of an output, what is expected of it, and its derivative by the
logarithm of the factor.
"""

CALLS = 24
MOST_CALLS = 192
ERRORS_OF_FEW = 7.6
GOAL_OF_GRADIENT, GOAL_OF_LAYER = 5e-3, 1e-2
"""The errors of factors that should be noticed in the halves; wider dtypes are far below."""
ALIKE = 0.8
"""Share of what the best factor explains from which another one is told beside it."""

SIZES = {"B": 2, "H": 4, "N": 40, "M": 56, "D": 16, "E": 16, "Q": 12, "K": 12, "A": 8, "P": 56}
SIZES |= {"F": 24, "S": 16, "L": 1}


def has_projected_factors(operation: Operation) -> bool:
    return operation.is_gradient or bool(operation.traits.parameters)


def projected_factor_checks(operation: str, profile: str, seed: int) -> list[tuple[str, Case]]:
    """One check that measures every factor of a gradient or a layer; none in the quick profile."""
    if profile == "quick" or not has_projected_factors(CATALOGUE[operation]):
        return []
    return [("systematic: every factor", partial(judge_factors, operation, seed))]


def judge_factors(operation: str, seed: int, implementation: Implementation, dtype: str) -> None:
    """Raise Disagreement if a factor is systematically off."""
    accuse_significant(measure_projected(implementation, dtype, seed))


def accuse_significant(measured: dict[str, Measurement]) -> None:
    """
    Raise Disagreement for the factor that explains most of the error, if one is off; for several
    where they explain about as much.
    """
    off = {name: found for name, found in measured.items() if found.significant}
    if off:
        most = max(off.values(), key=lambda found: found.explained)
        names = [name for name, found in off.items() if found.explained >= ALIKE * most.explained]
        raise Disagreement(
            f"{' or '.join(names)} is {most}; the declared arithmetic rounds it by "
            f"{most.allowed:.1e} at most",
            "systematic error",
        )


def measure_projected(
    implementation: Implementation, dtype: str, seed: int
) -> dict[str, Measurement]:
    """Every factor of the operation, measured in several calls."""
    operation = implementation.operation
    weights = not implementation.is_alone

    def calls(numbers: range) -> Iterator[tuple[Inputs, Directions]]:
        for number in numbers:
            drawn = operation.name, dtype, number, weights
            yield drawn_inputs(*drawn), directions(*drawn)

    first = calls(range(CALLS * seed, CALLS * (seed + 1)))
    further = calls(range(FURTHER + MOST_CALLS * seed, FURTHER + MOST_CALLS * (seed + 1)))
    goal = GOAL_OF_GRADIENT if operation.is_gradient else GOAL_OF_LAYER
    return measure_calls(implementation, dtype, first, further, goal)


FURTHER = 10**6
"""The first number of the calls that are drawn where ``CALLS`` are too few."""


def measure_calls(
    implementation: Implementation,
    dtype: str,
    calls: Iterable[tuple[Inputs, Directions]],
    further: Iterable[tuple[Inputs, Directions]] = (),
    goal: float = 1.0,
) -> dict[str, Measurement]:
    """
    Measure every factor for which the calls name a direction; in further calls too, as many as it
    takes to notice an error as large as the goal, unless those are more than ``MOST_CALLS``.
    """
    found: dict[str, list[tuple[float, float]]] = {}

    def measure(calls: Iterable[tuple[Inputs, Directions]]) -> dict[str, Measurement]:
        for inputs, columns in calls:
            outputs = _call(implementation, inputs, columns, dtype)
            for name, (output, expected, column) in outputs.items():
                found.setdefault(name, []).append(project(output - expected, column))
        allowed = allowed_rounding("slopes", implementation.precision(dtype), _sized(inputs))
        return {name: _measurement(each, allowed) for name, each in found.items()}

    measured = measure(calls)
    wanted = max((each.calls_for(goal, CALLS) for each in measured.values()), default=0)
    if CALLS < wanted <= MOST_CALLS and not any(each.significant for each in measured.values()):
        measured = measure(islice(further, wanted - CALLS))
    return measured


def project(residual: ndarray, column: ndarray) -> tuple[float, float]:
    """The coefficient of a residual on a direction, and how much of its square is along it."""
    along = float(np.vdot(column, residual))
    square = max(float(np.vdot(column, column)), 1e-300)
    return along / square, along**2 / square


def _measurement(found: list[tuple[float, float]], allowed: float) -> Measurement:
    shares, explained = np.transpose(found)
    deviation = float(np.std(shares, ddof=1)) / len(shares) ** 0.5
    return Measurement(
        float(np.mean(shares)), deviation, allowed, ERRORS_OF_FEW, float(np.mean(explained))
    )


def _sized(inputs: Inputs) -> Inputs:
    """Return the inputs under the names by which the rounding of an accumulator is told."""
    x = inputs.get("query", inputs.get("x"))
    return {"query": x, "key": inputs.get("key", x)}


@lru_cache(maxsize=64)
def drawn_inputs(operation: str, dtype: str, number: int, weights: bool = True) -> Inputs:
    """
    Return a well-conditioned call, under a float mask of ordinary numbers where it has a gradient;
    without ``weights`` nothing arrives at them.
    """
    op = CATALOGUE[operation]
    takes_bias = op.is_gradient and op.mask == "mask"
    axes = "N M"
    mask = {"pattern": "random", "axes": axes, "form": "finite", "seed": number}
    recipe = fixed_recipe(op, SIZES, "normal", mask if takes_bias else None, 1000 + number)
    if not weights and "d_weights" in op.axes:
        recipe = replace(recipe, options=recipe.options | {"weights": False})
    inputs = expand(recipe, dtype)
    if "w_score" in inputs:  # the tanh of what is larger is flat
        return inputs | {name: inputs[name] / 8 for name in ("query", "key")}
    if "w_query" in inputs.get("parameters", ()):  # the softmax of scores without a scale, too
        return inputs | {"parameters": {name: x / 8 for name, x in inputs["parameters"].items()}}
    return inputs


@lru_cache(maxsize=64)
def directions(operation: str, dtype: str, number: int, weights: bool = True) -> Directions:
    """Compute the directions of a drawn call."""
    inputs = drawn_inputs(operation, dtype, number, weights)
    return directions_of(CATALOGUE[operation], inputs, rounding_of(operation, dtype, weights))


@lru_cache(maxsize=4)
def rounding_of(operation: str, dtype: str, weights: bool = True) -> list[float]:
    """
    Bound what the reference rounds anywhere in each output of the first call: the others are drawn
    alike, and a direction is orders of magnitude larger or none at all.
    """
    first = drawn_inputs(operation, dtype, 0, weights)
    return [float(np.max(own)) for own in own_rounding(CATALOGUE[operation], first)]


def own_rounding(op: Operation, inputs: Inputs) -> list[ndarray]:
    """Bound what the reference itself rounds in each output."""
    with account_for("oracle"):
        if op.exact:
            return [np.zeros(()) for _ in leaves(op.reference(**inputs))]
        return [*leaves(error(op.name, inputs, REFERENCE))]


def directions_of(op: Operation, inputs: Inputs, rounding: Sequence[Any]) -> Directions:
    """
    Compute the directions of a gradient, or of a layer by each of its parameters.

    Of what is nothing but the reference's own rounding there is none: the keys' bias moves every
    score of a row alike.
    """
    with account_for("oracle"):
        expected = list(leaves(op.reference(**inputs)))
        if op.is_gradient:
            columns = {f"gradient {place}": (place, x) for place, x in enumerate(expected)}
            columns |= {ROW_MEAN: (0, by_row_mean(op, inputs))} if op.is_attention else {}
            return {
                name: (place, expected[place], x)
                for name, (place, x) in columns.items()
                if np.any(np.abs(x) > rounding[place])
            }
        found = {"output": (0, expected[0], expected[0])}
        for name, scaled in factors_of_parameters(inputs["parameters"]).items():
            above, below = (
                next(leaves(op.reference(**inputs | {"parameters": changed})))
                for changed in _scaled(inputs["parameters"], scaled)
            )
            column = (above - below) / (2 * STEP)
            if np.any(np.abs(column) > rounding[0] / STEP):
                found[name] = (0, expected[0], column)
        return found


ROW_MEAN = "row mean"
"""The factor of what a softmax takes off the gradient of each row's weights."""


def by_row_mean(op: Operation, inputs: Inputs) -> ndarray:
    """
    Compute the part of the first gradient that a row's mean has: the gradient is linear in it, and
    twice the mean takes it off once more.
    """
    gradient = getattr(gradients, op.name)
    double = lambda weights, d_weights: 2 * gradients.row_mean(weights, d_weights)
    with np.errstate(all="ignore"):
        part: ndarray = gradient(**inputs, row_mean=double)[0] - gradient(**inputs)[0]
    return part


def factors_of_parameters(parameters: Any) -> dict[str, tuple[str, ...]]:
    """
    By the name of a factor, the parameters that it multiplies: each by itself, and a whole
    projection of queries, whose factor is that of the scores.
    """
    first = parameters[0] if isinstance(parameters, list) else parameters
    having = [name for name, x in first.items() if x is not None]
    factors = {name: (name,) for name in having}
    queries = tuple(name for name in having if name.startswith("q_proj."))
    return factors | ({"scale": queries} if len(queries) > 1 else {})


def _scaled(parameters: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Return the parameters with some of them a little larger, and a little smaller."""
    for gain in (1 + STEP, 1 - STEP):
        if isinstance(parameters, list):
            yield [layer | {name: layer[name] * gain for name in names} for layer in parameters]
        else:
            yield parameters | {name: parameters[name] * gain for name in names}


def _call(
    implementation: Implementation, inputs: Inputs, columns: dict[str, Any], dtype: str
) -> dict[str, tuple[ndarray, ndarray, ndarray]]:
    """By the name of a factor: what came, what was expected, and the direction."""
    given = arrays_of_call(implementation, inputs, dtype)
    outputs = list(leaves(call(implementation, given)))
    found = {}
    for name, (place, expected, column) in columns.items():
        if place >= len(outputs):
            raise Unsupported("fewer outputs than expected: told elsewhere")
        own = implementation.operation.dtype_of_output(place, dtype)
        x = checked_output(outputs[place], expected, own, implementation, name)
        if not np.isfinite(x).all():
            raise Unsupported("not finite: told elsewhere")
        found[name] = (x, expected, column)
    return found
