"""What a name or a path turned out to be: a backend and its implementations."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnverify.backends.array_libraries import Library
from attnverify.backends.declarations import STRICT, Declarations
from attnverify.backends.machine import Machine
from attnverify.catalogue.operation import Operation
from attnverify.precision import UNDECLARED, Precision, changed, resolve


@dataclass(eq=False)
class Backend:
    """
    What a name or path on the command line turned out to be.

    name     as it is reported; source: as it was given, to load it again; by_name: whether that is
             a module's name
    library  the four functions, its own or an adapter's
    broken   why it cannot be used at all, or None; missing: why it cannot run here, or None;
             missing_package: the one that is not installed, where that is why; line: of its file,
             where that is what cannot be read or compiled
    notes    what its author should know: names that are no operation, no PRECISION declared
    machine  what stands for the GPU that its kernels are written for, where there is none
    sampled  whether shorter profiles judge few cases of it: a column of ours on the machine
    is_compiled_too  whether the same run judges its kernels compiled, on the machine
    interpreted  whether Triton's interpreter executes the kernels of a user's file
    has_kernels  whether a user's file has kernels of Triton
    declared what it says of the dtypes and features that it is judged in
    flushing the dtypes in which its library counts subnormal numbers as 0
    compiled_for  the implementation and dtype whose shapes its library keeps compiled
    left_out  why the values of an implementation are not judged in a dtype, "" where they are
    told     of an operation, its way and a dtype the mistakes that its output was found to have
    copy     the same file, loaded once more, whose calls were all as wrong as here
    refused  of each function that cannot be called why
    unjudged  of each operation the arguments of its function that no call is given
    alone    of each function that was asked whether it returns no second result (is_alone)
    refusing  of each that raised an error for a float mask whether it does for all of them, and for
             no boolean one
    taken    of each that raised an error for so many axes how many it takes, "" where that is no
             question of their number
    """

    name: str
    source: str
    by_name: bool = False
    library: Library | None = None
    precision: Any = None
    flushing: tuple[str, ...] = ()
    implementations: list["Implementation"] = field(default_factory=list)
    broken: str | None = None
    line: int = 1
    missing: str | None = None
    missing_package: str | None = None
    notes: list[str] = field(default_factory=list)
    versions: str = ""
    device: str = ""
    deterministic: bool = False
    machine: Machine | None = None
    sampled: bool = False
    is_compiled_too: bool = False
    interpreted: bool = False
    has_kernels: bool = False
    declared: Declarations = STRICT
    compiled_for: tuple[str, str] | None = None
    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    told: dict[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    copy: "Backend | None" = None
    refused: list[str] = field(default_factory=list)
    unjudged: dict[str, list[str]] = field(default_factory=dict)
    alone: dict[str, bool] = field(default_factory=dict)
    refusing: dict[str, bool] = field(default_factory=dict)
    taken: dict[tuple[str, int], str] = field(default_factory=dict)


@dataclass(eq=False)
class Implementation:
    """
    One function of a backend: an operation, and how (``""`` for the plain name). ``thorough`` is
    one that no shorter profile judges, ``quick`` one that the default profile judges as the quick
    one does.
    """

    backend: Backend
    operation: Operation
    how: str
    function: Callable[..., Any]
    thorough: bool = False
    quick: bool = False
    precisions: dict[str, Precision] = field(default_factory=dict, repr=False)
    shown: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)
    """Fields of PRECISION that nobody declared and its calls have shown, by dtype."""

    @property
    def name(self) -> str:
        return f"{self.operation.name}_{self.how}" if self.how else self.operation.name

    @property
    def label(self) -> str:
        """Who answered: ``torch_impl``, or ``torch_impl:flex``."""
        return f"{self.backend.name}:{self.how}" if self.how else self.backend.name

    @property
    def library(self) -> Library:
        """The functions of its arrays: a backend that has an implementation has them."""
        assert self.backend.library is not None
        return self.backend.library

    @property
    def is_emulated(self) -> bool:
        """
        Whether real calls would take minutes: kernels for a GPU that is not there, those that
        Triton's interpreter executes, and the ways of our own columns that call functions which are
        judged beside them.
        """
        return self.quick or self.backend.interpreted or self.backend.machine is not None

    @property
    def is_alone(self) -> bool:
        """
        Whether it, or what it is the gradient of, returns its output without the second result: as
        FEATURES say, else as a call has shown.
        """
        features, forward = self.backend.declared.features, self.operation.forward
        said = features.get(forward.second_result)
        return said is False or (said is None and self.backend.alone.get(self.asked_as, False))

    @property
    def asked_as(self) -> str:
        """Under which words it, and what it is the gradient of, stands among those asked."""
        return f"{self.operation.forward.name} {self.how}"

    def admit(self, dtype: str, shown: dict[str, str]) -> None:
        """Judge it from now on by an arithmetic that its calls have shown."""
        self.precisions[dtype] = changed(self.precision(dtype), shown)
        self.shown[dtype] = self.shown.get(dtype, {}) | shown

    def precision(self, dtype: str) -> Precision:
        """
        Return the arithmetic that it declares in a dtype; where no float is judged, in the widest.
        """
        dtype = "float64" if dtype == "bool" else dtype
        if dtype not in self.precisions:  # asked for in every case
            backend = self.backend
            flushes = dtype in backend.flushing
            self.precisions[dtype] = resolve(
                backend.precision,
                self.operation.name,
                self.name,
                dtype,
                flushes,
                undeclared_of(self.operation),
            )
        return self.precisions[dtype]


def undeclared_of(operation: Operation) -> str:
    """Return the preset by which an operation is judged where a file declares none."""
    return UNDECLARED if operation.outside is None else operation.outside.undeclared
