"""
Kernels on a CPU: the source compiled by g++ against ``host.hpp``, run block after block on NumPy
arrays.

Slow, and exact about what a GPU would let pass: see ``host.hpp``. What it finds is a
:class:`KernelFault`.
"""

import ctypes
import functools
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ..kernel_configs import Instance
from ..source import text

__all__ = ["KernelFault", "launch"]

OPTIONS = (
    "-x",
    "c++",
    "-std=c++17",
    "-Og",  # a fourth of the time of -O2, which most kernels here are not run long enough to repay
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
)
SEEDS = itertools.count(1)


class KernelFault(RuntimeError):
    """
    A kernel has done what no GPU defines: the message names kernel, block, thread, and what
    happened.
    """


class Launch(ctypes.Structure):
    """``host::Launch``."""

    _fields_ = (
        ("grid_x", ctypes.c_int64),
        ("grid_y", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
        ("params_bytes", ctypes.c_int64),
        ("used_bytes", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("error", ctypes.c_char_p),
    )


def launch(
    made: Instance,
    kernel: str,
    grid: tuple[int, int],
    params: bytes,
    folder: Path | None = None,
    seed: int | None = None,
) -> int:
    """
    Run a kernel; returns how much shared memory a block has used. Threads run in an order drawn
    from ``seed``.
    """
    error = ctypes.create_string_buffer(512)
    seed = (next(SEEDS) if seed is None else seed) * 0x9E3779B97F4A7C15 % 2**64
    address = ctypes.cast(error, ctypes.c_char_p)
    how = Launch(*grid, made.threads, made.shared_bytes(kernel), len(params), 0, seed, address)
    if getattr(library(made, folder), f"launch_{kernel}")(params, ctypes.byref(how)):
        raise KernelFault(error.value.decode())
    return int(how.used_bytes)


@functools.cache
def library(made: Instance, folder: Path | None) -> ctypes.PyDLL:
    """
    An instance, compiled if it was not yet. PyDLL keeps the interpreter's lock: the machine of
    ``host.hpp`` is one.
    """
    code = text(made.source, folder)
    known_by = hashlib.sha256(
        repr((code, OPTIONS, made.defines, platform.machine())).encode()
    ).hexdigest()
    path = cache() / f"{known_by[:32]}.so"
    if not path.exists():
        compile_to(path, made, code)
    return ctypes.PyDLL(str(path))


def cache() -> Path:
    """
    Where compiled kernels are kept: in the user's cache directory, or for this process alone where
    there is none.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cupy_impl"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(temporary().name)
    return root


@functools.cache
def temporary() -> Any:
    return tempfile.TemporaryDirectory()


def compile_to(path: Path, made: Instance, code: str) -> None:
    """Compile beside the place and move: other processes see all of the file or none."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise NotImplementedError("no GPU, and no g++ that would compile the kernels for the CPU")
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        target = Path(place) / path.name
        ran = subprocess.run(
            [compiler, *OPTIONS, *made.defines, "-", "-o", target],
            input=code,
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            raise RuntimeError(f"{made.source} does not compile for the CPU: {ran.stderr[:2000]}")
        os.replace(target, path)
