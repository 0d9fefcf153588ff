"""The instructions, one module for each family; importing them registers their builders."""

from attnverify.ptx.instructions import (
    approximate,
    atomics,
    bulk,
    comparisons,
    control,
    conversions,
    floats,
    loads,
    matrix,
    printing,
    warps,
    whole,
)

__all__ = [
    "approximate",
    "atomics",
    "bulk",
    "comparisons",
    "control",
    "conversions",
    "floats",
    "loads",
    "matrix",
    "printing",
    "warps",
    "whole",
]
