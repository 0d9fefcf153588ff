"""The CUDA C++ kernels of cupy_impl, compiled by NVRTC for GPUs that are not here."""

import re

from cupy.cuda import nvrtc

from attnverify.cupy_impl.cuda.kernel_configs import Instance
from attnverify.cupy_impl.cuda.source import text
from attnverify.ptx.launchers.nvrtc import library

__all__ = ["compile_instance", "find_resources"]


def compile_instance(made: Instance, arch: int) -> tuple[bytes, str]:
    """The machine code of an instance, and what the assembler says of it."""
    library()
    program = nvrtc.createProgram(text(made.source), made.source, [], [])
    options = [f"-arch=sm_{arch}", "-std=c++17", *made.defines, "--ptxas-options=-v"]
    try:
        nvrtc.compileProgram(program, options)
        # CuPy cuts the last byte off, as if it ended a text: a zero, which the tools miss
        return nvrtc.getCUBIN(program) + b"\0", nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(nvrtc.getProgramLog(program)[:3000]) from error
    finally:
        nvrtc.destroyProgram(program)


def find_resources(log: str) -> dict[str, tuple[int, int, int]]:
    """Registers of a thread, bytes of its stack and bytes that it spills, by kernel."""
    found = re.findall(
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) "
        r"registers",
        log,
        re.DOTALL,
    )
    return {
        kernel: (int(registers), int(stack), int(spilled))
        for kernel, stack, spilled, registers in found
    }
