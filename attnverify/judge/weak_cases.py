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
    """Whether the comparison rejects every answer."""
    return not any(accepts(answer, expected, bound) for answer in answers)


def accepts(answer: Any, expected: Any, bound: Any) -> bool:
    """
    Whether the comparison accepts the answer; one without the gradient of a float mask is judged by
    the others.
    """
    law, fake = arrays(expected), arrays(answer)
    limits: list[Any] = arrays(bound) if bound is not None else [None] * len(law)
    return bool(law) and all(is_within(f, e, b) for f, e, b in zip(fake, law, limits, strict=False))


def arrays(tree: Any) -> list[ndarray]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, ndarray)]


def trivial_answers(operation: Operation, inputs: Inputs, expected: Any) -> Iterator[Any]:
    """The wrong answers that apply to this case."""
    if operation.name == "init_mems":
        return
    yield [np.zeros_like(x) for x in arrays(expected)]
    first = arrays(expected)[0] if arrays(expected) else np.zeros(1)
    if (
        first.ndim >= 2
        and first.shape[-2] > 1
        and operation.chapter != "memory"
        and not operation.is_gradient
    ):
        yield [np.roll(x, 1, axis=-2) if x.ndim >= 2 else x for x in arrays(expected)]
    visible = visible_pairs(operation, inputs)
    if visible is not None and operation.exact is False:
        yield from trivial_attention_answers(operation, inputs, visible)


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
