"""
``torch.utils.cpp_extension.load_inline`` with CUDA sources, and ``load`` of .cu files, without a
GPU: NVRTC compiles the kernels for the machine, the host's C++ compiler the functions that launch
them (it takes half a minute, once; PyTorch keeps what it built).

    with pretended_cuda(target=90), inline_on_machine(target=90):
        module = load_inline("add", cpp_sources, cuda_sources, functions=["add"])
        module = load("scale", ["scale.cpp", "scale.cu"])

What a launcher calls of CUDA beside launches does nothing (streams, errors, attributes), or what it
does on the host (cudaMemset); what is not there the compiler refuses in its own words.
"""

import ctypes
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, wraps
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils import cpp_extension
from torch.utils._python_dispatch import TorchDispatchMode

from attnverify.ptx.kernel import Kernel
from attnverify.ptx.launchers.arrays import bytes_at
from attnverify.ptx.launchers.cuda import launch
from attnverify.ptx.launchers.cupy import add_line_numbers
from attnverify.ptx.launchers.nvrtc import compile_source
from attnverify.ptx.launchers.sources.files import read_whole
from attnverify.ptx.launchers.tensors.sides import is_on_host, lies_on_gpu
from attnverify.ptx.text.two_sides import device_side, host_side

__all__ = ["inline_on_machine"]

STAND_IN, ACCESSORS = (Path(__file__).with_name(f"inline.{kind}") for kind in ("hpp", "cuh"))
HEADERS = ("math.h", "float.h", "limits.h", "stdint.h", "cuda_fp16.h", "cuda_bf16.h")
"""What ``torch/extension.h`` and nvcc bring along for the device too."""


class Argument(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_int64), ("is_pointer", ctypes.c_int64))


FOR_NVRTC = re.compile(r"-D|-?-(use_fast_math|ftz|fmad|prec-div|prec-sqrt)")
"""Of nvcc's options those that change what a kernel computes, which NVRTC has too."""
ERROR = re.compile(r"\berror: ")
MOST_ERRORS = 3
OF_CUDA = ("-lcudart", "-lcuda")
"""Libraries that the machine stands in for."""
FOR_HOST = ("functions", "build_directory", "extra_include_paths", "verbose")
HOST_FLAGS = ("-O0", "-w")
RUN = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_int64,
    ctypes.POINTER(Argument),
    ctypes.c_int64,
)
SIDE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Living(TorchDispatchMode):
    """Keeps the tensors that a launcher makes, so that kernels find them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for each in (*args, *(made if isinstance(made, list | tuple) else (made,))):
            if isinstance(each, torch.Tensor):
                self.tensors.append(each)
        return made


@dataclass
class Extension:
    """The kernels of a source, how they are launched, and what the call has that is under way."""

    source: str
    options: tuple[str, ...]
    target: int
    settings: dict[str, Any]
    living: list[torch.Tensor] = field(default_factory=list)
    error: BaseException | None = None

    @cached_property
    def callbacks(self) -> Any:
        """
        What C++ calls for a launch, and to ask whether a storage lies on the GPU; they must live as
        long as the module.
        """
        return RUN(self.run), SIDE(lies_on_gpu)

    def kernel(self, name: str) -> Kernel:
        found: Kernel = compile_source(self.source, self.options, self.target, (name,))[name]
        return found

    def run(self, name: bytes, sizes: Any, shared: int, given: Any, count: int) -> int:
        """Execute a launch; an exception waits until C++ has returned."""
        try:
            arguments = [read(each) for each in given[:count]]
            kernel = self.kernel(name.decode())
            reached = (tensor for tensor in self.living if not is_on_host(tensor))
            arrays = [x for tensor in reached if (x := bytes_of(tensor)).size]
            launch(kernel, sizes[:3], sizes[3:6], arguments, arrays=arrays, shared=shared,
                   **self.settings)  # fmt: skip
        except BaseException as error:
            self.error = error
            return 1
        return 0

    def calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the module that raises what its launches raised."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.error = None
            with Living() as living:
                self.living = living.tensors
                self.living += [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
                try:
                    return function(*args, **kwargs)
                except RuntimeError as error:
                    if self.error is None and REFUSAL in str(error):
                        raise NotImplementedError(str(error).partition("\n")[0]) from None
                    raise (self.error or error) from None
                finally:
                    self.living = []

        return call

    def known_by(self, built: Any) -> Any:
        """Return the functions of what was built, which calls back its extension for launches."""
        one = EXTENSIONS.setdefault(built.__file__, self)
        one.target, one.settings = self.target, self.settings
        ctypes.CDLL(built.__file__).machine_runs(*one.callbacks)
        names = [each for each in dir(built) if not each.startswith("_")]
        called = {each: one.calling(getattr(built, each)) for each in names}
        return SimpleNamespace(**called, __name__=built.__name__)


REFUSAL = "expected scalar type"
"""How ``x.data_ptr<float>()`` begins where a tensor is of another type: it is not taken."""
EXTENSIONS: dict[str, Extension] = {}
"""By the file that was built: it calls back one of them, however often it is loaded."""


def read(given: Argument) -> Any:
    """Return an argument: an address, or its bytes."""
    value = bytes_at(given.at, given.size).tobytes()
    return int(np.frombuffer(value, np.uint64)[0]) if given.is_pointer else value


def bytes_of(tensor: torch.Tensor) -> Any:
    storage = tensor.untyped_storage()
    return bytes_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else np.zeros(0)


def texts(sources: str | Sequence[str] | None) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or ())


def in_compilers_words(error: RuntimeError) -> Exception:
    """Return the error of a build with what the compiler says, in place of how it was called."""
    told = [line.strip() for line in str(error).splitlines() if ERROR.search(line)]
    words = "; ".join(told[:MOST_ERRORS])
    return ValueError(f"cuda_sources: C++ does not compile it: {words}") if told else error


def device_source(cuda: str) -> str:
    included = "".join(f"#include <{header}>\n" for header in HEADERS)
    return included + ACCESSORS.read_text() + device_side(cuda)


def device_options(options: dict[str, Any]) -> tuple[str, ...]:
    given = options["extra_cuda_cflags"] or ()
    return (
        "-std=c++17",
        *(each for each in given if FOR_NVRTC.match(each)),
        *(f"-I{folder}" for folder in options["extra_include_paths"] or ()),
    )


@dataclass
class Builder:
    """Builds extensions for the machine, by PyTorch's own ``load_inline``."""

    before: Callable[..., Any]
    target: int
    settings: dict[str, Any]

    def build(self, name: str, cpp: list[str], cuda: str, options: dict[str, Any]) -> Any:
        host = [f'#include "{STAND_IN}"', *map(host_side, cpp), host_side(cuda)]
        given = {key: options[key] for key in FOR_HOST if key in options}
        linked = options["extra_ldflags"] or ()
        given["extra_ldflags"] = [each for each in linked if each not in OF_CUDA]
        given["extra_cflags"] = [*(options["extra_cflags"] or ()), *HOST_FLAGS]
        try:
            built = self.before(name, "\n".join(host), **given)
        except RuntimeError as error:
            raise in_compilers_words(error) from None
        own = Extension(device_source(cuda), device_options(options), self.target, self.settings)
        return own.known_by(built)

    def load_inline(self, given: dict[str, Any]) -> Any:
        """Build sources that stand in a Python file, and name its lines."""
        frame = sys._getframe(1)
        cuda = "\n".join(add_line_numbers(text, frame) for text in texts(given["cuda_sources"]))
        return self.build(given["name"], texts(given["cpp_sources"]), cuda, given)

    def load(self, given: dict[str, Any]) -> Any:
        """Build files, and find what they include beside them."""
        files = [Path(each).resolve() for each in texts(given["sources"])]
        folders = dict.fromkeys(str(file.parent) for file in files)
        include = [*(given["extra_include_paths"] or ()), *folders]
        sides: tuple[list[str], list[str]] = ([], [])
        for file in files:
            sides[file.suffix == ".cu"].append(read_whole(file, include))
        options = given | {"extra_include_paths": include}
        return self.build(given["name"], sides[0], "\n".join(sides[1]), options)


def bound(function: Callable[..., Any], build: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a function with the parameters of PyTorch's, which are handed over by their names."""

    @wraps(function)
    def built(*args: Any, **kwargs: Any) -> Any:
        given = signature(function).bind(*args, **kwargs)
        given.apply_defaults()
        return build(given.arguments)

    return built


@contextmanager
def inline_on_machine(target: int = 90, **settings: Any) -> Iterator[None]:
    """
    ``load_inline`` and ``load`` compile for the machine; ``settings`` are those of its launches.
    """
    before = {name: getattr(cpp_extension, name) for name in ("load_inline", "load")}
    builder = Builder(before["load_inline"], target, settings)
    for name, function in before.items():
        setattr(cpp_extension, name, bound(function, getattr(builder, name)))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(cpp_extension, name, function)
