"""
The part of a stand-alone script that finds the backend: its file, its module, its arrays.

It stands in front of attnverify/failures/scripts/runtime.py in a generated script; nothing else of
ours may be imported here.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from numpy import ndarray

FromNumpy = Callable[[ndarray, str], Any]


def cannot_run(why: str) -> NoReturn:
    """End with the status by which git bisect passes over a commit."""
    print(why)
    sys.exit(125)


def load(source: str) -> ModuleType:
    """Load the backend by its name or file: one that cannot be loaded shows nothing."""
    try:
        return load_file(find(source)) if source[0] == "." else importlib.import_module(source)
    except Exception as error:
        cannot_run(f"{source} cannot be loaded: {type(error).__name__}: {error}")


def find(source: str) -> Path:
    """Find the file that the command line names, or by its place beneath here or the script."""
    if sys.argv[1:]:
        return Path(sys.argv[1]).resolve()
    places = [base / source for base in (Path.cwd(), *Path(__file__).resolve().parents)]
    return next((place for place in places if place.exists()), places[0]).resolve()


def load_file(path: Path) -> ModuleType:
    file, places = (path / "__init__.py", [str(path)]) if path.is_dir() else (path, None)
    spec = importlib.util.spec_from_file_location(
        "_backend", file, submodule_search_locations=places
    )
    assert spec is not None and spec.loader is not None
    sys.modules["_backend"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def modules(root: ModuleType, chapter: str) -> Iterator[ModuleType]:
    """Search the module itself, then the chapter, then whatever else lies in the package."""
    yield root
    found = [
        name
        for _, name, _ in pkgutil.iter_modules(getattr(root, "__path__", []))
        if not name.startswith("_")
    ]
    for name in sorted(found, key=lambda name: name != chapter):
        yield importlib.import_module(f"{root.__name__}.{name}")


def conversion(library: str) -> FromNumpy:
    """NumPy array to the library's, for a backend that brings no ``from_numpy``."""
    if library == "torch":
        torch = importlib.import_module("torch")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return lambda x, dtype: torch.from_numpy(np.array(x)).to(
            device, getattr(torch, dtype) if x.dtype.kind == "f" else None
        )
    asarray = importlib.import_module("jax.numpy" if library == "jax" else library).asarray

    def from_numpy(x: ndarray, dtype: str) -> Any:
        narrow = importlib.import_module("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
        return asarray(np.array(x, narrow if x.dtype.kind == "f" else x.dtype))

    return from_numpy
