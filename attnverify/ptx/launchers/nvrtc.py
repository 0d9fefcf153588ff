"""
CUDA C++ to PTX by NVRTC, which needs no GPU; what was compiled once is kept on disk.

    module = compile_source(code, ("-std=c++17",), target=90)
    module["kernel"].launch(grid, threads, arguments)
"""

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnverify.ptx.kernel import Module
from attnverify.ptx.wheels import find_files

__all__ = ["Compiled", "compile_source", "compile_text", "include_folders"]

ASSERT = """#pragma once
#undef assert
#define assert(condition) ((condition) ? (void)0 : __trap())
"""
WHOLE_NUMBERS = """#pragma once
#include <cuda/std/cstdint>
using namespace cuda::std;
"""

NUMERIC_LIMITS = """#pragma once
#include <cuda/std/limits>
namespace std { using cuda::std::numeric_limits; }
"""

LIBRARIES = ("nvidia/cu13/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*")
HEADERS = (
    *("nvidia/*/include", "nvidia/*/include/cccl", "triton/backends/nvidia/include"),
    "cupy/_core/include/cupy/_cccl/libcudacxx",
)
"""Where packages have the headers of CUDA, and the standard library of its C++ (CCCL)."""

EMPTY = ("stdio.h", "cstdio", "stdlib.h", "cstdlib", "iostream")
MATH = """#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI 3.14159265358979323846
"""
LIMITS = "".join(f"#define {name} {value}\n" for name, value in {
    "CHAR_BIT": "8", "SCHAR_MAX": "127", "UCHAR_MAX": "255", "SHRT_MAX": "32767",
    "INT_MAX": "2147483647", "INT_MIN": "(-INT_MAX - 1)", "UINT_MAX": "4294967295U",
    "LLONG_MAX": "9223372036854775807LL", "LLONG_MIN": "(-LLONG_MAX - 1)",
    "ULLONG_MAX": "18446744073709551615ULL", "LONG_MAX": "9223372036854775807L",
    "FLT_MAX": "3.402823466e+38F", "FLT_MIN": "1.175494351e-38F",
    "FLT_EPSILON": "1.192092896e-07F", "DBL_MAX": "1.7976931348623158e+308",
    "DBL_MIN": "2.2250738585072014e-308", "DBL_EPSILON": "2.2204460492503131e-16",
}.items())  # fmt: skip
LIMITS = f"#pragma once\n{LIMITS}"

OWN = {
    **dict.fromkeys(EMPTY, ""),
    **dict.fromkeys(("math.h", "cmath"), MATH),
    **dict.fromkeys(("float.h", "limits.h", "cfloat", "climits"), LIMITS),
    **dict.fromkeys(("assert.h", "cassert"), ASSERT),
    "limits": NUMERIC_LIMITS,
    **dict.fromkeys(("stdint.h", "cstdint"), WHOLE_NUMBERS),
}
"""Headers of the host that device code includes: what they are for, NVRTC has without them."""


class Compiled(Module):
    """
    A module, whose kernels are also found by the expressions that were asked for: ``kernel<float,
    64>``.
    """

    def __init__(self, text: str, names: dict[str, str]) -> None:
        super().__init__(text)
        self.names = names

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(self.names.get(name, name))


def compile_source(
    source: str, options: Sequence[str] = (), target: int = 90, names: Sequence[str] = ()
) -> Compiled:
    """
    Compile the kernels of a CUDA C++ source, with line numbers, for a target.

    A ValueError carries the compiler's words. ``names`` are expressions of templates to
    instantiate.
    """
    text, lowered = compile_text(
        source, (f"-arch=compute_{target}{'a' if target == 90 else ''}", *options), tuple(names)
    )
    return Compiled(text, lowered)


@cache
def compile_text(
    source: str, options: tuple[str, ...], names: tuple[str, ...] = ()
) -> tuple[str, dict[str, str]]:
    """PTX, and the names that expressions have in it; from the disk if it is there."""
    options = (*options, "-lineinfo", *(f"-I{folder}" for folder in include_folders()))
    key = hashlib.sha256(
        "\0".join([str(version()), source, *options, "", *names]).encode()
    ).hexdigest()
    kept = cache_folder() / f"{key}.ptx"
    if kept.exists():
        first, text = kept.read_text().split("\n", 1)
        return text, dict(zip(names, first.split("\t")[1:], strict=True))
    text, lowered = compile_now(source, options, names)
    write_to_cache(kept, "\t".join(["//", *lowered]) + "\n" + text)
    return text, dict(zip(names, lowered, strict=True))


def cache_folder() -> Path:
    """
    Tell where compiled kernels are kept: ATTNVERIFY_CACHE_DIR, or the user's folder for caches.
    """
    given = os.environ.get("ATTNVERIFY_CACHE_DIR")
    usual = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "attnverify"
    return Path(given) if given else usual / "ptx"


def write_to_cache(path: Path, text: str) -> None:
    """Write a file whole or not at all; a folder that cannot be written to keeps nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        return


# the library


@cache
def library() -> Any:
    """Load NVRTC, from its wheel or from a CUDA toolkit."""
    for path in (*find_files(*LIBRARIES), "libnvrtc.so"):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    raise ImportError("NVRTC is not here: pip install nvidia-cuda-nvrtc")


@cache
def include_folders() -> tuple[str, ...]:
    """Headers of CUDA that other packages brought along."""
    toolkit = os.environ.get("CUDA_PATH")
    given = Path(toolkit) / "include" if toolkit else None
    folders = [*find_files(*HEADERS), *([given, given / "cccl"] if given else [])]
    return tuple(str(folder) for folder in folders if folder.is_dir())


@cache
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_now(source: str, options: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    nvrtc, program = library(), ctypes.c_void_p()
    own = (OWN.values(), OWN)
    texts, files = ((ctypes.c_char_p * len(OWN))(*(x.encode() for x in each)) for each in own)
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", len(OWN), texts, files
    )
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            raise ValueError(
                f"source: NVRTC does not compile it:\n{errors_of(text_of(program, 'ProgramLog'))}"
            )
        return text_of(program, "PTX"), [lowered(program, name) for name in names]
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def errors_of(log: str) -> str:
    """What a compiler says, without its warnings where there are errors."""
    told = re.split(r"\n\n+", log)
    errors = [each for each in told if " error" in each.partition("\n")[0]]
    return "\n\n".join(errors) or log


def text_of(program: ctypes.c_void_p, what: str) -> str:
    nvrtc, size = library(), ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.value.decode()


def lowered(program: ctypes.c_void_p, name: str) -> str:
    found = ctypes.c_char_p()
    library().nvrtcGetLoweredName(program, name.encode(), ctypes.byref(found))
    return (found.value or b"").decode()
