"""Arguments and results are trees of lists, tuples, mappings and arrays; this walks them."""

from collections.abc import Callable, Iterator
from typing import Any

from numpy import ndarray


def leaves(tree: Any) -> Iterator[Any]:
    """Yield every leaf of a tree, None included."""
    if isinstance(tree, dict):
        for branch in tree.values():
            yield from leaves(branch)
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Rebuild the same tree with every leaf replaced."""
    if isinstance(tree, dict):
        return {name: map_leaves(function, branch) for name, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(function, branch) for branch in tree)
    return function(tree)


def differentiable_inputs(inputs: Any) -> Iterator[str]:
    """Yield the names of the float arrays among the inputs, but for the gradients that arrive."""
    for name, value in inputs.items() if isinstance(inputs, dict) else enumerate(inputs):
        if str(name).startswith("d_"):
            continue
        if isinstance(value, dict | list):
            yield from (f"{name}.{leaf}" for leaf in differentiable_inputs(value))
        elif isinstance(value, ndarray) and value.dtype.kind == "f":
            yield str(name)
