"""
What an arithmetic may be allowed to do and a file did not declare: subnormal numbers that count as
0, functions that vanish at 0 made of exponentials, a variance in one pass, exponentials of few
digits. Found where the bounds of the declaration let all that is wrong pass, and it is near them.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from attnverify.backends.implementation import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.declaring import declare
from attnverify.diagnosis.mistakes.narrow_operands import is_allowed
from attnverify.diagnosis.whereabouts.outputs import wrong_elements
from attnverify.judge.comparison import compare
from attnverify.judge.observation import Observation, arrays
from attnverify.precision import FORMATS, Format, Precision, changed


def find_flushed(
    implementation: Implementation, wrong: Sequence[Observation]
) -> Explanation | None:
    """
    Find that a kernel counts subnormal numbers as 0, where that explains all that is wrong: none of
    it is a subnormal number.
    """
    if wrong[0].dtype not in FORMATS or any(map(has_subnormal, wrong)):
        return None
    precision = implementation.precision(wrong[0].dtype)
    flushing = flushing_stages(precision)
    if not flushing or not is_allowed(wrong, replace(precision, **flushing)):
        return None
    named = {format: name for name, format in FORMATS.items()}
    stages = {stage: named[format] for stage, format in flushing.items()}
    declared = declare(implementation, {wrong[0].dtype: stages})
    return Explanation(say.FLUSHED, say.FLUSHED_DECLARED.format(declared=declared), declared)


def find_freedom(
    implementation: Implementation, wrong: Sequence[Observation]
) -> Explanation | None:
    """
    Find the freedom under whose declaration all that is wrong passes, and is near it; None of what
    is no float.
    """
    dtype = wrong[0].dtype
    precision = implementation.precision(dtype)
    if dtype not in FORMATS:
        return None
    for freedom, words in FREEDOMS.items():
        said = {name: dtype if value == ITS_DTYPE else value for name, value in freedom}
        freed = changed(precision, said)
        if freed != precision and is_allowed(wrong, freed) and is_near(wrong, freed):
            declared = declare(implementation, {dtype: said})
            told = say.FREEDOM_DECLARED.format(what=words, declared=declared)
            return Explanation(words, told, declared)
    return None


def find_narrow_step(
    implementation: Implementation, wrong: Sequence[Observation]
) -> Explanation | None:
    """
    Find that something is computed in float32 on the way to an answer in float64: what is wrong is
    within the bound of float32, and near it.
    """
    if wrong[0].dtype != "float64" or implementation.operation.exact:
        return None
    narrow = implementation.precision("float32")
    if is_allowed(wrong, narrow) and is_near(wrong, narrow, DIGITS):
        return Explanation(say.NARROW_STEP, say.NARROW_STEP_SEEN)
    return None


ITS_DTYPE = "the dtype of the call"

FREEDOMS: dict[tuple[tuple[str, Any], ...], str] = {
    (("variance", "one_pass"),): "a variance as the mean of squares less the square of the mean",
    (("tanh_form", "exponential"),): "functions that vanish at 0 made of exp and log: exp(x) - 1",
    (("maximum", "differentiated"),): "a gradient that goes through the maximum too, which only "
    "adds rounding: detach it, or stop its gradient",
    (("weights", "lse"),): "weights as exp(score - lse), where an error of the lse is one of its "
    "row",
    (("lse_merge", True),): "parts merged by exp(lse_part - lse), where an error of the lse is one "
    "of its row",
    (("bias_form", "absolute"),): "a bias by the key's position in place of its distance",
    (("step", ITS_DTYPE),): "a softmax written out in this dtype, each step stored",
    (("step", ITS_DTYPE), ("weights", "lse")): "weights as exp(score - lse) with the lse stored in "
    "this dtype, whose error is one of its row and grows with the scores: keep it in float32",
    (("exp_ulps", 128.0),): "exponentials of few digits, as __expf and -use_fast_math make them",
    (("tanh_ulps", 4096.0),): "a tanh of few digits, as tanh.approx and -use_fast_math make it, or "
    "another formula that is as near, as GELU by erf is to that by tanh",
    (("softmax", ITS_DTYPE),): "a softmax computed in this dtype",
}
"""Fields of the declared arithmetic, and what an implementation does that they allow."""

NEAR = 1 / 64
"""So much of the bound at least uses what the bound is said to be of."""


DIGITS = NEAR / 64
"""The same of a bound that allows each step what one alone is taken for."""


def is_near(wrong: Sequence[Observation], precision: Precision, share: float = NEAR) -> bool:
    """Tell whether all that this arithmetic does not let any answer pass of is near its bound."""
    telling = [o for o in wrong if o.case.is_discriminating(precision)]
    return bool(telling) and all(_share(o, o.case.bounds(precision)) >= share for o in telling)


def _share(o: Observation, limits: Any) -> float:
    """The largest error as a share of a bound."""
    found = zip(o.actual, o.expected, arrays(limits)[: len(o.actual)], strict=True)
    return max((compare(*each).budget for each in found), default=0.0)


def has_subnormal(o: Observation) -> bool:
    """Whether a wrong number is a subnormal one, which no arithmetic that flushes gives."""
    tiny = FORMATS[o.dtype].tiny
    sizes = (np.abs(actual[at]) for actual, at in zip(o.actual, wrong_elements(o), strict=False))
    return o.dtype != "float16" and any(((x > 0) & (x < tiny)).any() for x in sizes)


def flushing_stages(precision: Precision) -> dict[str, Any]:
    """Return the stages that do not flush, as ones that do; float16 never does on a GPU."""
    formats = {field.name: getattr(precision, field.name) for field in fields(precision)}
    return {
        stage: replace(format, ftz=True)
        for stage, format in formats.items()
        if isinstance(format, Format) and not format.ftz and format.name != "float16"
    }
