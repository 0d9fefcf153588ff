"""
Triton kernels and CUDA C++ of a user's own, where there is no GPU: they are compiled for one and
executed by the PTX machine (:mod:`attnverify.ptx`), around the import of their file and every call.
"""

import ast
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy import ndarray

from attnverify.backends.array_libraries import (
    Library,
    array_library,
    flushed_by_cupy,
    to_dtype,
    to_float64,
)
from attnverify.device_assignment import TARGETS, chosen_machine
from attnverify.ptx.findings import NotUnderstood

__all__ = ["UNSEEN", "Machine", "find_machine"]


INTERPRET = "TRITON_INTERPRET"

UNSEEN = "ptxas, timing, TMA and a missing __syncwarp"
"""What a verdict of the machine says nothing about: told beside it."""


@dataclass(frozen=True)
class Machine:
    """
    What stands for a GPU.

    target   the compute capability that kernels are compiled for, 90 for sm_90a
    library  ``torch`` (its Triton kernels run) or ``cupy`` (its RawKernel and RawModule)
    tuning   the configuration of ``triton.autotune`` that runs: "first" or "last" of its list, or
             its place there
    """

    target: int
    library: str
    tuning: str | int = "first"

    @property
    def name(self) -> str:
        """What executed, for reports: never to be mistaken for hardware."""
        return f"PTX sm_{self.target}{'a' if self.target == 90 else ''}, machine"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Files that expect a GPU find this one."""
        with ExitStack() as stack:
            for context in self._contexts():
                stack.enter_context(context)
            yield

    def _contexts(self) -> Iterator[AbstractContextManager[Any]]:
        launchers = "attnverify.ptx.launchers"
        if self.library == "cupy":
            yield import_module(f"{launchers}.cupy").as_cupy(self.target)
            return
        yield import_module(f"{launchers}.torch_cuda").pretended_cuda(self.target)
        yield import_module(f"{launchers}.sources.inline").inline_on_machine(self.target)
        if find_spec("triton") is not None:
            on_machine = import_module(f"{launchers}.triton").on_machine
            yield on_machine(self.target, autotune=self.tuning)

    def runs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """
        Return the function with this GPU to run on; what the machine does not understand is
        unsupported, in its words.
        """

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                with self.entered():
                    return function(*args, **kwargs)
            except NotUnderstood as error:
                raise NotImplementedError(f"the PTX machine does not know {error}") from error

        return called

    def variants(self, modules: Iterable[ModuleType]) -> "dict[str, Machine]":
        """
        Return the configurations of autotuned kernels to run besides the first, by the name that
        they add to the implementation's; where kernels have lists of several lengths, as many as
        the longest has. Kernels of modules that a file imports are among them.
        """
        most = max(map(_count_configurations, _things_of(modules)), default=0)
        found = {f"config_{at + 1}": replace(self, tuning=at) for at in range(1, most - 1)}
        return found | ({"last_config": replace(self, tuning="last")} if most > 1 else {})

    def adapter(self, library: str) -> Library:
        """Return the adapter of an array library whose arrays this GPU holds."""
        return _cupy_on_host() if library == "cupy" else array_library(library)

    def lacks(self) -> str | None:
        """Say what is not installed that compiles for it; None where nothing is missing."""
        try:
            if self.library == "cupy":
                import_module("attnverify.ptx.launchers.nvrtc").library()
        except ImportError as error:
            return str(error)
        return None

    def forgetting(self, library: Library) -> Library:
        """Return a library that lets go of the kernels that were read, too."""

        def forget() -> None:
            library.forget()
            import_module("attnverify.ptx.kernel").forget_kernels()

        return replace(library, forget=forget)


def _things_of(modules: Iterable[ModuleType]) -> Iterator[Any]:
    """What modules hold, and the modules that they have imported."""
    for module in modules:
        for thing in vars(module).values():
            yield from vars(thing).values() if isinstance(thing, ModuleType) else (thing,)


def _count_configurations(thing: Any) -> int:
    """Count those that a Triton kernel, below its heuristics, has to choose from."""
    while thing is not None and type(thing).__module__.startswith("triton."):
        if configs := getattr(thing, "configs", ()):
            return len(configs)
        thing = getattr(thing, "fn", None)
    return 0


def _cupy_on_host() -> Library:
    array: Any = import_module("attnverify.ptx.launchers.cupy_arrays").DeviceArray

    return Library(
        "cupy",
        lambda x, dtype: to_dtype(x, dtype).view(array),
        lambda x: to_float64(x).view(ndarray),
        lambda: None,
        lambda: None,
        flushes_subnormals=flushed_by_cupy,
    )


def find_machine(path: Path) -> Machine | None:
    """
    Find the machine that a user's file, or package, needs here: where it imports Triton or CuPy, or
    compiles CUDA sources by PyTorch's ``load_inline``, and there is no GPU, or where ``--device``
    asks for one; None where it needs none.

    The file chooses another GPU than sm_90a by ``TARGET = "sm_80"``, and asks for one by it where
    it has its kernels from elsewhere; one with tensor descriptors gets sm_80, for its kernels then
    have no TMA. One that asks for Triton's interpreter, by
    TRITON_INTERPRET, gets it.
    """
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    trees = [ast.parse(file.read_bytes()) for file in files]
    if os.environ.get(INTERPRET) == "1" or any(_names_interpreter(tree) for tree in trees):
        return None
    names = {name for tree in trees for name in imported_names(tree)}
    declared = next((name for tree in trees for name in _declared_target(tree)), None)
    inline = any(_handles(tree, INLINE) for tree in trees)
    is_cupy = "cupy" in names and "torch" not in names
    triton = "triton" in names or (inline and "torch" in names) or (declared and not is_cupy)
    library = "torch" if triton else "cupy" if "cupy" in names else None
    asked = chosen_machine()
    if asked is not None and "torch" in names:
        return Machine(asked, library or "torch")
    if library is None or (asked is None and _has_gpu(library)):
        return None
    usual = "sm_80" if any(_handles(tree, DESCRIPTORS) for tree in trees) else "sm_90a"
    return Machine(asked or _parse_target(declared or usual), library)


def _has_gpu(library: str) -> bool:
    """Whether a library sees a GPU, of whatever maker."""
    try:
        return bool(import_module(library).cuda.is_available())
    except ImportError:
        return False


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Find the top-level packages that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _names_interpreter(tree: ast.AST) -> bool:
    """Whether a file handles TRITON_INTERPRET; words about it do not count."""
    return any(isinstance(x, ast.Constant) and x.value == INTERPRET for x in ast.walk(tree))


DESCRIPTORS = ("make_tensor_descriptor", "TensorDescriptor")
INLINE = ("load_inline",)


def _handles(tree: ast.AST, names: tuple[str, ...]) -> bool:
    """Whether a file names Triton's tensor descriptors, or what compiles CUDA sources in it."""
    return any(getattr(node, "attr", getattr(node, "id", None)) in names for node in ast.walk(tree))


def _declared_target(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="TARGET")], value=ast.Constant(value=value)):
                yield str(value)


def _parse_target(name: str) -> int:
    if name not in TARGETS:
        raise ValueError(f"TARGET: wanted one of {', '.join(TARGETS)}, got {name}")
    return TARGETS[name]
