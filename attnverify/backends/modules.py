"""
The modules of a backend: imported by name, or loaded by path under a private name; what they
import, and what their errors say.
"""

import ast
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from attnverify.backends.array_libraries import LIBRARIES
from attnverify.backends.machine import Machine, find_machine, imported_names
from attnverify.backends.source import PROJECT_BACKENDS
from attnverify.catalogue.traits import CHAPTERS
from attnverify.device_assignment import chosen_machine


def machine_of(path: Path | None) -> Machine | None:
    """What stands for a GPU; None where the file is not there or no Python, as its import says."""
    try:
        return find_machine(path) if path else None
    except (OSError, SyntaxError):
        return None


def place_of_code(place: str, by_name: bool) -> Path | None:
    """
    Where the kernels of a backend are written: a path, or the file of a module; None for our own
    columns, which look for a GPU themselves unless ``--device`` names the PTX machine, and for what
    is no Python.
    """
    if not by_name:
        return Path(place)
    if place in PROJECT_BACKENDS and chosen_machine() is not None:
        place = f"attnverify.{place}"
    elif place.partition(".")[0] in (*PROJECT_BACKENDS, "attnverify"):
        return None
    try:
        found = importlib.util.find_spec(place.partition(":")[0])
    except (ImportError, ValueError):
        return None
    origin = Path(found.origin) if found and found.origin else None
    if origin is None or origin.suffix != ".py":
        return None
    is_own_package = origin.name == "__init__.py" and "site-packages" not in origin.parts
    return origin.parent if is_own_package else origin


IMPORTED_ON: dict[str, Machine] = {}
"""Our own columns that were imported with the machine for a GPU, and which one that was."""


def check_not_imported(column: str, machine: Machine) -> None:
    """A column looks for its GPU as it is imported: what it found before it would keep."""
    if f"attnverify.{column}" in sys.modules and IMPORTED_ON.get(column) != machine:
        raise RuntimeError(f"{column} was imported before --device put the machine in place")
    IMPORTED_ON[column] = machine


class NotThere(Exception):
    """What was asked for by its name is not there, or no Python."""


NOT_COMPILED = "NVRTC does not compile it"


def line_of(error: BaseException) -> int:
    """Find the line that Python cannot read, or NVRTC compile; 1 where neither is why."""
    if isinstance(error, SyntaxError):
        return error.lineno or 1
    place = str(error).partition(NOT_COMPILED)[2].partition(".py(")[2].partition(")")[0]
    return int(place) if place.isdigit() else 1


def describe(error: BaseException) -> str:
    words, place = str(error), ""
    if NOT_COMPILED in words:
        words = "\n".join(words.splitlines()[:2])  # the first error, with its line
    if isinstance(error, SyntaxError):
        words, place = error.msg, f" (line {error.lineno})"  # str() says the line once more
    return f"{type(error).__name__}: {' '.join(words.split())[:300]}{place}"


def from_name(name: str) -> list[ModuleType]:
    """
    Load a module and, for a package, its submodules; the package is asked first whether it can run
    here.
    """
    ours = name.partition(".")[0] in PROJECT_BACKENDS
    if Path(name).is_file():
        raise NotThere(f"{name} is no Python file: wanted one whose name ends in .py")
    package = importlib.import_module(f"attnverify.{name}" if ours else name)
    return [package, *submodules(package)]


PRIVATE = "_attnverify_"
"""What the names begin with under which files are loaded."""


def from_path(path: Path) -> list[ModuleType]:
    """Load a file or a package by path, under a private name that shadows nothing."""
    file = path / "__init__.py" if path.is_dir() else path
    if not file.exists():
        raise NotThere(
            f"{path} is a folder without __init__.py: name one of its files"
            if path.is_dir()
            else f"no file {path}"
        )
    private = f"{PRIVATE}{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    for loaded in [
        name for name in sys.modules if name == private or name.startswith(f"{private}.")
    ]:
        del sys.modules[loaded]  # loading again is loading afresh
    places = [str(path)] if path.is_dir() else None
    spec = importlib.util.spec_from_file_location(private, file, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    if (folder := str(path.resolve().parent)) not in sys.path and uses_neighbours(file):
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return [module, *submodules(module)]


def uses_neighbours(file: Path) -> bool:
    """
    Tell whether a file imports what lies beside it, as Python finds it where the file is run, and
    what is nowhere else: its folder shadows nothing.
    """
    try:
        names = set(imported_names(ast.parse(file.read_bytes()))) - {file.stem}
    except (SyntaxError, ValueError):
        return False
    beside = [n for n in names if (file.parent / f"{n}.py").exists() or (file.parent / n).is_dir()]
    return any(importlib.util.find_spec(name) is None for name in beside)


def submodules(package: ModuleType) -> list[ModuleType]:
    """
    Return the submodules that can hold operations: the chapters and whatever else lies in the
    package.
    """
    if not hasattr(package, "__path__") or (hasattr(package, "missing") and package.missing()):
        return []
    found = [
        name for _, name, _ in pkgutil.iter_modules(package.__path__) if not name.startswith("_")
    ]
    in_order = [
        *(name for name in CHAPTERS if name in found),
        *(name for name in found if name not in CHAPTERS),
    ]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in in_order]


def imported_library(modules: list[ModuleType]) -> str:
    """
    Return the library whose arrays a backend's modules handle, judged by what they import, or what
    they have their names from: in their folder, else anywhere.
    """
    layer, seen = modules, {*modules}
    while layer:
        if library := library_in(layer):
            return library
        layer = [near for module in layer for near in neighbours(module) if near not in seen]
        seen |= {*layer}
    return library_in([one for module in modules for one in named_modules(module)]) or "numpy"


def library_in(modules: list[ModuleType]) -> str:
    imported = {name for module in modules for name in packages_in(source_of(module))}
    return next((name for name in LIBRARIES if name in imported), "")


def neighbours(module: ModuleType) -> list[ModuleType]:
    """List the modules of its folder that a module has its names from: they may do the work."""
    folder = folder_of(module)
    return [one for one in named_modules(module) if folder and folder_of(one) == folder]


def named_modules(module: ModuleType) -> list[ModuleType]:
    """List the modules that a module has its names from."""
    things = vars(module).values()
    names = [getattr(t, "__module__", None) or getattr(t, "__name__", None) for t in things]
    found = [sys.modules[name] for name in names if isinstance(name, str) and name in sys.modules]
    return [*dict.fromkeys(found)]


def folder_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).parent if file else None


def source_of(module: ModuleType) -> bytes:
    """Read the source of a module; empty for a compiled one, which has none."""
    file = getattr(module, "__file__", None) or ""
    return Path(file).read_bytes() if file.endswith(".py") else b""


def parse_module(module: ModuleType) -> ast.Module:
    """Parse the syntax of a module."""
    return ast.parse(source_of(module))


@lru_cache(256)
def packages_in(source: bytes) -> frozenset[str]:
    """Find the top-level packages that a source imports; a column's is loaded again and again."""
    return frozenset(imported_names(ast.parse(source)))
