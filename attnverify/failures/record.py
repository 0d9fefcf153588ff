"""
Replay: a failure is a few hundred bytes of JSON named by a hash of its content, and a script that
needs no Hypothesis.

A record says what was drawn (operation, dtype, recipe) and who failed on it first. It is tried on
every backend before anything new is drawn.
"""

import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnverify import ROOT
from attnverify.backends.loader import Implementation
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of

EXAMPLES = ROOT / "examples" / "failures"
"""Where the replays that the examples' known failures name are kept."""


@dataclass(frozen=True)
class FailureRecord:
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
        case: Case,
        aspect: str,
    ) -> "FailureRecord":
        """The record of a case."""
        recipe = json.loads(case.recipe.text)
        return cls._made_by(implementation, case.dtype, aspect, recipe, None)

    @classmethod
    def of_check(
        cls, implementation: Implementation, dtype: str, aspect: str, check: dict[str, Any]
    ) -> "FailureRecord":
        """The record of a check."""
        return cls._made_by(implementation, dtype, aspect, {}, check)

    @classmethod
    def _made_by(
        cls,
        implementation: Implementation,
        dtype: str,
        aspect: str,
        recipe: dict[str, Any],
        check: dict[str, Any] | None,
    ) -> "FailureRecord":
        return cls(
            operation=implementation.operation.name,
            dtype=dtype,
            aspect=aspect,
            recipe=recipe,
            implementation=implementation.name,
            backend=implementation.backend.source,
            check=check,
        )

    @property
    def case(self) -> Case:
        """What was drawn; a check has none."""
        return case_of(Recipe(**self.recipe), self.dtype)

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


def read_record(path: Path) -> FailureRecord:
    return FailureRecord(**json.loads(path.read_text()))


def find_record(name: str, folder: str) -> FailureRecord:
    """The record of a hash (or of the beginning of one), or of a file by path."""
    if Path(name).suffix == ".json":
        return read_record(Path(name))
    found = [
        path for place in (Path(folder), EXAMPLES) for path in sorted(place.glob(f"{name}*.json"))
    ]
    if not found:
        raise ValueError(f"hash: wanted a failure recorded in {folder}, got {name}")
    return read_record(found[0])


def recorded_recipes(operation: str, aspect: str, folder: str) -> list[Recipe]:
    """The recorded recipes of an operation and aspect: they come first, for every backend."""
    found = [
        failure
        for failure in load_records(folder)
        if (failure.operation, failure.aspect) == (operation, aspect)
    ]
    return [Recipe(**failure.recipe) for failure in found if not failure.check]


def recorded_checks(operation: str, aspect: str, folder: str) -> list[dict[str, Any]]:
    """The recorded checks: name, profile and seed of each."""
    found = [
        failure
        for failure in load_records(folder)
        if (failure.operation, failure.aspect) == (operation, aspect)
    ]
    return [failure.check for failure in found if failure.check]


@lru_cache
def load_records(folder: str) -> list[FailureRecord]:
    """All that are recorded."""
    return [read_record(path) for path in sorted(Path(folder).glob("*.json"))]
