"""
Where the steps of ``python -m benchmarks.gpu_report`` run, what they run, and how they hold it to
the specification.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.inputs.recipe import Inputs
from attnverify.judge.case import Case, case_of
from attnverify.judge.invoke import to_backend_array
from attnverify.judge.judging import compare_with_case

Figures = dict[str, Any]

FUSED = ("triton", "cuda")
"""How the implementations are called that are kernels of our own."""


class NotRun(Exception):
    """Why a step, or what matters of it, cannot run here; the figures of what did."""

    def __init__(self, reason: str, figures: Figures | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


@dataclass(frozen=True)
class StepContext:
    """Where the steps run, how much is asked of them, and in how many seconds."""

    device: str
    quick: bool = False
    seconds: float = 600.0

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("float16", "bfloat16", "float32") if self.gpu else ("float32",)

    @property
    def sizes(self) -> dict[str, int]:
        """A few blocks with ragged ends."""
        few = {"B": 1, "H": 2, "N": 5, "M": 19, "D": 4, "E": 4, "Q": 3, "K": 2, "A": 3}
        return (
            {"B": 2, "H": 3, "N": 70, "M": 133, "D": 64, "E": 64, "Q": 32, "K": 24, "A": 48}
            if self.gpu
            else few
        )


def fused_kernels(
    here: StepContext, gradients: bool = True, source: str | None = None
) -> list[Implementation]:
    """List the kernels, forwards and backwards; on a CPU in a hurry, two of them."""
    sources = (
        [source]
        if source
        else ["torch_impl", "cupy_impl"]
        if here.gpu or not here.quick
        else ["torch_impl"]
    )
    few = None if here.gpu or not here.quick else ("alibi_attention", "transformer_xl_attention")
    return [
        implementation
        for name in sources
        for implementation in load(name).implementations
        if implementation.how in FUSED and (gradients or not implementation.operation.is_gradient)
        if few is None or implementation.operation.forward.name in few
    ]


def kernels_and_dtypes(here: StepContext, **which: Any) -> Iterator[tuple[Implementation, str]]:
    return (
        (implementation, dtype)
        for implementation in fused_kernels(here, **which)
        for dtype in here.dtypes
    )


def ordinary_case(
    here: StepContext, implementation: Implementation, dtype: str, family: str = "normal"
) -> Case:
    """Draw a case of the sizes that every step uses."""
    return case_of(fixed_recipe(implementation.operation, here.sizes, family), dtype)


def to_device(implementation: Implementation, case: Case) -> Inputs:
    return {
        name: to_backend_array(implementation, x, case.dtype) for name, x in case.inputs.items()
    }


def check_against_spec(implementation: Implementation, case: Case, outputs: Any) -> float:
    """Hold outputs to the specification; the worst share of the bound."""
    found = list(compare_with_case(outputs, case, implementation))
    for path, comparison in found:
        assert comparison.passed, f"{implementation.name} in {case.dtype}: {path}: {comparison}"
    return max(comparison.budget for _, comparison in found)


def numbers(outputs: Any, implementation: Implementation) -> list[bytes]:
    library = implementation.backend.library
    assert library is not None
    return [library.to_numpy(x).tobytes() for x in leaves(outputs)]


def random(
    operation: Operation, sizes: dict[str, int], device: str, dtype: str = "float16"
) -> Inputs:
    """
    Normal numbers in PyTorch's tensors for every float argument but a mask, made where they are
    needed.

    In memory the sequence comes first, as many models have it: then a single row of a head reaches
    as far as the whole tensor.
    """
    torch = import_module("torch")
    kind, axes = (
        getattr(torch, dtype),
        {name: axes for name, axes in operation.axes.items() if name != "mask"},
    )
    shapes = {
        name: [int(axis[:-1] or 1) * sizes[axis[-1]] for axis in text.split()]
        for name, text in axes.items()
    }
    made = {
        name: torch.randn(
            [shape[-2], *shape[:-2], shape[-1]] if len(shape) > 2 else shape,
            dtype=kind,
            device=device,
        )
        for name, shape in shapes.items()
    }
    given = {name: x.movedim(0, -2) if x.ndim > 2 else x for name, x in made.items()}
    return given | ({"align": "end"} if "align" in operation.arguments else {})
