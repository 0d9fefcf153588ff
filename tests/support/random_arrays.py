"""Seeded arrays for the specification tests, so that each of them begins with one line."""

from typing import Any

import numpy as np
from numpy import ndarray


def normals(*shapes: tuple[int, ...], seed: int = 0) -> list[ndarray]:
    """One array of normal numbers for each shape."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def close(actual: Any, expected: Any, within: float = 1e-12) -> bool:
    """
    Equal up to the rounding of float64 at this size, both finite; an empty result is close to
    nothing.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    return (
        actual.shape == expected.shape
        and actual.size > 0
        and bool(np.all(np.abs(actual - expected) <= within * scale))
    )


def all_close(found: Any, wanted: Any) -> bool:
    """Each result is close to what is wanted, and infinite where that is."""
    return all(
        np.array_equal(np.isfinite(a), np.isfinite(b))
        and np.array_equal(a[~np.isfinite(a)], b[~np.isfinite(b)])
        and (not np.isfinite(b).any() or close(a[np.isfinite(a)], b[np.isfinite(b)]))
        for a, b in zip(found, wanted, strict=True)
    )
