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

from verify.backends import Implementation
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
    bound = bounded(recipe, failure.dtype, precision)
    assert implementation.backend.library is not None
    return SCRIPT.format(
        title=f"{failure.implementation} of {failure.backend}, {failure.dtype}, {failure.aspect}: {recipe}",
        source=str(Path(failure.backend).resolve()) if failure.backend.endswith(".py") else failure.backend,
        chapter=implementation.operation.chapter,
        name=failure.implementation,
        forward=failure.implementation.replace("_grad", ""),
        gradient=implementation.operation.is_gradient,
        library=implementation.backend.library.name,
        dtype=failure.dtype,
        inputs=pack(case.inputs),
        expected=pack(case.expected),
        bound=pack(bound),
    )


def pack(tree: Any) -> str:
    """A tree of arrays as a literal: every array becomes ``array("dtype", shape, "its bytes, compressed")``."""
    return Literal.write(map_leaves(lambda leaf: Literal(leaf) if isinstance(leaf, ndarray) else leaf, tree))


@dataclass(frozen=True)
class Literal:
    array: ndarray

    def __repr__(self) -> str:
        packed = base64.b85encode(zlib.compress(np.ascontiguousarray(self.array).tobytes(), 9)).decode()
        return f"array({self.array.dtype.name!r}, {self.array.shape}, {packed!r})"

    @staticmethod
    def write(tree: Any) -> str:
        return repr(tree)


SCRIPT = '''"""{title}"""

import base64
import importlib
import importlib.util
import zlib

import numpy as np

SOURCE, CHAPTER, NAME, LIBRARY, DTYPE = {source!r}, {chapter!r}, {name!r}, {library!r}, {dtype!r}


def array(dtype, shape, packed):
    return np.frombuffer(zlib.decompress(base64.b85decode(packed)), dtype).reshape(shape)


inputs = {inputs}
expected = {expected}
bound = {bound}


def load():
    if SOURCE.endswith(".py"):
        spec = importlib.util.spec_from_file_location("backend", SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, module
    root = importlib.import_module(SOURCE)
    return root, root if hasattr(root, {forward!r}) else importlib.import_module(SOURCE + "." + CHAPTER)


def to_backend(x):
    if isinstance(x, dict):
        return {{name: to_backend(leaf) for name, leaf in x.items()}}
    if isinstance(x, list):
        return [to_backend(leaf) for leaf in x]
    if not isinstance(x, np.ndarray):
        return x
    if hasattr(root, "from_numpy"):
        return root.from_numpy(x.copy(), DTYPE)
    if LIBRARY == "torch":
        import torch

        tensor = torch.from_numpy(x.copy())
        return tensor.to(getattr(torch, DTYPE)) if x.dtype.kind == "f" else tensor
    x = x.astype(DTYPE) if x.dtype.kind == "f" and DTYPE != "bfloat16" else x
    return importlib.import_module("jax.numpy" if LIBRARY == "jax" else LIBRARY).asarray(x)


def to_numpy(x):
    if hasattr(root, "to_numpy"):
        return root.to_numpy(x)
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        return (x.double() if x.is_floating_point() else x).numpy()
    x = np.asarray(x.get() if hasattr(x, "get") else x)
    return x if x.dtype == bool else x.astype(np.float64)


def run():
    given = {{name: to_backend(x) for name, x in inputs.items()}}
    if hasattr(module, NAME) or not {gradient}:
        return call(getattr(module, NAME), given)
    import torch

    d_output = given.pop("d_output")
    leaves = {{name: x.requires_grad_() for name, x in given.items() if torch.is_tensor(x) and x.is_floating_point()}}
    grads = torch.autograd.grad(call(getattr(module, {forward!r}), given), list(leaves.values()), d_output, allow_unused=True)
    return tuple(torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves.values(), grads))


def call(function, given):
    import inspect

    parameters = inspect.signature(function).parameters
    if set(given) <= set(parameters):
        return function(**given)
    return function(*list(given.values())[: len(parameters)])


def show(actual, law, limit, path="output"):
    if isinstance(law, (list, tuple)):
        for i, part in enumerate(law):
            show(actual[i], part, None if limit is None else limit[i], f"{{path}}[{{i}}]")
    elif law is not None:
        actual = to_numpy(actual)
        error = np.abs(actual - law) if law.dtype != bool else (actual != law).astype(float)
        wrong = ~((error <= (0 if limit is None else limit)) | (np.isnan(actual) & np.isnan(law)) | (actual == law))
        print(f"{{path}}: {{wrong.sum()}} of {{wrong.size}} elements out of bound")
        for index in np.argwhere(wrong)[:5]:
            i = tuple(index)
            print(f"  {{i}}: got {{actual[i]!r}}, law {{law[i]!r}}, bound {{0 if limit is None else limit[i]!r}}")


root, module = load()
with np.errstate(all="ignore"):
    show(run(), expected, bound)
'''
