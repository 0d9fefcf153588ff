"""
Replay: a failure is a few hundred bytes of JSON named by a hash of its content, and a script that
needs no Hypothesis.

A record says what was drawn (operation, dtype, recipe) and who failed on it first. It is tried on
every backend before anything new is drawn.
"""

import base64
import hashlib
import json
import shlex
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import ROOT, bounds
from attnverify.backends.array_libraries import dtype_name
from attnverify.backends.loader import Implementation
from attnverify.catalogue.operation import DTYPES
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.checks.registry import checks
from attnverify.diagnosis.diagnose import diagnose
from attnverify.failures import script_runtime
from attnverify.inputs import memory_layouts
from attnverify.inputs.expand import Inputs, Recipe
from attnverify.inputs.fixed_cases import probes
from attnverify.inputs.sampling import draw
from attnverify.judge.case import Disagreement, Unsupported, judge, judge_side_effects, layout_kinds
from attnverify.reference.oracle import answer, bounded, lawful

EXAMPLES = ROOT / "examples" / "failures"
"""Where the replays that the examples' known failures name are kept."""


@dataclass(frozen=True)
class Failure:
    """
    One recorded failure: of a recipe, or of a check that is made anew from its name, profile and
    seed (attnverify/checks/registry.py).
    """

    operation: str
    dtype: str
    aspect: str
    recipe: dict[str, Any]
    implementation: str
    backend: str
    check: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        implementation: Implementation,
        recipe: Recipe | None,
        dtype: str,
        aspect: str,
        check: dict[str, Any] | None = None,
    ) -> "Failure":
        operation, source = implementation.operation.name, implementation.backend.source
        return cls(
            operation,
            dtype,
            aspect,
            json.loads(recipe.text) if recipe else {},
            implementation.name,
            source,
            check,
        )

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits of what was drawn; who failed on it is not part of it."""
        drawn = {"dtype": self.dtype, "aspect": self.aspect, "recipe": self.recipe}
        drawn |= {"operation": self.operation, "check": self.check} if self.check else {}
        return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def words(self) -> str:
        """What was drawn, for people."""
        return self.check["name"] if self.check else str(Recipe(**self.recipe))

    @property
    def replay_line(self) -> str:
        return f"attnverify replay {self.hash} --backend {shlex.quote(self.backend)}"

    def keep(self, folder: str, implementation: Implementation | None) -> Path:
        """Write the record and, where the implementation can be called, its stand-alone script."""
        path = Path(folder) / f"{self.hash}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {name: value for name, value in asdict(self).items() if value is not None}
        path.write_text(json.dumps(record, sort_keys=True) + "\n")
        if implementation is not None:
            path.with_suffix(".py").write_text(script(self, implementation))
        failures.cache_clear()
        return path


def read(path: Path) -> Failure:
    return Failure(**json.loads(path.read_text()))


def find(name: str, folder: str) -> Failure:
    """The record of a hash (or of the beginning of one), or of a file by path."""
    if Path(name).suffix == ".json":
        return read(Path(name))
    found = [
        path for place in (Path(folder), EXAMPLES) for path in sorted(place.glob(f"{name}*.json"))
    ]
    if not found:
        raise ValueError(f"hash: wanted a failure recorded in {folder}, got {name}")
    return read(found[0])


def recorded(operation: str, aspect: str, folder: str) -> list[Recipe]:
    """The recorded recipes of an operation and aspect: they come first, for every backend."""
    found = [
        failure
        for failure in failures(folder)
        if (failure.operation, failure.aspect) == (operation, aspect)
    ]
    return [Recipe(**failure.recipe) for failure in found if not failure.check]


def recorded_checks(operation: str, aspect: str, folder: str) -> list[dict[str, Any]]:
    """The recorded checks: name, profile and seed of each."""
    found = [
        failure
        for failure in failures(folder)
        if (failure.operation, failure.aspect) == (operation, aspect)
    ]
    return [failure.check for failure in found if failure.check]


@lru_cache
def failures(folder: str) -> list[Failure]:
    """All that are recorded."""
    return [read(path) for path in sorted(Path(folder).glob("*.json"))]


def judge_again(failure: Failure, implementation: Implementation) -> float:
    """
    Judge what was recorded once more; the share of the bound. Raises Disagreement or Unsupported.
    """
    if failure.check:
        name, profile, seed = (failure.check[key] for key in ("name", "profile", "seed"))
        checks(failure.operation, failure.aspect, profile, seed)[name](
            implementation, failure.dtype
        )
        return 0.0
    recipe = Recipe(**failure.recipe)
    if failure.aspect == "side effects":
        judge_side_effects(implementation, recipe, failure.dtype)
        return 0.0
    try:
        return judge(implementation, recipe, failure.dtype).budget
    except Disagreement as error:
        others = (*probes(failure.operation)[:6], *draw(failure.operation, "any", 6, 0))
        cause = diagnose(implementation, [recipe], failure.dtype, others)
        words = f"{error}\n  cause: {cause}" if cause else str(error)
        raise Disagreement(words, error.kind, error.budget, error.comparison, error.path) from error


def script(failure: Failure, implementation: Implementation) -> str:
    """
    A program that shows the failure with NumPy and the backend's own library alone: every call that
    was made, in order.
    """
    operation, library = implementation.operation, implementation.backend.library
    assert library is not None
    steps = (
        calls_of(failure, implementation) if failure.check else [step_of(failure, implementation)]
    )
    fixed = {
        "source": failure.backend
        if implementation.backend.by_name
        else str(Path(failure.backend).resolve()),
        "chapter": operation.chapter,
        "name": failure.implementation,
        "forward": failure.implementation.replace("_grad", ""),
        "library": library.name,
    }
    title = (
        f"{failure.implementation} of {failure.backend}, {failure.dtype}, {failure.aspect}: "
        f"{failure.words}"
    )
    body = (
        Path(script_runtime.__file__)
        .read_text()
        .replace("from attnverify.inputs.memory_layouts import arrange\n", "")
    )
    again = "".join(f"show_again(\n{packed(fixed | step)})\n" for step in steps) or TOO_LARGE
    return f'"""{title}"""\n\n{Path(memory_layouts.__file__).read_text()}\n\n{body}\n\n{again}'


TOO_LARGE = 'print("These inputs are too large for a script: use attnverify replay.")\n'
MOST = 1_000_000
"""The most numbers that a script carries."""


def step_of(failure: Failure, implementation: Implementation) -> dict[str, Any]:
    """The one call of a recipe, with what the law says."""
    recipe, dtype = Recipe(**failure.recipe), failure.dtype
    case = lawful(recipe, dtype)
    layout = dict(zip(case.inputs, layout_kinds(recipe, len(case.inputs)), strict=True))
    bound = bounded(
        recipe, dtype, implementation.precision(dtype if dtype != "bool" else "float64")
    )
    return {
        "dtype": dtype,
        "layout": layout,
        "inputs": case.inputs,
        "expected": case.expected,
        "bound": bound,
    }


def calls_of(failure: Failure, implementation: Implementation) -> list[dict[str, Any]]:
    """The calls that a check makes, watched, each with what the law says."""
    library, made = implementation.backend.library, []
    assert library is not None

    @wraps(implementation.function)
    def watched(**arguments: Any) -> Any:
        given = {name: value for name, value in arguments.items() if name != "dtype"}
        dtypes = [
            dtype_name(leaf)
            for leaf in leaves(given)
            if hasattr(leaf, "shape") and dtype_name(leaf) in DTYPES
        ]
        copies = map_leaves(
            lambda leaf: np.array(library.to_numpy(leaf)) if hasattr(leaf, "shape") else leaf, given
        )
        made.append((dtypes[0] if dtypes else failure.dtype, copies))
        return implementation.function(**arguments)

    with suppress(Disagreement, Unsupported):
        judge_again(failure, replace(implementation, function=watched))
    small = (
        sum(leaf.size for _, inputs in made for leaf in leaves(inputs) if isinstance(leaf, ndarray))
        <= MOST
    )
    return [step_of_call(implementation, dtype, inputs) for dtype, inputs in made] if small else []


def step_of_call(implementation: Implementation, dtype: str, inputs: Inputs) -> dict[str, Any]:
    operation, bound = implementation.operation, None
    try:
        expected = answer(operation, inputs)[0]
        if not operation.exact:
            bound = bounds.bound(operation.name, inputs, implementation.precision(dtype))
    except ValueError:
        expected = "ValueError"
    layout = dict.fromkeys(inputs, "contiguous")
    return {
        "dtype": dtype,
        "layout": layout,
        "inputs": inputs,
        "expected": expected,
        "bound": bound,
    }


def packed(arguments: dict[str, Any]) -> str:
    return "".join(f"    {name}={pack(value)},\n" for name, value in arguments.items())


def pack(tree: Any) -> str:
    """
    A tree of arrays as a literal: every array becomes
    ``array("dtype", shape, "its bytes, compressed")``.
    """
    return repr(map_leaves(lambda leaf: Literal(leaf) if isinstance(leaf, ndarray) else leaf, tree))


@dataclass(frozen=True)
class Literal:
    array: ndarray

    def __repr__(self) -> str:
        packed = base64.b85encode(
            zlib.compress(np.ascontiguousarray(self.array).tobytes(), 9)
        ).decode()
        return f"array({self.array.dtype.name!r}, {self.array.shape}, {packed!r})"
