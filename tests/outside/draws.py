"""Arguments for a specification from outside: letters are sizes, numbers of a few families."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.derived import Derived, derive, derive_gradient

FAMILIES: dict[str, Callable[[ndarray], ndarray]] = {
    "normal": lambda x: x,
    "spread": lambda x: 4 * x,
    "offset": lambda x: x + 8,
    "small": lambda x: x / 64,
    "lattice": lambda x: np.round(2 * x) / 2,
    "one_signed": np.abs,
}


def draw(specification: Callable[..., Any], dtype: str, seed: int) -> dict[str, Any]:
    """Draw the array arguments of a specification."""
    rng = np.random.default_rng(seed)
    sizes = {c: int(rng.choice([1, 2, 3, 4, 5, 8, 9])) for c in "BNMFDEGHIV"}
    sizes["V"] = 9
    family = FAMILIES[str(rng.choice(list(FAMILIES)))]
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(specification).parameters.items():
        annotation = parameter.annotation
        annotation = getattr(annotation, "__origin__", annotation)
        if hasattr(annotation, "dim_str"):
            axes = annotation.dim_str.split()
            shape = [int(axis[:-1] or 1) * sizes[axis[-1]] for axis in axes]
            if "bool" in annotation.dtypes:
                given[name] = rng.random(shape) < 0.7
            elif "float64" in annotation.dtypes:
                given[name] = round_to(family(rng.standard_normal(shape)), dtype)
            else:
                given[name] = rng.integers(0, sizes["V"], shape)
    return given


def floats(given: dict[str, Any]) -> list[str]:
    return [name for name, x in given.items() if x.dtype.kind == "f"]


def gradient_of(
    specification: Callable[..., Any], given: dict[str, Any], dtype: str, seed: int = 0
) -> tuple[Derived, list[ndarray]]:
    """Derive the gradients of a specification, and what they are multiplied with."""
    rng = np.random.default_rng(seed)
    shapes = [node.shape for node in derive(specification, given).nodes]
    d_outputs = [round_to(rng.standard_normal(shape), dtype) for shape in shapes]
    return derive_gradient(specification, given, d_outputs, floats(given)), d_outputs
