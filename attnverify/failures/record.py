"""
Replay: a failure is a few hundred bytes of JSON named by a hash of its content, and a script that
needs no Hypothesis.

A record says what was drawn (operation, dtype, recipe) and who failed on it first. It is tried on
every backend before anything new is drawn.
"""

import hashlib
import json
import os
import re
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnverify import ROOT
from attnverify.backends.implementation import Implementation
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of, refuse_what_is_refused
from attnverify.machine import describe_machine
from attnverify.options import PROFILES
from attnverify.specified import is_specified_otherwise, register_recorded

FORMAT = 3
"""
Of the file: 1 said what was drawn and who failed; 2 says its format, the checksum of the inputs and
the machine too; 3 how many cases the run drew, by which a replay finds the cause again.
"""

EXAMPLES = ROOT / "examples" / "failures"
"""Where the replays that the examples' known failures name are kept."""


@dataclass(frozen=True)
class FailureRecord:
    """
    One recorded failure: of a recipe, or of a check that is made anew from its name, profile and
    seed (attnverify/checks/registry.py).

    inputs   the checksum of what the recipe was expanded to; "" for a check
    machine  the processor, the BLAS and the NumPy with which it was seen
    draws    how many cases the run drew, and from which seed
    specification  the file of an operation from outside of the catalogue; "" for ours
    """

    operation: str
    dtype: str
    aspect: str
    recipe: dict[str, Any]
    implementation: str
    backend: str
    check: dict[str, Any] | None = None
    inputs: str = ""
    machine: dict[str, str] = field(default_factory=dict)
    draws: dict[str, int] | None = None
    specification: str = ""

    @classmethod
    def of(
        cls,
        implementation: Implementation,
        case: Case,
        aspect: str,
    ) -> "FailureRecord":
        """Build the record of a case."""
        recipe = json.loads(case.recipe.text)
        return cls._made_by(implementation, case.dtype, aspect, recipe, None, case.checksum)

    @classmethod
    def of_check(
        cls, implementation: Implementation, dtype: str, aspect: str, check: dict[str, Any]
    ) -> "FailureRecord":
        """Build the record of a check."""
        return cls._made_by(implementation, dtype, aspect, {}, check)

    @classmethod
    def _made_by(
        cls,
        implementation: Implementation,
        dtype: str,
        aspect: str,
        recipe: dict[str, Any],
        check: dict[str, Any] | None,
        inputs: str = "",
    ) -> "FailureRecord":
        return cls(
            operation=implementation.operation.name,
            dtype=dtype,
            aspect=aspect,
            recipe=recipe,
            implementation=implementation.name,
            backend=implementation.backend.source,
            check=check,
            inputs=inputs,
            machine=describe_machine(),
            specification=getattr(implementation.operation, "source", ""),
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
    def program(self) -> str:
        """The file of the script that shows it, one for each implementation that failed on it."""
        who = hashlib.sha256(f"{self.backend}\n{self.implementation}".encode()).hexdigest()[:4]
        return f"{self.hash}-{who}.py"

    @property
    def words(self) -> str:
        """What was drawn, for people."""
        return self.check["name"] if self.check else str(Recipe(**self.recipe))

    @property
    def replay_line(self) -> str:
        """The line that shows it again: the test, of a function within one, which nobody loads."""
        place, _, function = self.backend.partition(":")
        test = function.partition(".<locals>")[0]
        if test != function and place.endswith(".py") and test.startswith("test"):
            return f"pytest {shlex.quote(f'{place}::{test}')}"
        if test != function:
            return f"call {test} again, where this case comes first"
        return f"attnverify replay {self.hash} --backend {shlex.quote(self.backend)}"

    @property
    def text(self) -> str:
        """The record as its file holds it."""
        fields = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return json.dumps({"format": FORMAT} | fields, sort_keys=True) + "\n"

    def describe_drift(self) -> str:
        """What is to be said where the recipe does not give the inputs that were recorded."""
        if not self.inputs or self.case.checksum == self.inputs:
            return ""
        there = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        return f"the inputs drawn here are not those that were recorded ({there})"


def read_record(path: Path) -> FailureRecord:
    """
    Read the record in a file. Raises ValueError where it holds none that can be replayed here.
    """
    try:
        record = _parse_record(json.loads(path.read_text(encoding="utf-8")))
        if re.fullmatch("[0-9a-f]{12}", path.stem) and path.stem != record.hash:
            raise ValueError(f"what it holds has the hash {record.hash}")
    except Exception as error:  # whatever a damaged recipe runs into when it is drawn
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path}: no record that can be read ({words})") from None
    return record


def _parse_record(plain: dict[str, Any]) -> FailureRecord:
    """Build the record of plain data, if it can be drawn."""
    number = plain.pop("format", 1)
    if number not in range(1, FORMAT + 1):
        raise ValueError(f"format: wanted at most {FORMAT}, got {number}")
    record = FailureRecord(**plain)
    register_recorded(record.operation, record.specification)
    if record.check:
        wanted = record.check["name"], record.check["seed"], PROFILES[record.check["profile"]]
        assert all(value is not None for value in wanted)
    else:
        refuse_what_is_refused(Recipe(**record.recipe), record.dtype)
    return record


def find_record(name: str, folder: str) -> FailureRecord:
    """Find the record of a hash (or of the beginning of one), or of a file by path."""
    if Path(name).suffix == ".json":
        return read_record(Path(name))
    found = [
        path for place in (Path(folder), EXAMPLES) for path in sorted(place.glob(f"{name}*.json"))
    ]
    if not found:
        raise ValueError(f"hash: wanted a failure recorded in {folder}, got {name}")
    if found[0].parent != EXAMPLES:
        with suppress(OSError):  # what is asked for by its name is in use, and not forgotten soon
            os.utime(found[0])
    return read_record(found[0])


def recorded_recipes(operation: str, aspect: str, folder: str) -> list[Recipe]:
    """List the recorded recipes of an operation and aspect: they come first, for every backend."""
    found = [
        failure
        for failure in load_records(folder)
        if (failure.operation, failure.aspect) == (operation, aspect)
    ]
    return [Recipe(**failure.recipe) for failure in found if not failure.check]


def recorded_checks(operation: str, aspect: str, folder: str) -> list[dict[str, Any]]:
    """List the recorded checks: name, profile and seed of each."""
    found = [
        failure
        for failure in load_records(folder)
        if (failure.operation, failure.aspect) == (operation, aspect)
    ]
    return [failure.check for failure in found if failure.check]


def load_records(folder: str) -> list[FailureRecord]:
    """Load all that are recorded and can be read."""
    return _read_folder(folder, Path.cwd())[0]


def describe_damaged_records(folder: str) -> list[str]:
    """Of each file that cannot be read as a record what is wrong with it; it is left out."""
    return _read_folder(folder, Path.cwd())[1]


def forget_what_was_read() -> None:
    """Others may have written failures down meanwhile: the folders are read anew."""
    _read_folder.cache_clear()


@lru_cache
def _read_folder(folder: str, below: Path) -> tuple[list[FailureRecord], list[str]]:
    """Read the records, and what is wrong with the files that are none; ``below``: where we are."""
    records, damaged = [], []
    for path in sorted(Path(folder).glob("*.json")):
        if _is_of_another_specification(path):
            continue
        try:
            records.append(read_record(path))
        except ValueError as error:
            damaged.append(f"{error}: left out; attnverify forget {path.stem} removes it")
    return records, damaged


def _is_of_another_specification(path: Path) -> bool:
    """Tell whether a record speaks of an operation whose name means something else in this run."""
    with suppress(ValueError, OSError, AttributeError):  # what is damaged is told when it is read
        plain = json.loads(path.read_text(encoding="utf-8"))
        return is_specified_otherwise(plain.get("operation", ""), plain.get("specification", ""))
    return False
