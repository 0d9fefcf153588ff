"""
Operands that are read in a narrower format than they have, as TF32 does it, and the declaration
under which such arithmetic passes.

A kernel that reads an input in a format cannot tell it from the input rounded to that format: its
answer stays the same, bit for bit. That is asked only where the errors are no larger than the
bound of such operands allows; what ignores the input altogether is further away than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from attnverify.backends.implementation import Implementation
from attnverify.catalogue.dtypes import round_to
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.call_budget import CallBudget
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.declaring import declare
from attnverify.diagnosis.mistakes.arithmetic import to_tf32
from attnverify.judge.comparison import compare
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.observation import Observation, arrays, observe_answer
from attnverify.precision import FORMATS, Precision

ASKED = ("value", "x", "key", "score")
"""The input that is rounded: the first of these that there is."""


@dataclass(frozen=True)
class OperandFormat:
    """A format of operands: what it is called and declared as, and how a kernel comes to it."""

    name: str
    declared: str
    rounding: Callable[[ndarray], ndarray]


def to_tf32_by_truncation(x: ndarray) -> ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), bits.view(np.float32).astype(np.float64), x)


def _rounded_to(dtype: str) -> OperandFormat:
    return OperandFormat(dtype, dtype, lambda x: round_to(x, dtype))


NARROWER: dict[str, tuple[OperandFormat, ...]] = {
    "float64": (_rounded_to("float32"),),
    "float32": (
        _rounded_to("bfloat16"),
        _rounded_to("float16"),
        OperandFormat("TF32", "tf32", to_tf32),
        OperandFormat("TF32", "tf32", to_tf32_by_truncation),
    ),
}
"""The coarsest first: what reads bfloat16 does not see the digits of TF32 either."""


SMALL = 2.0**-16
"""So much smaller is the input that is rounded: float16 has few digits there, TF32 has all."""


SEEN = 16
"""So many roundings must the digits make of an answer, for one that stays the same to say much."""


def find_narrow_operands(
    implementation: Implementation, wrong: Sequence[Observation], budget: CallBudget
) -> Explanation | None:
    """
    Find the format in which a kernel reads its operands, where that explains all that is wrong.
    """
    seen = max(wrong, key=lambda o: o.size)
    name = next((name for name in ASKED if isinstance(seen.inputs.get(name), ndarray)), None)
    formats = [
        narrow
        for narrow in NARROWER.get(seen.dtype, ())
        if is_allowed(wrong, with_operands(implementation, seen.dtype, narrow))
    ]
    if name is None or not formats or not budget.affords():
        return None
    probe = Probe(implementation, seen, name, make_small(seen.inputs[name], seen.dtype))
    before = probe.answer(probe.small)
    if before is None or not any(np.any(np.isfinite(x) & (x != 0)) for x in before):
        return None  # zeros do not change with any input
    for narrow in formats:
        rounded = narrow.rounding(probe.small)
        if probe.shows(rounded) and budget.affords():
            again = probe.answer(rounded)
            if again is not None and all(
                np.array_equal(x, y, equal_nan=True) for x, y in zip(before, again, strict=True)
            ):
                return describe_operands(implementation, seen.dtype, narrow, name)
    return None


def make_small(x: ndarray, dtype: str) -> ndarray:
    """
    Return the input so much smaller, by a power of two; where it would then be subnormal, which a
    kernel may count as 0, its largest number is near that.
    """
    largest = float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))
    if not 0 < largest < FORMATS[dtype].tiny / SMALL:
        return SMALL * x
    return np.ldexp(x, int(np.log2(SMALL)) - int(np.frexp(largest)[1]))


def describe_operands(
    implementation: Implementation, dtype: str, narrow: OperandFormat, name: str
) -> Explanation:
    declared = declare(implementation, {dtype: {"operand": narrow.declared}})
    words = say.OPERANDS_DECLARED.format(name=narrow.name, argument=name, declared=declared)
    return Explanation(say.OPERANDS.format(name=narrow.name), words, declared)


@dataclass(frozen=True)
class Probe:
    """A call of an observation with one input changed; ``small`` is the input, made small."""

    implementation: Implementation
    seen: Observation
    name: str
    small: ndarray

    def shows(self, rounded: ndarray) -> bool:
        """
        Whether whoever reads every digit would answer otherwise: no other input makes the answer so
        large that the digits are lost in it.
        """
        operation, u = self.seen.case.operation, FORMATS[self.seen.dtype].u
        with np.errstate(all="ignore"):
            answers = [
                arrays(operation.reference(**self.seen.inputs | {self.name: x}))
                for x in (self.small, rounded)
            ]
        return any(
            not compare(one, other, SEEN * u * np.abs(one)).passed
            for one, other in zip(*answers, strict=True)
            if one.dtype != bool
        )

    def answer(self, x: ndarray) -> tuple[ndarray, ...] | None:
        """Return the outputs, or None where there are none to compare."""
        try:
            return observe_answer(self.implementation, self.seen, {self.name: x})
        except (Disagreement, Unsupported):
            return None


def with_operands(implementation: Implementation, dtype: str, narrow: OperandFormat) -> Precision:
    return replace(implementation.precision(dtype), operand=FORMATS[narrow.declared])


def is_allowed(wrong: Sequence[Observation], precision: Precision) -> bool:
    """Whether all that is wrong is within the bounds of another declaration."""
    return all(_is_within(o, precision) for o in wrong)


def _is_within(o: Observation, precision: Precision) -> bool:
    limits = o.case.bounds(precision)
    if limits is None or [x.shape for x in o.actual] != [x.shape for x in o.expected]:
        return False
    both = zip(o.actual, o.expected, arrays(limits)[: len(o.actual)], strict=True)
    return all(compare(*each).passed for each in both)
