"""
Side effects of a call: changed inputs, aliases, changed surroundings, other bits the second time.
"""

from collections.abc import Iterator
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.memory_layouts import shares_memory
from attnverify.judge import state_guard
from attnverify.judge.case import Case
from attnverify.judge.errors import Disagreement
from attnverify.judge.invoke import (
    announce,
    call,
    dtype_keyword,
    poison_memory,
    to_backend_arrays,
)
from attnverify.judge.module_contents import Values
from attnverify.judge.state_guard import Change


def judge_side_effects(
    implementation: Implementation, case: Case, around: Values | None = None
) -> None:
    """
    Inputs unchanged, outputs no alias of them, the surroundings as they were, and a second call
    that says the same.

    ``around``: the surroundings as an earlier case left them, which are held to without another
    look.
    """
    announce.get()(implementation, case.dtype, case, None)
    library = implementation.backend.library
    assert library is not None
    given = to_backend_arrays(implementation, case)
    keywords = dtype_keyword(implementation, case.dtype)
    before = [snapshot(library.to_numpy, leaf) for leaf in leaves(given)]
    poison_memory(implementation, case)
    changes: tuple[list[Change], list[Change]] = ([], [])
    around = {} if around is None else around
    first = call(implementation, given | keywords, changes[0], around)
    inputs = list(zip(leaf_paths(given), leaves(given), strict=True))
    for (name, leaf), then in zip(inputs, before, strict=True):
        if snapshot(library.to_numpy, leaf) != then:
            raise Disagreement(f"{name}: the input was changed in place")
    arrays = [(name, leaf) for name, leaf in inputs if hasattr(leaf, "shape")]
    for path, output in zip(leaf_paths({"output": first}), leaves(first), strict=True):
        for name, leaf in arrays if hasattr(output, "shape") else ():
            if shares_memory(output, leaf):
                raise Disagreement(f"{path} shares memory with the input {name}")
    state_guard.advance_random_states(around)
    second = call(implementation, given | keywords, changes[1], around)
    if left := state_guard.lasting_changes(*changes):
        raise Disagreement("; ".join(left), "surroundings")
    check_determinism(implementation, first, second)


def check_determinism(implementation: Implementation, first: Any, second: Any) -> None:
    """
    Require the same bits of a second call with the same arguments where determinism is claimed.
    """
    library = implementation.backend.library
    assert library is not None
    if implementation.backend.deterministic:
        for one, two in zip(leaves(first), leaves(second), strict=True):
            if hasattr(one, "shape") and snapshot(library.to_numpy, one) != snapshot(
                library.to_numpy, two
            ):
                raise Disagreement(
                    "a second call with the same arguments gives other bits, though DETERMINISTIC "
                    "is declared"
                )


def snapshot(to_numpy: Any, leaf: Any) -> Any:
    """Everything about an array that a call must leave as it was: bytes, shape, strides."""
    if not hasattr(leaf, "shape"):
        return leaf
    strides = (
        leaf.stride() if callable(getattr(leaf, "stride", None)) else getattr(leaf, "strides", None)
    )
    return to_numpy(leaf).tobytes(), tuple(leaf.shape), strides


def leaf_paths(tree: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every leaf: ``parameters.output.weight``, ``mems[1]``."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            yield from leaf_paths(branch, f"{path}.{name}" if path else name)
    elif isinstance(tree, (list, tuple)):
        for index, branch in enumerate(tree):
            yield from leaf_paths(branch, f"{path}[{index}]")
    else:
        yield path
