"""
Replay: a failure is a few hundred bytes of JSON named by a hash of its content, and a script that needs no Hypothesis.

A record says what was drawn (operation, dtype, recipe) and who failed on it first. It is tried on every backend before
anything new is drawn.
"""

import base64
import hashlib
import json
import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from verify import layouts, standalone
from verify.backends import Implementation
from verify.judge import layout_kinds
from verify.oracle import bounded, lawful
from verify.recipes import Recipe
from verify.trees import map_leaves

EXAMPLES = Path(__file__).parent.parent / "examples" / "failures"
"""Where the replays that the examples' known failures name are kept."""


@dataclass(frozen=True)
class Failure:
    """One recorded failure."""

    operation: str
    dtype: str
    aspect: str
    recipe: dict[str, Any]
    implementation: str
    backend: str

    @classmethod
    def of(cls, implementation: Implementation, recipe: Recipe, dtype: str, aspect: str) -> "Failure":
        source = implementation.backend.source
        return cls(implementation.operation.name, dtype, aspect, json.loads(recipe.text), implementation.name, source)

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits of what was drawn; who failed on it is not part of it."""
        drawn = {"dtype": self.dtype, "aspect": self.aspect, "recipe": self.recipe}
        return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def replay_line(self) -> str:
        return f"verify replay {self.hash} --backend {self.backend}"

    def keep(self, folder: str, implementation: Implementation) -> Path:
        """Write the record and its stand-alone script."""
        path = Path(folder) / f"{self.hash}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), sort_keys=True) + "\n")
        path.with_suffix(".py").write_text(script(self, implementation))
        recorded.cache_clear()
        return path


def read(path: Path) -> Failure:
    return Failure(**json.loads(path.read_text()))


def find(name: str, folder: str) -> Failure:
    """The record of a hash (or of the beginning of one), or of a file by path."""
    if Path(name).suffix == ".json":
        return read(Path(name))
    found = [path for place in (Path(folder), EXAMPLES) for path in sorted(place.glob(f"{name}*.json"))]
    if not found:
        raise ValueError(f"hash: wanted a failure recorded in {folder}, got {name}")
    return read(found[0])


@lru_cache
def recorded(operation: str, aspect: str, folder: str) -> list[Recipe]:
    """The recorded recipes of an operation and aspect: they come first, for every backend."""
    failures = [read(path) for path in sorted(Path(folder).glob("*.json"))]
    return [Recipe(**failure.recipe) for failure in failures if (failure.operation, failure.aspect) == (operation, aspect)]


def script(failure: Failure, implementation: Implementation) -> str:
    """A program that shows the failure with NumPy and the backend's own library alone."""
    recipe = Recipe(**failure.recipe)
    case = lawful(recipe, failure.dtype)
    precision = implementation.precision(failure.dtype if failure.dtype != "bool" else "float64")
    assert implementation.backend.library is not None
    arguments: dict[str, Any] = {
        "source": failure.backend if implementation.backend.by_name else str(Path(failure.backend).resolve()),
        "chapter": implementation.operation.chapter,
        "name": failure.implementation,
        "forward": failure.implementation.replace("_grad", ""),
        "library": implementation.backend.library.name,
        "dtype": failure.dtype,
        "layout": dict(zip(case.inputs, layout_kinds(recipe, len(case.inputs)), strict=True)),
        "inputs": case.inputs,
        "expected": case.expected,
        "bound": bounded(recipe, failure.dtype, precision),
    }
    title = f"{failure.implementation} of {failure.backend}, {failure.dtype}, {failure.aspect}: {recipe}"
    body = Path(standalone.__file__).read_text().replace("from verify.layouts import arrange\n", "")
    call = "".join(f"    {name}={pack(value)},\n" for name, value in arguments.items())
    return f'"""{title}"""\n\n{Path(layouts.__file__).read_text()}\n\n{body}\n\nshow_again(\n{call})\n'


def pack(tree: Any) -> str:
    """A tree of arrays as a literal: every array becomes ``array("dtype", shape, "its bytes, compressed")``."""
    return repr(map_leaves(lambda leaf: Literal(leaf) if isinstance(leaf, ndarray) else leaf, tree))


@dataclass(frozen=True)
class Literal:
    array: ndarray

    def __repr__(self) -> str:
        packed = base64.b85encode(zlib.compress(np.ascontiguousarray(self.array).tobytes(), 9)).decode()
        return f"array({self.array.dtype.name!r}, {self.array.shape}, {packed!r})"
