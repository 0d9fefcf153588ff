"""
Kernels where the arrays are: CuPy's on a GPU, NumPy's on the CPU.

A GPU is given what NVRTC makes of a source with the options that stand here and no others. What
``cupy.RawModule(code=...)`` compiles has ``-ftz=true`` behind the options that it is given
(``cupy/cuda/compiler.py``), the last one counts, and subnormal numbers would be zero.
"""

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import cupy
from cupy.cuda import nvrtc

from ..arrays import numpy
from .emulation import compile_and_run
from .kernel_configs import Instance
from .source import text

__all__ = ["launch"]


def launch(
    made: Instance, kernel: str, grid: tuple[int, int], params: bytes, on_device: bool
) -> None:
    """Run a kernel of an instance over a grid of blocks."""
    if not on_device:
        compile_and_run.launch(made, kernel, grid, params)
        return
    function = compiled(made, kernel, cupy.cuda.Device().id)
    by_value = numpy.frombuffer(params, dtype=f"V{len(params)}")
    function(grid, (made.threads,), (by_value,), shared_mem=made.shared_bytes(kernel))


@functools.cache
def compiled(made: Instance, kernel: str, device: int) -> Any:
    """A kernel of an instance on a device."""
    target = cupy.cuda.Device(device).compute_capability
    function = cupy.RawModule(path=str(binary(made, target))).get_function(kernel)
    function.max_dynamic_shared_size_bytes = made.shared_bytes(kernel)
    return function


def options(made: Instance) -> tuple[str, ...]:
    """What NVRTC is told of an instance, whatever the target is."""
    return ("-std=c++17", *made.defines)


def binary(made: Instance, target: str) -> Path:
    """The file of an instance for a target (``"90"``), compiled if CuPy's folder has it not yet."""
    source, given = text(made.source), (f"-arch=sm_{target}", *options(made))
    key = hashlib.sha256("\0".join([str(nvrtc.getVersion()), *given, source]).encode())
    folder = os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache"
    path = Path(folder) / f"{key.hexdigest()}.cubin"
    return path if path.exists() else keep(compile_source(source, given), path)


def keep(content: bytes, path: Path) -> Path:
    """Write a file whole or not at all; where that is not allowed, into a folder of its own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        path = Path(tempfile.mkdtemp()) / path.name
        path.write_bytes(content)
    return path


def compile_source(source: str, given: tuple[str, ...]) -> bytes:
    """The binary that NVRTC makes; a ValueError carries its words."""
    program = nvrtc.createProgram(source, "kernel.cu", [], [])
    try:
        nvrtc.compileProgram(program, list(given))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError:
        words = nvrtc.getProgramLog(program)
        raise ValueError(f"source: NVRTC does not compile it:\n{words}") from None
    finally:
        nvrtc.destroyProgram(program)
