"""Subnormal numbers that count as 0, and the declaration under which such arithmetic passes."""

from collections.abc import Sequence
from dataclasses import fields, replace
from json import dumps
from typing import Any

import numpy as np

from attnverify.backends.loader import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.mistakes.narrow_operands import is_allowed
from attnverify.diagnosis.whereabouts.outputs import wrong_elements
from attnverify.judge.observation import Observation
from attnverify.precision import FORMATS, Format, Precision


def find_flushed(
    implementation: Implementation, wrong: Sequence[Observation]
) -> Explanation | None:
    """
    Find that a kernel counts subnormal numbers as 0, where that explains all that is wrong: none of
    it is a subnormal number.
    """
    if any(map(has_subnormal, wrong)):
        return None
    precision = implementation.precision(wrong[0].dtype)
    flushing = flushing_stages(precision)
    if not flushing or not is_allowed(wrong, replace(precision, **flushing)):
        return None
    named = {format: name for name, format in FORMATS.items()}
    stages = {stage: named[format] for stage, format in flushing.items()}
    declared = dumps({wrong[0].dtype: stages})
    return Explanation(say.FLUSHED, say.FLUSHED_DECLARED.format(declared=declared))


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
