"""Forms of a node that budgets ask for: scales, sums, what lies behind moves."""

import numpy as np
from numpy import ndarray

from attnverify.derived.tracing.node import Node

LINEAR = ("add", "subtract", "negative")


def is_scale(node: Node) -> bool:
    """Tell whether it is a product or quotient with one constant number."""
    places = {"multiply": (0, 1), "divide": (1,)}.get(node.name, ())
    return node.kind == "ew" and any(node.inputs[k].is_number for k in places)


def factor_of(node: Node) -> float:
    c = next(each for each in reversed(node.inputs) if each.is_number).number
    return (1 / c if c else np.inf) if node.name == "divide" else c


def scaled_input(node: Node) -> Node:
    """Find what a scale multiplies."""
    return next((each for each in node.inputs if not each.is_number), node.inputs[0])


def is_sum(node: Node) -> bool:
    """Tell whether it adds, scales or is a product: what a linear expression consists of."""
    return node.kind == "einsum" or node.name in LINEAR or is_scale(node)


def is_linear(node: Node) -> bool:
    return node.kind in ("move", "select") or node.name in LINEAR or is_scale(node)


def source_of(node: Node) -> Node:
    """Find what an array holds behind moves and choices, where that is one node."""
    while node.kind in ("move", "select"):
        real = [each for each in node.inputs if not each.const]
        if len(real) != 1:
            return node
        node = real[0]
    return node


def chosen_alone(node: Node) -> tuple[Node, ndarray] | None:
    """Of a choice between one node and constants: the node, and where it is chosen."""
    if node.kind != "select":
        return None
    real = [k for k in (0, 1) if not node.inputs[k].const]
    if len(real) != 1:
        return None
    return node.inputs[real[0]], node.condition if real[0] == 0 else ~node.condition


def follows_mean(node: Node) -> bool:
    """Tell whether it is x - mean(x): the mean is a sum of its own, nothing is added on top."""
    sources = [source_of(each) for each in node.inputs]
    inner = [source_of(scaled_input(each)) if is_scale(each) else each for each in sources]
    return node.name in ("add", "subtract") and any(each.kind == "sum" for each in inner)


def goes_on(node: Node) -> bool:
    """Tell whether a chain of additions and scalings goes on here."""
    return node.name in LINEAR or is_scale(node)
