"""
Cells: an implementation, a dtype and an aspect. What pytest runs as one test.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from attnverify.backends.implementation import Backend, Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import ASPECTS
from attnverify.checks.invalid_calls import calls_refused_by_spec
from attnverify.verdicts.tally import CellResult


@dataclass(eq=False)
class Cell:
    """
    An implementation, a dtype and an aspect; ``gradient`` is the implementation of the operation's
    gradient, if there is one.
    """

    implementation: Implementation
    gradient: Implementation | None
    dtype: str
    aspect: str

    @property
    def id(self) -> str:
        return f"{self.implementation.operation.name}-{self.implementation.label}-{self.dtype}"

    @property
    def full_id(self) -> str:
        """Among all cells of a run, those of backends of the same name included."""
        return f"{self.implementation.backend.source} {self.id} {self.aspect}"

    @property
    def title(self) -> str:
        """For people: ``values of softmax_online of my_kernel in float16``"""
        own = self.implementation
        return f"{self.aspect} of {own.name} of {own.backend.name} in {self.dtype}"

    def result(self) -> CellResult:
        """Build the result of this cell, before anything was judged."""
        own = self.implementation
        return CellResult(
            operation=own.operation.forward.name,
            implementation=own.name,
            backend=own.backend.name,
            how=own.how,
            dtype=self.dtype,
            aspect=self.aspect,
            slack=own.precision(self.dtype).slack if self.dtype != "bool" else 1.0,
        )


def cells(
    backends: list[Backend],
    operations: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    chapter: str | None = None,
    aspects: tuple[str, ...] = ASPECTS,
    thorough: bool = True,
) -> list[Cell]:
    """
    List every cell of the backends, ordered so that what the specification says of an operation in
    a dtype is used by all before the next; or those alone that shorter profiles judge too.
    """
    found = []
    for implementation, gradient in (
        pair for backend in backends for pair in pair_with_gradients(backend)
    ):
        operation = implementation.operation
        if chapter not in (None, operation.chapter) or (
            operations and operation.forward.name not in operations
        ):
            continue
        if implementation.thorough and not thorough:
            continue
        for dtype in operation.dtypes:
            if not dtypes or dtype in (*dtypes, "bool"):
                found += [
                    Cell(implementation, gradient, dtype, aspect)
                    for aspect in applicable_aspects(implementation, gradient)
                    if aspect in aspects
                    and (thorough or not implementation.backend.sampled or aspect in OF_KERNELS)
                ]
    return sorted(found, key=run_order)


OF_KERNELS = ("values", "gradients", "hidden NaN", "isolation")
"""The columns of the verdict that hang on what a kernel computes, and not on what launches it."""


def run_order(cell: Cell) -> tuple[int, int]:
    """
    Tell where a cell comes in a run: operations in the catalogue's order, the widest dtype first.
    """
    dtypes = cell.implementation.operation.dtypes
    place = RUN_ORDER.get(cell.implementation.operation.name, len(RUN_ORDER))
    return place, dtypes.index(cell.dtype)


RUN_ORDER = {name: place for place, name in enumerate(CATALOGUE)}


def telling_order(cell: Cell) -> tuple[int, int, int]:
    """
    Tell where a cell comes in a run that may be cut: answers before the rest of the contract, the
    dtypes in which kernels are used first.
    """
    dtype = TELLING_DTYPES.index(cell.dtype) if cell.dtype in TELLING_DTYPES else 0
    return ASPECTS.index(cell.aspect), dtype, run_order(cell)[0]


TELLING_DTYPES = ("float32", "float16", "bfloat16", "float64")


def pair_with_gradients(backend: Backend) -> Iterator[tuple[Implementation, Implementation | None]]:
    """
    Pair each forward implementation with its gradient; a gradient that comes alone is a row of its
    own.
    """
    gradients = {
        (i.operation.forward.name, i.how): i
        for i in backend.implementations
        if i.operation.is_gradient
    }
    for implementation in backend.implementations:
        if not implementation.operation.is_gradient:
            yield (
                implementation,
                gradients.pop((implementation.operation.name, implementation.how), None),
            )
    for gradient in gradients.values():
        yield gradient, gradient


def applicable_aspects(
    implementation: Implementation, gradient: Implementation | None
) -> list[str]:
    """List the columns of the verdict that an implementation can have."""
    operation = implementation.operation
    has = {
        "values": implementation is not gradient,
        "gradients": gradient is not None,
        "refusals": bool(calls_refused_by_spec(operation.name)),
        "side effects": True,
        "hidden NaN": operation.can_hide,
        "isolation": operation.can_hide_from_some,
    }
    return [aspect for aspect, applies in has.items() if applies]
