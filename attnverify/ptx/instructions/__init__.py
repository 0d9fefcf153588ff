"""The instructions, one module for each family; importing them registers their builders."""

from attnverify.ptx.instructions import (
    approximate,
    atomics,
    comparisons,
    control,
    conversions,
    floats,
    integers,
    loads,
    matrices,
    warps,
    wgmma,
)

__all__ = [
    "approximate",
    "atomics",
    "comparisons",
    "control",
    "conversions",
    "floats",
    "integers",
    "loads",
    "matrices",
    "warps",
    "wgmma",
]
