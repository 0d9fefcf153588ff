"""
CUDA C++ to PTX by NVRTC, which needs no GPU; what was compiled once is kept on disk.

    module = compile_source(code, ("-std=c++17",), target=90)
    module["kernel"].launch(grid, threads, arguments)
"""

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnverify.ptx.kernel import Module
from attnverify.ptx.launchers.wheels import find_files

__all__ = ["Compiled", "compile_source", "compile_text", "include_folders"]

LIBRARIES = ("nvidia/cu13/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*")
HEADERS = ("nvidia/*/include", "triton/backends/nvidia/include")


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
    folders = [*find_files(*HEADERS), *([Path(toolkit) / "include"] if toolkit else [])]
    return tuple(str(folder) for folder in folders if folder.is_dir())


@cache
def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_now(source: str, options: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    nvrtc, program = library(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            raise ValueError(
                f"source: NVRTC does not compile it:\n{text_of(program, 'ProgramLog')}"
            )
        return text_of(program, "PTX"), [lowered(program, name) for name in names]
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


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
