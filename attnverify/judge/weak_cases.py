"""
Trivial answers: cheap wrong ones. A case that one of them passes is weak, and is not counted as
evidence.

A trivial answer takes part only where it is a different function: ignoring the query is right where
there is one key.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.masks import causal_pairs, visible_pairs
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import is_within


def rejects_all(answers: Iterable[Any], expected: Any, bound: Any) -> bool:
    """Tell whether the comparison rejects every answer."""
    return not any(accepts(answer, expected, bound) for answer in answers)


def accepts(answer: Any, expected: Any, bound: Any) -> bool:
    """
    Tell whether the comparison accepts the answer: as many arrays of the same shapes, and their
    numbers. Gradients without that of a float mask are judged by the others.
    """
    if answer is None or expected is None:
        return answer is expected
    wanted, given = arrays(expected), arrays(answer)
    if isinstance(expected, list) and len(given) != len(wanted):
        return False
    limits: list[Any] = arrays(bound) if bound is not None else [None] * len(wanted)
    return bool(wanted) and all(
        g.shape == w.shape and is_within(g, w, limit)
        for g, w, limit in zip(given, wanted, limits, strict=False)
    )


def arrays(tree: Any) -> list[ndarray]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, ndarray)]


def trivial_answers(operation: Operation, inputs: Inputs, expected: Any) -> Iterator[Any]:
    """Yield the wrong answers that apply to this case."""
    if operation.outside is not None:
        yield from operation.outside.trivial_answers(inputs, expected)
        return
    yield from simple_answers(operation, inputs, expected)
    visible = visible_pairs(operation, inputs)
    if visible is not None and operation.exact is False:
        yield from trivial_attention_answers(operation, inputs, visible)


def simple_answers(operation: Operation, inputs: Inputs, expected: Any) -> Iterator[Any]:
    """Yield those that need no call: zeros, and the right rows in other places."""
    wanted = arrays(expected)
    if operation.is_gradient and operation.chapter == "memory":  # of which all are zero
        yield [np.ones_like(x) for x in wanted]
        return
    if arrays(inputs) or any(x.any() for x in wanted):
        yield [np.zeros_like(x) for x in wanted]
    else:
        yield from answers_of_another_form(expected)
    first = wanted[0] if wanted else np.zeros(1)
    if (
        first.ndim >= 2
        and first.shape[-2] > 1
        and operation.chapter != "memory"
        and not operation.is_gradient
    ):
        rolled = [np.roll(x, 1, axis=-2) if x.ndim >= 2 else x for x in wanted]
        if first.dtype != bool or (rolled[0] != first).any():  # rows alike say it all the same
            yield rolled


def answers_of_another_form(expected: Any) -> Iterator[Any]:
    """
    Where zeros are right whatever is asked for (an empty memory): none or some, an array too few,
    a position too many.
    """
    if expected is None:
        yield [np.zeros((1, 1, 1))]
        return
    yield None
    yield expected[:-1]
    yield [np.concatenate([x, x[:, :1]], axis=1) for x in expected]


def trivial_attention_answers(
    operation: Operation, inputs: Inputs, visible: ndarray
) -> Iterator[Any]:
    """Ignore the query; see half the keys; see one key more or less than the frontier."""
    several = bool((visible.sum(axis=-1) > 1).any())
    if several and "query" in inputs and "key" in inputs:
        yield operation.reference(**inputs | {"query": np.zeros_like(inputs["query"])})
    name = operation.mask
    if name not in ("mask", "visible") or not operation.allows_none(name):
        return
    if several:
        half = np.arange(visible.shape[-1]) < (visible.shape[-1] + 1) // 2
        if (visible & ~half).any():
            yield operation.reference(**inputs | {name: visible & half})
    if several and operation.traits.causal:
        N, M = visible.shape[-2:]
        before = causal_pairs(N, M, ahead=-1)
        yield operation.reference(**inputs | {name: visible & before})
