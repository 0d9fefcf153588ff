"""
Arithmetic that is narrower than the dtype: which format the outputs, the weights or the operands
are in. What rounds as the implementation does is told by the bits, not by the size of the error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.inputs.recipe import Inputs
from attnverify.judge.comparison import compare
from attnverify.judge.observation import Observation
from attnverify.reference.staged_attention import evaluate, spec_stages

NARROWER = {
    "float64": ("float32", "float16", "bfloat16"),
    "float32": ("float16", "bfloat16"),
}
FEW = 16
"""So many numbers at least must all be of a format before it is said to be theirs."""


def output_format(seen: Sequence[Observation]) -> Explanation | None:
    """
    Return the narrower format that every element of the outputs is in, where the expected ones are
    not.
    """
    wrong = [observation for observation in seen if observation.wrong]
    if not wrong or wrong[0].recipe.operation not in CATALOGUE:
        return None
    for dtype in reversed(NARROWER.get(wrong[0].dtype, ())):
        if all(all(holds(dtype, x) for x in o.actual if x.dtype != bool) for o in wrong):
            stored = sum(np.count_nonzero(~fits(dtype, x)) for o in wrong for x in o.expected)
            if stored >= FEW and near(dtype, wrong):
                words = say.STORED_IN.format(dtype=dtype)
                return Explanation(say.ARITHMETIC.format(dtype=dtype), words)
    return None


def fits(dtype: str, x: ndarray) -> ndarray:
    with np.errstate(all="ignore"):
        return (round_to(x, dtype) == x) | ~np.isfinite(x)


def holds(dtype: str, x: ndarray) -> bool:
    return bool(fits(dtype, x).all())


def near(dtype: str, wrong: Sequence[Observation]) -> bool:
    """Whether the outputs are not far from what is expected, for numbers of that format."""
    digits = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.2}[dtype]
    for o in wrong:
        if len(o.actual) != len(o.expected):
            return False
        for actual, expected in zip(o.actual, o.expected, strict=True):
            if actual.shape != expected.shape:
                return False
            size = np.abs(expected[np.isfinite(expected)]).max(initial=1e-30)
            if not compare(actual, expected, np.full(expected.shape, digits * size)).passed:
                return False
    return True


def rounding_mistakes(operation: Operation) -> Iterator[tuple[str, Callable[[Observation], Any]]]:
    """Operands that are rounded before they are multiplied."""
    for name, rounding in ROUNDINGS.items():
        yield (
            say.STAGE_ROUNDED.format(stage="inputs", name=name),
            with_rounded_inputs(operation, rounding),
        )
        for argument in PRODUCTS if operation.is_staged else ():
            if argument in operation.arguments:
                words = describe_rounding(argument, "operand", name)
                yield words, with_rounded_inputs(operation, rounding, argument)
    if operation.is_staged and not operation.is_gradient and "value" in operation.arguments:
        yield "both products in TF32", partial(with_products_in_tf32, operation)


def describe_rounding(stage: str, field: str, name: str) -> str:
    """What is rounded, and which field of PRECISION says so; "" for none."""
    words = say.STAGE_ROUNDED.format(stage=stage, name=name)
    return say.ALLOWED.format(stage=words, field=field, declared=name.lower()) if field else words


def to_tf32(x: ndarray) -> ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32).astype(np.float64), x)


ROUNDINGS: dict[str, Callable[[ndarray], ndarray]] = {
    "TF32": to_tf32,
    "float16": lambda x: round_to(x, "float16"),
    "bfloat16": lambda x: round_to(x, "bfloat16"),
    "float32": lambda x: round_to(x, "float32"),
}
PRODUCTS = ("query", "key", "value")


def rounded_inputs(inputs: Inputs, rounding: Callable[[ndarray], ndarray]) -> Inputs:

    kept = ("mask", "attn_mask")
    return {
        name: x
        if name in kept
        else map_leaves(
            lambda x: rounding(x) if isinstance(x, ndarray) and x.dtype != bool else x, x
        )
        for name, x in inputs.items()
    }


def with_rounded_inputs(
    operation: Operation, rounding: Callable[[ndarray], ndarray], only: str = ""
) -> Callable[[Observation], Any]:
    """Return the operation of rounded inputs, or of one that is rounded."""

    def answer(seen: Observation) -> Any:
        given = {only: seen.inputs[only]} if only else seen.inputs
        return operation.reference(**seen.inputs | rounded_inputs(given, rounding))

    return answer


def with_products_in_tf32(operation: Operation, seen: Observation) -> Any:
    given = {name: x for name, x in seen.inputs.items() if name in PRODUCTS}
    stages = spec_stages(operation, seen.inputs | rounded_inputs(given, to_tf32), seen.dtype)
    return evaluate(replace(stages, stored=to_tf32))
