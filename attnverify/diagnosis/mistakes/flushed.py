"""Subnormal numbers that count as 0, and the declaration under which such arithmetic passes."""

from collections.abc import Sequence
from dataclasses import fields, replace
from json import dumps
from typing import Any

from attnverify.backends.loader import Implementation
from attnverify.diagnosis import sentences as say
from attnverify.diagnosis.cause import Explanation
from attnverify.diagnosis.mistakes.narrow_operands import is_allowed
from attnverify.judge.observation import Observation
from attnverify.precision import FORMATS, Format, Precision


def find_flushed(
    implementation: Implementation, wrong: Sequence[Observation]
) -> Explanation | None:
    """Find that a kernel counts subnormal numbers as 0, where that explains all that is wrong."""
    precision = implementation.precision(wrong[0].dtype)
    flushing = flushing_stages(precision)
    if not flushing or not is_allowed(wrong, replace(precision, **flushing)):
        return None
    named = {format: name for name, format in FORMATS.items()}
    stages = {stage: named[format] for stage, format in flushing.items()}
    declared = dumps({wrong[0].dtype: stages})
    return Explanation(say.FLUSHED, say.FLUSHED_DECLARED.format(declared=declared))


def flushing_stages(precision: Precision) -> dict[str, Any]:
    """Return the stages that do not flush, as ones that do; float16 never does on a GPU."""
    formats = {field.name: getattr(precision, field.name) for field in fields(precision)}
    return {
        stage: replace(format, ftz=True)
        for stage, format in formats.items()
        if isinstance(format, Format) and not format.ftz and format.name != "float16"
    }
