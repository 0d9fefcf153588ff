"""
The inputs of a case: drawn once for all contestants, and on a GPU where they are needed, for a
hundred million numbers are drawn there in a moment and on the host in a quarter of a minute.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import Library
from attnverify.bench.measure.cases import Case
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import map_leaves
from attnverify.inputs.expand import expand_anew, mask_arguments, normal_arrays, scalar_arguments
from attnverify.inputs.recipe import Inputs

__all__ = ["draw_inputs", "is_on_device", "to_library", "widened", "with_fresh_values"]


def draw_inputs(case: Case, seed: int, device: str = "cpu") -> Inputs:
    """
    Draw the inputs of a case, which nobody keeps: NumPy's arrays; of a case that is meant for a
    GPU, PyTorch's on the device, but for masks.
    """
    if case.device != "cuda":
        return expand_anew(case.recipe(seed), case.dtype)
    operation, recipe, rng = CATALOGUE[case.timed], case.recipe(seed), Normals(case, seed, device)
    found = normal_arrays(operation, recipe, rng)  # type: ignore[arg-type]  # asked for no more
    found |= mask_arguments(operation, recipe, case.dtype, found)
    found |= scalar_arguments(operation, recipe)
    return {name: found[name] for name in operation.arguments if name in found}


@dataclass
class Normals:
    """Normal numbers by a seeded generator of a device, in the place of NumPy's."""

    case: Case
    seed: int
    device: str

    def __post_init__(self) -> None:
        self.torch = import_module("torch")
        self.generator = self.torch.Generator(self.device).manual_seed(self.seed)

    def standard_normal(self, shape: tuple[int, ...]) -> Any:
        """Draw numbers that the case's dtype has, in it."""
        drawn = self.torch.randn(shape, generator=self.generator, device=self.device)
        return drawn.to(getattr(self.torch, self.case.dtype))


def is_on_device(x: Any) -> bool:
    """Tell whether an input was drawn by PyTorch."""
    return hasattr(x, "untyped_storage")


def widened(tree: Any) -> Any:
    """The numbers as the specification takes them: float64, NumPy's."""
    return map_leaves(lambda x: x.cpu().double().numpy() if is_on_device(x) else x, tree)


def to_library(library: Library, x: Any, dtype: str) -> Any:
    """A copy of an array in a contestant's library, on its device; what is none as it is."""
    if isinstance(x, ndarray):
        return library.from_numpy(x.copy(), dtype)
    if not is_on_device(x):
        return x
    if library.name == "torch":
        return x.clone()
    if library.name != "cupy":
        return library.from_numpy(widened(x), dtype)
    sample = library.from_numpy(np.zeros(1), dtype)
    bits = x.clone().view(getattr(import_module("torch"), f"int{8 * x.element_size()}"))
    taken = bits.numpy() if isinstance(sample, ndarray) else import_module("cupy").from_dlpack(bits)
    return taken.view(sample.dtype)


def with_fresh_values(inputs: Inputs, rng: np.random.Generator) -> Inputs:
    """Draw the same distribution, other numbers: every float array turned by a random offset."""
    return {
        name: map_leaves(lambda x: shift_values(x, rng), value) for name, value in inputs.items()
    }


def shift_values(x: Any, rng: np.random.Generator) -> Any:
    """The array turned; what holds no numbers as it is."""
    if is_on_device(x) and x.numel() > 1:
        return x.roll(int(rng.integers(1, x.numel())))
    if not isinstance(x, ndarray) or x.dtype.kind != "f" or x.size < 2:
        return x
    return np.roll(x, int(rng.integers(1, x.size)))
