"""
Files of public repositories, as they stand in the checkouts: definitions of a Python file, with
what these need and nothing that the file runs; kernels of a CUDA file.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from attnverify import ptx
from attnverify.ptx.launchers.nvrtc import compile_source
from attnverify.ptx.launchers.sources.files import read_whole
from attnverify.ptx.launchers.sources.inline import device_source

__all__ = ["Case", "bare_package", "commit", "cuda_kernel", "definitions", "largest"]


@dataclass(frozen=True)
class Case:
    """A kernel, where it stands, and the driver that runs it: outputs beside NumPy's in float64."""

    name: str
    repository: str
    file: str
    run: Callable[[Path], dict[str, tuple[Any, Any]]]
    unit: float
    """The rounding of its output: half of the gap behind 1."""
    finding: str | None = None
    """The kind of what is to be found in it, where it is no right kernel."""


def largest(pairs: dict[str, tuple[Any, Any]]) -> float:
    """Return the largest error over the largest expected value, of all outputs."""
    found = []
    for got, wanted in pairs.values():
        if np.shape(got) != np.shape(wanted):
            raise ValueError(f"wanted {np.shape(wanted)}, got {np.shape(got)}")
        found.append(np.abs(np.asarray(got, np.float64) - wanted).max() / np.abs(wanted).max())
    return float(max(found))


def commit(checkout: Path) -> str:
    """Return the commit of a checkout; a copy without history says it in a file ``COMMIT``."""
    told = checkout / "COMMIT"
    if told.is_file():
        return told.read_text().strip()
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def bare_package(name: str, folder: Path) -> None:
    """Let the modules of a package be imported without what its ``__init__`` runs."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules.setdefault(name, module)


def asked_for(statement: ast.stmt) -> set[str]:
    """Return the names that a statement needs from outside of itself."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    own = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    own |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    return {node.id for node in names} - own


def defined(statement: ast.stmt) -> Iterator[str]:
    """Return the names that a statement of a file's top level defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def definitions(file: Path, *wanted: str) -> ModuleType:
    """
    Import functions and classes of a file, and what these need: statements at its top level that
    define none of it are left out. Line numbers stay those of the file.
    """
    tree = ast.parse(file.read_text(), str(file))
    needed, kept = set(wanted), set[int]()
    while True:
        new = {
            i for i, each in enumerate(tree.body) if i not in kept and needed & set(defined(each))
        }
        if not new:
            break
        kept |= new
        needed = needed.union(*(asked_for(tree.body[i]) for i in new))
    tree.body = [each for i, each in enumerate(tree.body) if i in kept]
    module = ModuleType(f"public_{file.stem.replace('-', '_')}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    exec(compile(tree, str(file), "exec"), module.__dict__)
    return module


def cuda_kernel(
    file: Path, name: str, *, is_template: bool = False, change: tuple[str, str] | None = None
) -> ptx.Kernel:
    """
    Compile a CUDA file for sm_90, with what it includes from beside it or from ``common``, and
    return one of its kernels; ``change`` replaces a passage.
    """
    text = read_whole(file, [str(file.parents[1] / "common")])
    if change is not None:
        if text.count(change[0]) != 1:
            raise ValueError(f"{file}: wanted one {change[0]!r}, got {text.count(change[0])}")
        text = text.replace(*change)
    names = (name,) if is_template else ()
    module = compile_source(device_source(text), ("-std=c++17",), 90, names)
    found = name if is_template else next(each for each in module if name in each)
    return module[found]
