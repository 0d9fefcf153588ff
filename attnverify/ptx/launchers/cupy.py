"""
A stand-in for CuPy with the machine behind it, for files that compile CUDA C++ of their own.

    with as_cupy(target=90) as machine:
        import my_kernels                       # does `import cupy`
        my_kernels.attention(...)

Arrays are NumPy's, with what CuPy's have beside (``get``, ``data.ptr``); functions are NumPy's;
``RawKernel`` and ``RawModule`` are compiled by NVRTC with the options that CuPy would give,
``-ftz=true`` among them, and executed on the machine; so is what a file compiles by
``cupy.cuda.nvrtc`` itself and loads by ``RawModule(path=...)``. What else CuPy compiles at run time
(``ElementwiseKernel``, ``fuse`` ...) is refused with NotImplementedError.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from attnverify.ptx.kernel import Kernel
from attnverify.ptx.launchers import cuda, cupy_nvrtc
from attnverify.ptx.launchers.cupy_arrays import LIVING, Device, DeviceArray, Stream, wrapped
from attnverify.ptx.launchers.nvrtc import Compiled, compile_source

__all__ = ["DeviceArray", "Machine", "as_cupy"]

OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
"""What CuPy adds to every compilation."""


@dataclass
class Machine:
    """What runs: the target, the settings of launches, and what was launched."""

    target: int = 90
    settings: dict[str, Any] = field(default_factory=dict)
    launches: list[tuple[str, float]] = field(default_factory=list)


class RawKernel:
    """A kernel of a source."""

    def __init__(self, machine: Machine, module: "RawModule", name: str) -> None:
        self.machine, self.module, self.name = machine, module, name
        self.max_dynamic_shared_size_bytes = 49152
        self.attributes = {"max_threads_per_block": self.kernel.threads or 1024}

    @property
    def kernel(self) -> Kernel:
        """What is executed; the module reads it again where it was let go."""
        return self.module.compiled()[self.name]

    def compile(self, log_stream: Any = None) -> None:
        """Done already."""

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        **ignored: Any,
    ) -> None:
        if shared_mem > self.max_dynamic_shared_size_bytes:
            most = f"max_dynamic_shared_size_bytes, {self.max_dynamic_shared_size_bytes}"
            raise ValueError(f"shared_mem: wanted at most {most}, got {shared_mem}")
        started, kernel = time.perf_counter(), self.kernel
        given = [raw(x, p.kind) for x, p in zip(args, kernel.parameters, strict=False)]
        settings = {"shared": shared_mem} | self.machine.settings
        cuda.launch(kernel, grid, block, given, arrays=pointed_at(given), **settings)
        self.machine.launches.append((self.name, time.perf_counter() - started))


def raw(x: Any, kind: str) -> Any:
    """
    Convert an argument as CuPy passes it: Python numbers become 64 bits wide there, and must fit
    the parameter here.
    """
    if isinstance(x, np.ndarray) and not isinstance(x, DeviceArray):
        return x.tobytes()  # CuPy hands an array of the host over by value
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        wanted = {"f": float, "u": int, "s": int, "b": int}[kind[0]]
        return wanted(x)
    return x


def pointed_at(arguments: Sequence[Any]) -> "list[DeviceArray]":
    """Find the living arrays into which some word of the arguments points."""
    words = {int(word) for x in arguments for word in words_of(x)}
    found = []
    for owner in list(LIVING.values()):
        start, end = cuda.extent(owner) if owner.size else (0, 0)
        if any(start <= word < end for word in words):
            found.append(owner)
    return found


def words_of(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.ndim:
        return [x.__array_interface__["data"][0]]
    if isinstance(x, int | np.integer):
        return [int(x)]
    if isinstance(x, np.ndarray | np.void):
        x = x.tobytes()
    return (
        np.frombuffer(x[: len(x) // 8 * 8], np.uint64) if isinstance(x, bytes | bytearray) else []
    )


class RawModule:
    """A source and its kernels."""

    def __init__(
        self,
        machine: Machine,
        *,
        code: str | None = None,
        path: str | None = None,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] = (),
        **ignored: Any,
    ) -> None:
        self.machine, self.names = machine, tuple(name_expressions or ())
        self.module = None if path is None else cupy_nvrtc.read_binary(Path(path))
        self.code = "" if code is None else add_line_numbers(code, sys._getframe(1))
        self.options = (*options, *(option for option in OPTIONS if option not in options))

    def compiled(self) -> Compiled:
        if self.module is None:
            self.module = compile_source(self.code, self.options, self.machine.target, self.names)
        return self.module

    def compile(self, log_stream: Any = None) -> None:
        self.compiled()

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self.machine, self, name)


def add_line_numbers(code: str, frame: FrameType | None) -> str:
    """
    The source with the lines of the Python file that it stands in, if it stands in that of a
    caller, so that a finding names these.
    """
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        text = path.read_text(errors="replace") if path.is_file() else ""
        if code and code in text:
            return f'#line {text[: text.index(code)].count(chr(10)) + 1} "{path}"\n{code}'
        frame = frame.f_back
    return code


def refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"cupy.{name} compiles for a GPU at run time, which the machine does not stand in for"
        )

    return refuse


REFUSED = ("ElementwiseKernel", "ReductionKernel", "fuse", "vectorize")


class StandIn(ModuleType):
    """The module ``cupy``: what it has not of its own is NumPy's."""

    def __init__(self, machine: Machine) -> None:
        super().__init__("cupy")
        self.__path__: list[str] = []
        self.__version__ = "14.0 (attnverify's machine)"
        self.ndarray, self.cuda = DeviceArray, cuda_of(machine)
        self.RawModule = lambda **given: RawModule(machine, **given)
        self.RawKernel = lambda code, name, options=(), **given: RawModule(
            machine, code=code, options=options
        ).get_function(name)
        self.asnumpy = lambda x, *args, **kwargs: np.array(x)
        self.get_array_module = lambda *arrays: (
            self if any(isinstance(x, DeviceArray) for x in arrays) else np
        )
        for name in REFUSED:
            setattr(self, name, refused(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(np, name)
        if isinstance(found, ModuleType):
            return wrapped_module(found)
        return wrapped(found) if callable(found) and not isinstance(found, type) else found


def wrapped_module(module: ModuleType) -> Any:
    """``cupy.random``, ``cupy.linalg``: NumPy's, whose arrays are on the device."""
    names = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return SimpleNamespace(
        **{
            name: wrapped(x) if callable(x) and not isinstance(x, type) else x
            for name, x in names.items()
        }
    )


def cuda_of(machine: Machine) -> ModuleType:
    """``cupy.cuda``, as far as kernels need it."""
    made = ModuleType("cupy.cuda")
    properties = {
        "major": machine.target // 10,
        "minor": machine.target % 10,
        "multiProcessorCount": 132,
        "name": b"attnverify's machine",
    }
    properties |= {
        "sharedMemPerBlock": 49152,
        "sharedMemPerBlockOptin": 232448 if machine.target >= 90 else 166912,
        "warpSize": 32,
    }
    made.runtime = SimpleNamespace(  # type: ignore[attr-defined]
        deviceSynchronize=lambda: None,
        getDevice=lambda: 0,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: properties,
        is_hip=False,
    )
    Device.compute_capability = str(machine.target)  # type: ignore[attr-defined]
    made.Device, made.Stream = Device, Stream  # type: ignore[attr-defined]
    made.nvrtc = cupy_nvrtc.stand_in()  # type: ignore[attr-defined]
    made.get_current_stream = lambda: Stream.null  # type: ignore[attr-defined]
    made.is_available = lambda: True  # type: ignore[attr-defined]
    made.using_allocator = lambda allocator: nullcontext()  # type: ignore[attr-defined]
    return made


@contextmanager
def as_cupy(target: int = 90, **settings: Any) -> Iterator[Machine]:
    """
    ``import cupy`` gives the stand-in, whether CuPy is installed or not; afterwards it is again
    what it was.

    ``settings`` are those of :meth:`attnverify.ptx.Kernel.launch`. What was imported meanwhile
    keeps the stand-in.
    """
    machine = Machine(target, settings)
    before = {
        name: module
        for name, module in sys.modules.items()
        if name == "cupy" or name.startswith("cupy.")
    }
    for name in before:
        del sys.modules[name]
    made = StandIn(machine)
    sys.modules |= {"cupy": made, "cupy.cuda": made.cuda, "cupy.cuda.nvrtc": made.cuda.nvrtc}
    try:
        yield machine
    finally:
        for name in [name for name in sys.modules if name == "cupy" or name.startswith("cupy.")]:
            del sys.modules[name]
        sys.modules.update(before)
