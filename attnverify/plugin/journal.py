"""
A run that was broken off goes on: the results of its cells are kept as they come, and ``--resume``
takes them from there.

They are those of the same code alone: of the same contents of the backends' files and of those
beside them, of the same judge, versions, seed, profile and limits.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from attnverify import PACKAGE, ROOT, __version__
from attnverify.backends.source import PROJECT_BACKENDS, parse_source
from attnverify.options import STATE_FOLDER
from attnverify.report.table import number_of

CODE = (".py", ".cu", ".cuh", ".so")
LIBRARIES = ("numpy", "torch", "triton", "jax", "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes")


def fingerprint(sources: Iterable[str], *settings: Any) -> str:
    """Twelve hexadecimal digits of everything that a result depends on."""
    digest = hashlib.sha256(repr((__version__, platform.python_version(), settings)).encode())
    digest.update(repr([(name, _version_of(name)) for name in LIBRARIES]).encode())
    folders = [PACKAGE, *(ROOT / name for name in ("spec", "numpy_ref"))]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    for source in sources:
        digest.update(source.encode())
        files.update(_files_of(source))
    for file in sorted(files):
        digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _files_of(source: str) -> Iterator[Path]:
    """Yield the code of a backend: its package, or its file and what lies beside it."""
    asked = parse_source(source)
    place = Path(asked.place)
    if not asked.is_path:
        name = f"attnverify.{asked.place}" if asked.place in PROJECT_BACKENDS else asked.place
        with suppress(ImportError, ValueError):
            found = find_spec(name)
            place = Path(found.origin) if found and found.origin else place
    is_package = place.is_dir() or place.name == "__init__.py"
    folder = place if place.is_dir() else place.parent
    if place.exists():
        found_files = folder.rglob("*") if is_package else folder.glob("*")
        yield from (file for file in found_files if file.suffix in CODE and file.is_file())


class Journal:
    """
    The results of a run's cells in a file, one a line; where the folder cannot be written to there
    is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        """Take the results of the run that was broken off; half a line is none."""
        with suppress(OSError):
            for line in self.path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):
                    cell, tally = json.loads(line)
                    self.kept[cell] = tally

    def find(self, cell: str) -> dict[str, Any] | None:
        """Find the result of a cell in the run that was broken off."""
        return self.kept.get(cell)

    def add(self, cell: str, tally: dict[str, Any]) -> None:
        """Keep a result."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            (self.path.parents[1] / ".gitignore").write_text("*\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([cell, tally]) + "\n")

    def forget(self) -> None:
        """Begin anew, or end: nothing is left to go on with."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def open_journal(config: pytest.Config, sources: list[str], settings: Any) -> Journal | None:
    """
    Open the journal of a run: to go on with what was broken off, where that is asked for, and else
    from the beginning. Workers of pytest-xdist write into that of their controller.
    """
    given = getattr(config, "workerinput", None)
    if given is None and settings is None:
        return None
    name = fingerprint(sources, settings) if given is None else given.get("attn_journal")
    if not name:
        return None
    journal = Journal(Path(STATE_FOLDER) / "resume" / f"{name}.jsonl")
    if config.getoption("attn_resume"):
        journal.read()
    elif given is None:
        journal.forget()
    return journal


def tell_cut(left_out: list[str], judged: int, minutes: float | None) -> list[str]:
    """Say which cells a run had no time for."""
    if not left_out:
        return []
    named = "; ".join(left_out[:TOLD])
    rest = f" and {len(left_out) - TOLD} more" if len(left_out) > TOLD else ""
    return [
        f"cut by --minutes {minutes:g}: {len(left_out)} of {len(left_out) + judged} cells were not "
        f"judged, and nothing is known of them: {named}{rest}",
        "next, to judge them too: the same line with --resume",
    ]


TOLD = 8
"""Most cells that are named where a run was cut."""


def tell_interrupted(selected: int, judged: int) -> list[str]:
    """Say what a run that was broken off has not judged."""
    if not judged:
        return ["interrupted before anything was judged"]
    return [
        f"interrupted: {selected - judged} of {selected} cells were not judged",
        "next, to go on where it was broken off: the same line with --resume",
    ]


def tell_resumed(config: pytest.Config, journal: Journal | None) -> list[str]:
    """Say what --resume has found."""
    if not config.getoption("attn_resume") or journal is None:
        return []
    if not journal.kept:
        return ["nothing to resume: no run of these files, seed, profile and versions is there"]
    cells = number_of(len(journal.kept), "cell")
    return [f"resumed: {cells} judged before, of the same files, seed, profile and versions"]
