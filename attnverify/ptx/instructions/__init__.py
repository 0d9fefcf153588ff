"""The instructions, one module for each family; importing them registers their builders."""

from attnverify.ptx.instructions import (
    approximate,
    atomics,
    bits,
    comparisons,
    control,
    conversions,
    floats,
    integers,
    loads,
    matrix,
    warps,
)

__all__ = [
    "approximate",
    "atomics",
    "bits",
    "comparisons",
    "control",
    "conversions",
    "floats",
    "integers",
    "loads",
    "matrix",
    "warps",
]
