"""
A driver for Triton's JIT with the machine behind it: kernels called with CPU tensors are compiled
for a GPU that is not there, by Triton's own binder and compiler, and their PTX is executed with the
very launch parameters.

    with on_machine(target=90) as machine:
        kernel[grid](x, y, n, BLOCK=64)
    machine.launches                            # what was executed, and how long it took

``triton.autotune`` times nothing: a policy picks a configuration, "first", "last" or a number;
those that do not fit the GPU are passed over, as on a GPU.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import get_cache_manager

from attnverify.ptx.findings import NotUnderstood
from attnverify.ptx.kernel import Kernel, Module, load
from attnverify.ptx.launchers.arrays import HostArrays
from attnverify.ptx.launchers.autotune import Policy, check_policy, tuned
from attnverify.ptx.launchers.tensors.allocations import extent_of
from attnverify.ptx.launchers.tensors.sides import is_on_host
from attnverify.ptx.launchers.torch_cuda import own_device
from attnverify.ptx.storage.bulk import maps

__all__ = ["Driver", "Launch", "on_machine"]

SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448}
"""Bytes of shared memory that a block may have."""

PROCESSORS = {80: 108, 86: 84, 89: 142, 90: 132}


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel, its grid, the instructions it executed, and the seconds that took."""

    kernel: str
    grid: tuple[int, int, int]
    steps: int
    seconds: float


class Utilities:
    """What Triton asks of a device."""

    def __init__(self, target: int) -> None:
        self.target = target

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[object, object, int, int, int]:
        """
        Module, function, registers, spills, and the most threads of a block. Nothing is assembled:
        told are as many registers as each of these threads can have.
        """
        return object(), object(), 65536 // 1024, 0, 1024

    def unload_module(self, module: object) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": SHARED[self.target],
            "max_num_regs": 65536,
            "multiprocessor_count": PROCESSORS[self.target],
            "warpSize": 32,
            "sm_clock_rate": 1_500_000,
            "mem_clock_rate": 1_500_000,
            "mem_bus_width": 5120,
        }


@dataclass
class Driver(DriverBase):  # type: ignore[misc]
    """The stand-in for Triton's CUDA driver."""

    target: int = 90
    settings: dict[str, Any] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    compiling: bool = False
    views: bool = False

    def __post_init__(self) -> None:
        if self.target not in SHARED:
            raise ValueError(
                f"target: wanted one of {', '.join(map(str, SHARED))}, got {self.target}"
            )
        self.utils = Utilities(self.target)
        self.launcher_cls = Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.target, 32)

    def get_current_device(self) -> int:
        """Give a number that no real device has: a JIT function keeps what it compiled by it."""
        return 10_000 + self.target

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self.target // 10, self.target % 10

    def get_active_torch_device(self) -> torch.device:
        return own_device()

    def get_device_interface(self) -> Any:
        return getattr(torch, own_device().type)

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Nothing is timed: what is asked about is executed once."""

        def once(
            call: Callable[[], Any], quantiles: Sequence[float] = (0.5,), **ignored: Any
        ) -> list[float]:
            call()
            return [0.0 for _ in quantiles]

        return once

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0)

    def clear_cache(self, cache: torch.Tensor) -> None:
        """There is none."""


MODULES: dict[str, Module] = {}
"""By the key of Triton's cache."""


class Launcher:
    """
    Launches one compiled kernel on the machine; JIT functions keep it, so that it asks for the
    driver of the time.
    """

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata, self.cached = metadata, source.name[:150]
        self.kinds, self.names = list(source.signature.values()), list(source.signature)
        function = getattr(source, "fn", None)  # none of a kernel that is given as IR
        self.file = "" if function is None else function.fn.__code__.co_filename

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: object,
        packed: Any,
        launch_metadata: Any,
        enter: Any,
        leave: Any,
        *arguments: Any,
    ) -> None:
        driver = triton.runtime.driver.active
        if driver.compiling:
            return
        started = time.perf_counter()
        kernel, arrays = self.kernel(), HostArrays()
        wanted = iter(getattr(self.metadata, "tensordesc_meta", None) or ())
        pairs = list(flatten_arguments(arguments, self.kinds, self.names, wanted))
        pointers = [
            (value.base if isinstance(value, Mapped) else value, name)
            for value, kind, name in pairs
            if kind.startswith("*")
        ]
        for at, (value, _) in enumerate(pointers):
            if is_on_host(value):
                told = f"Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?)"
                raise ValueError(told)
        for start, size, name in stretches(pointers, driver.views):
            arrays.place(start, size, name)
        given = [as_parameter(value, kind, arrays) for value, kind, _ in pairs]
        given += self.scratch(x * y * z, len(kernel.parameters) - len(given), arrays)
        threads = 32 * self.metadata.num_warps
        settings = {"shared": self.metadata.shared, "memory": arrays.memory} | driver.settings
        done = kernel.launch((x, y, z), threads, given, **settings)
        arrays.bring_back()
        driver.launches.append(
            Launch(kernel.name, (x, y, z), done.steps, time.perf_counter() - started)
        )

    def scratch(self, blocks: int, left: int, arrays: HostArrays) -> list[np.uint64]:
        """
        Add the parameters behind a kernel's own: memory for its blocks, if it asked for some, and
        for a profiler, which it has not.
        """
        size = getattr(self.metadata, "global_scratch_size", 0) * blocks
        made = arrays.memory.reserve(size, "global scratch").address if size else 0
        return [np.uint64(made), np.uint64(0)][:left]

    def kernel(self) -> Kernel:
        """Load the kernel that Triton's compiler has left in its cache."""
        key, name = self.metadata.hash, self.metadata.name
        if key not in MODULES:
            files = get_cache_manager(key).get_group(f"{self.cached}.json") or {}
            path = next((path for file, path in files.items() if file.endswith(".ptx")), None)
            if path is None:
                raise NotUnderstood(f"{name}: Triton's cache holds no PTX of it")
            with open(path) as file:
                text = name_own_file(file.read(), self.file)
            MODULES[key] = load(text)
        return MODULES[key][name]


def name_own_file(text: str, own: str) -> str:
    """
    Name the file of a kernel as it is called now: Triton's cache remembers where it lay when it was
    compiled, and knows a kernel again by its text alone.
    """

    def renamed(found: re.Match[str]) -> str:
        moved = Path(found[2]).name == Path(own).name and not Path(found[2]).exists()
        return f'{found[1]}"{own}"' if moved else found[0]

    return re.sub(r'^(\s*\.file\s+\d+\s+)"([^"]*)"', renamed, text, flags=re.MULTILINE)


def flatten_arguments(
    values: Sequence[Any],
    kinds: Sequence[Any],
    names: Sequence[str],
    wanted: Iterator[Mapping[str, Any]],
) -> Iterator[tuple[Any, str, str]]:
    """Arguments, types and names in a row, without what the compiler knows already."""
    for value, kind, name in zip(values, kinds, names, strict=True):
        if isinstance(kind, tuple):
            yield from flatten_arguments(
                tuple(value), kind, [f"{name}[{place}]" for place in range(len(kind))], wanted
            )
        elif kind.startswith("tensordesc"):
            of = next(wanted, None)
            yield from (
                flatten_map(value, of, name) if of else flatten_descriptor(value, kind, name)
            )
        elif kind != "constexpr":
            yield value, kind, name


@dataclass(frozen=True)
class Mapped:
    """A descriptor of a tensor, and how the compiler wants its boxes in shared memory."""

    base: torch.Tensor
    of: Any
    wanted: Mapping[str, Any]

    def encoded(self, address: int) -> bytes:
        """The tensor map of what lies at an address of the device."""
        size, lengths, box = (
            self.wanted["elem_size"], list(self.of.shape), self.wanted["block_size"]
        )  # fmt: skip
        if self.wanted["fp4_padded"]:
            raise NotUnderstood("a tensor map of 4-bit numbers")
        return maps.encoded(
            global_address=address,
            rank=len(lengths) - 1,
            global_dim=lengths[::-1],
            global_stride=[size * n for n in list(self.of.strides)[-2::-1]],
            box_dim=list(box)[::-1],
            element_stride=[1] * len(lengths),
            elemtype=self.wanted["elem_type"],
            swizzle_mode=self.wanted["swizzle"],
            fill_mode=int(self.of.padding == "nan"),
        )


def flatten_map(value: Any, wanted: Mapping[str, Any], name: str) -> Iterator[tuple[Any, str, str]]:
    """A descriptor as a GPU with TMA is given it: a tensor map, and lengths and strides."""
    yield Mapped(value.base, value, wanted), "*map", name
    yield from ((size, "i32", name) for size in value.shape)
    yield from ((size, "i64", name) for size in value.strides)


def flatten_descriptor(value: Any, kind: str, name: str) -> Iterator[tuple[Any, str, str]]:
    """
    A descriptor of a tensor as a GPU without TMA is given it: address, lengths, strides, what lies
    outside and (from Triton 3.9 on) whether to round, and lengths and strides once more.
    """
    sizes, lengths = (*value.shape, *value.strides), len(value.shape)
    yield value.base, "*" + kind.removeprefix("tensordesc<").partition("[")[0], name
    yield from ((size, "i64", name) for size in sizes)
    yield value.padding == "nan", "i1", name
    if hasattr(value, "round_f32_to_tf32"):
        yield value.round_f32_to_tf32, "i1", name
    yield from ((size, "i32" if at < lengths else "i64", name) for at, size in enumerate(sizes))


def stretches(pointers: list[tuple[Any, str]], views: bool) -> list[tuple[int, int, str]]:
    """
    Address, bytes and name of what a kernel may touch: the whole storages of its tensors, as a GPU
    has it, or with ``views`` what lies between the first and the last byte of those that it is
    given of one storage.
    """
    found: dict[int, tuple[int, int, str]] = {}
    for value, name in pointers:
        x = getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            start, all_ = storage.data_ptr(), storage.nbytes()
            first, end = extent_of(x) if views else (start, start + all_)
            low, high, known = found.get(start, (first, end, name))
            first, end = min(first, low), max(end, high)
            found[start] = first, end, known
    return [(first, end - first, name) for first, end, name in found.values()]


HALVES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def as_parameter(value: Any, kind: str, arrays: HostArrays) -> Any:
    """A number, or the address of a tensor on the device."""
    if isinstance(value, Mapped):
        return value.encoded(arrays.address(value.base.data_ptr()))
    if kind.startswith("*"):
        pointer = 0 if value is None else value if isinstance(value, int) else value.data_ptr()
        return np.uint64(arrays.address(pointer))
    if kind in HALVES:
        return np.array(value, HALVES[kind])[()]
    return float(value) if kind.startswith("fp") else int(value)


@contextmanager
def on_machine(
    target: int = 90, autotune: Policy = "first", views: bool = False, **settings: Any
) -> Iterator[Driver]:
    """
    Triton's kernels run on the machine, compiled for ``target`` (sm_90a is 90).

    ``settings`` are those of :meth:`attnverify.ptx.Kernel.launch`: seed, latitude, races; Triton's
    compiler leaves some fences of registers to the assembler, so that ``register_fences`` is False
    here. ptxas does not run, and Triton's cache keeps what was compiled so apart from what a GPU is
    given. With ``views`` a kernel may touch no more of a storage than the tensors that it is given.
    Nothing stays behind.
    """
    check_policy(autotune)
    usual = {"register_fences": False, "replicated": True}
    driver = Driver(target, usual | settings, views=views)
    config = triton.runtime.driver
    active = config._active
    instead = [
        (Autotuner, "run", tuned(driver, autotune)),
        (CUDABackend, "make_cubin", lambda *args: b"none: the machine executes PTX"),
        (CUDABackend, "hash", lambda self: f"attnverify's machine-{self.target.arch}"),
    ]
    before = [(thing, name, vars(thing)[name]) for thing, name, _ in instead]
    config.set_active(driver)
    try:
        for place in instead:
            setattr(*place)
        yield driver
    finally:
        config._active = active
        for place in before:
            setattr(*place)
