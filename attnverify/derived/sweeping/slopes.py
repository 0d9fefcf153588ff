"""
Derivatives of the nodes' functions over all that rounding may make of their inputs: middle and
radius, so that |J(x)| <= |middle| + radius for every |x - x0| <= E.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.derived.budgets.state import TINIEST, Errors
from attnverify.derived.tracing.node import Node

Part = ndarray | float
Slope = tuple[Node, Part, Part]


def slopes(at: Errors, node: Node) -> list[Slope]:
    """List each input of an elementwise node, with the derivative's middle and radius."""
    if node.name in ("add", "subtract", "negative", "cast"):
        return _linear(at, node)
    return SLOPES[node.name](at, node)


def _linear(at: Errors, node: Node) -> list[Slope]:
    signs = {"subtract": (1.0, -1.0), "negative": (-1.0,)}.get(node.name, (1.0, 1.0))
    inputs = node.inputs[:1] if node in at.graph.shifted else node.inputs
    return [(each, sign, 0.0) for each, sign in zip(inputs, signs, strict=False)]


def _multiply(at: Errors, node: Node) -> list[Slope]:
    a, b = node.inputs
    if a is b:
        return [(a, 2 * a.value, 2 * at.E[a])]
    return [(a, b.value, at.E[b]), (b, a.value, at.E[a])]


def _divide(at: Errors, node: Node) -> list[Slope]:
    a, b = node.inputs
    low = np.maximum(at.lowest(b), TINIEST)
    by, slope = 1 / b.value, -node.value / b.value
    wide = (np.abs(a.value) + at.E[a]) / low**2
    return [(a, by, 1 / low - np.abs(by)), (b, slope, wide - np.abs(slope))]


def _exp(at: Errors, node: Node) -> list[Slope]:
    (x,) = node.inputs
    return [(x, node.value, node.value * np.expm1(at.E[x]))]


def _bell(at: Errors, node: Node) -> list[Slope]:
    """tanh and erf: a slope that falls as the size of the argument grows."""
    slope: Any = {
        "tanh": lambda z: 1 - np.tanh(z) ** 2,
        "erf": lambda z: 2 / np.sqrt(np.pi) * np.exp(-z * z),
    }[node.name]
    (x,) = node.inputs
    size, E = np.abs(x.value), at.E[x]
    middle = slope(size)
    most, least = slope(np.maximum(size - E, 0)), slope(size + E)
    return [(x, middle, np.maximum(most - middle, middle - least))]


def _monotone(at: Errors, node: Node) -> list[Slope]:
    derivative: Any = {
        "sqrt": lambda z: 0.5 / np.sqrt(z),
        "log": lambda z: 1 / z,
        "log1p": lambda z: 1 / (1 + z),
        "expm1": lambda z: np.exp(z),
    }[node.name]
    (x,) = node.inputs
    low, high = x.value - at.E[x], x.value + at.E[x]
    if node.name in ("sqrt", "log"):
        low = np.maximum(low, np.maximum(at.floor(x), TINIEST))
    middle = derivative(x.value)
    ends = np.maximum(np.abs(derivative(low) - middle), np.abs(derivative(high) - middle))
    return [(x, middle, ends)]


def _periodic(at: Errors, node: Node) -> list[Slope]:
    (x,) = node.inputs
    middle = np.cos(x.value) if node.name == "sin" else -np.sin(x.value)
    return [(x, middle, np.minimum(at.E[x], 2.0))]


def _larger(at: Errors, node: Node) -> list[Slope]:
    a, b = node.inputs
    first = a.value > b.value if node.name == "maximum" else a.value < b.value
    near = ~(np.abs(a.value - b.value) > at.E[a] + at.E[b]) * 1.0
    return [(a, first * 1.0, near), (b, ~first * 1.0, near)]


def _absolute(at: Errors, node: Node) -> list[Slope]:
    (x,) = node.inputs
    return [(x, np.sign(x.value), 2.0 * (np.abs(x.value) <= at.E[x]))]


def _cut(at: Errors, node: Node) -> list[Slope]:
    """A step has no derivative; where it may be taken, nothing bounds it."""
    return [(node.inputs[0], 0.0, np.where(at.E[node] > 0, np.inf, 0.0))]


SLOPES = {
    "multiply": _multiply,
    "divide": _divide,
    "exp": _exp,
    "tanh": _bell,
    "erf": _bell,
    "sqrt": _monotone,
    "log": _monotone,
    "log1p": _monotone,
    "expm1": _monotone,
    "sin": _periodic,
    "cos": _periodic,
    "absolute": _absolute,
    "maximum": _larger,
    "minimum": _larger,
    "rint": _cut,
    "floor": _cut,
    "ceil": _cut,
    "trunc": _cut,
}
