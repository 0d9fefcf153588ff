"""
A user's own tests, measured with the same faults.

A file defines ``check_<operation>(function)``, which raises if the function that it is given is
wrong; its arrays are of the library that the file imports. Each check first meets a right
implementation, then every fault of its operation, gradients included where the library
differentiates.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from _pytest.outcomes import Skipped
from numpy import ndarray

from attnverify.backends.modules import describe, from_path, imported_library
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.pytrees import map_leaves
from attnverify.faults.adapter import with_spec_contract
from attnverify.faults.registry import Fault, read_faults

Function = Callable[..., Any]


@dataclass
class Measured:
    """
    What one check noticed. ``rejected`` says why it takes a right implementation for wrong: then it
    scores nothing.
    """

    name: str
    operation: str
    rejected: str = ""
    killed: list[Fault] = field(default_factory=list)
    survivors: list[Fault] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        if self.rejected:
            yield f"{self.name} rejects a right implementation, and scores nothing: {self.rejected}"
            return
        yield f"{self.name} kills {len(self.killed)} of {len(self.killed) + len(self.survivors)}"
        for fault in self.survivors:
            yield f"  survives: {fault.name}: {fault.words} (revealed by: {fault.reveals})"

    def as_dict(self) -> dict[str, Any]:
        names = {
            part: [fault.name for fault in getattr(self, part)] for part in ("killed", "survivors")
        }
        return {"check": self.name, "operation": self.operation, "rejected": self.rejected} | names


def measure_user_tests(path: str) -> list[Measured]:
    """
    Measure every check of a file. ValueError where it has none, or none for an operation of the
    catalogue.
    """
    modules = from_path(Path(path))
    checks = dict(checks_of(modules[0]))
    if not checks:
        raise ValueError(f"{path}: wanted functions check_<operation>, got none")
    library = imported_library(modules)
    if library not in ("numpy", "torch"):
        raise ValueError(f"{path}: wanted a file that imports torch or numpy, got {library}")
    return [
        measure_check(name, CATALOGUE[name.removeprefix("check_")], check, library)
        for name, check in checks.items()
    ]


def checks_of(module: ModuleType) -> Iterator[tuple[str, Function]]:
    for name, thing in vars(module).items():
        if name.startswith("check_") and callable(thing):
            if name.removeprefix("check_") not in CATALOGUE:
                raise ValueError(
                    f"{name}: wanted check_<operation of the catalogue>, got "
                    f"{name.removeprefix('check_')}"
                )
            yield name, thing


def measure_check(name: str, operation: Operation, check: Function, library: str) -> Measured:
    found = Measured(name, operation.name)
    found.rejected = rejection(check, correct_function(operation, library))
    if found.rejected:
        return found
    for fault, function in candidates(operation, library):
        (found.killed if rejection(check, function) else found.survivors).append(fault)
    return found


def rejection(check: Function, function: Function) -> str:
    """
    What a check has against a function, or "". Anything that it raises is an objection; skipping is
    none against a fault.
    """
    try:
        check(function)
    except KeyboardInterrupt:
        raise
    except Skipped:
        return ""
    except BaseException as error:  # pytest's own failures are no Exception
        return describe(error)
    return ""


def correct_function(operation: Operation, library: str) -> Function:
    function = with_spec_contract(
        operation.reference, operation, raw=True, checked=False, memory=None
    )
    return function if library == "numpy" else with_torch(operation, function, backward(operation))


def backward(operation: Operation) -> Function | None:
    return operation.gradient.reference if operation.gradient else None


def candidates(operation: Operation, library: str) -> Iterator[tuple[Fault, Function]]:
    """
    Every fault of the operation; with torch also those of its gradient, behind a right forward
    pass.
    """
    for fault in read_faults().values():
        if fault.operation.name == operation.name:
            yield (
                fault,
                fault.fresh()
                if library == "numpy"
                else with_torch(operation, fault.fresh(), backward(operation)),
            )
        elif library == "torch" and fault.operation.forward.name == operation.name:
            yield fault, with_torch(operation, operation.reference, fault.fresh())


def with_torch(operation: Operation, forward: Function, backward: Function | None) -> Function:
    """
    A NumPy function on tensors, with a backward pass where there is one. CPU tensors are handed
    over as they lie, not copied.
    """
    torch = import_module("torch")
    signature = inspect.signature(operation.specification)

    class Bridge(torch.autograd.Function):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, given: dict[str, Any], names: list[str], *tensors: Any) -> Any:
            ctx.given, ctx.names = dict(given), names
            ctx.save_for_backward(*tensors)
            return to_torch(forward(**as_numpy(given)), tensors[0].device)

        @staticmethod
        def backward(ctx: Any, d_output: Any) -> Any:
            given = ctx.given | dict(zip(ctx.names, ctx.saved_tensors, strict=True))
            assert backward is not None
            grads = to_torch(
                backward(d_output=as_numpy(d_output), **as_numpy(given)), d_output.device
            )
            return None, None, *grads, *[None] * (len(ctx.names) - len(grads))

    def call(*arguments: Any, **named: Any) -> Any:
        extra = (
            {"dtype": str(named.pop("dtype", "float32")).rpartition(".")[2]}
            if operation.takes_dtype
            else {}
        )
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = dict(bound.arguments)
        names = [name for name, x in given.items() if torch.is_tensor(x) and x.is_floating_point()]
        if backward is not None and names:
            return Bridge.apply(given, names, *(given[name] for name in names))
        return to_torch(forward(**as_numpy(given), **extra), "cpu")

    return call


def as_numpy(tree: Any) -> Any:
    """Tensors as arrays; on the CPU these are the same memory with the same strides."""
    torch = import_module("torch")

    def convert(x: Any) -> Any:
        if not torch.is_tensor(x):
            return x
        x = x.detach().cpu()
        return (
            x.view(torch.int16).numpy().view(import_module("ml_dtypes").bfloat16)
            if x.dtype == torch.bfloat16
            else x.numpy()
        )

    return map_leaves(convert, tree)


def to_torch(tree: Any, device: Any) -> Any:
    torch = import_module("torch")

    def convert(x: Any) -> Any:
        if not isinstance(x, ndarray):
            return x
        x = (
            np.ascontiguousarray(x)
            if any(stride < 0 for stride in x.strides) or not x.flags.writeable
            else x
        )
        tensor = (
            torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
            if x.dtype.name == "bfloat16"
            else torch.from_numpy(x)
        )
        return tensor.to(device)

    return map_leaves(convert, tree)
