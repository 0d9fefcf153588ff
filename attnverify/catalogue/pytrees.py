"""Arguments and results are trees of lists, tuples, mappings and arrays; this walks them."""

from collections.abc import Callable, Iterator
from typing import Any


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
