"""
The results of what was judged, kept as they come, so that a run that was broken off goes on.

They are those of the same code alone: of the same contents of the backends' files and of those
beside them, of the same judge, versions, seed, profile and limits.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnverify import COLUMNS, IS_CHECKOUT, PACKAGE, ROOT, __version__
from attnverify.backends.source import PROJECT_BACKENDS, parse_source
from attnverify.options import STATE_FOLDER

CODE = (".py", ".cu", ".cuh", ".so")
LIBRARIES = ("numpy", "torch", "triton", "jax", "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes")


def fingerprint(sources: Iterable[str], *settings: Any) -> str:
    """Twelve hexadecimal digits of everything that a result depends on."""
    digest = hashlib.sha256(repr((describe_versions(), settings)).encode())
    for source in sources:
        digest.update(source.encode())
        for file in sorted(_files_of(source)):
            digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def describe_versions() -> dict[str, str]:
    """Versions that a result depends on, by name; of this project its code too, "" where absent."""
    own = {"attnverify": f"{__version__}, code {code_of_judge()}"}
    own["Python"] = platform.python_version()
    return own | {name: _version_of(name) for name in LIBRARIES}


@lru_cache
def code_of_judge() -> str:
    """Eight hexadecimal digits of all Python files of this project, wherever they lie."""
    digest = hashlib.sha256()
    columns = [ROOT / name for name in COLUMNS] if IS_CHECKOUT else []
    for root, folder in [(PACKAGE, PACKAGE), *((ROOT, column) for column in columns)]:
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()[:8]


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


def journal_of(name: str) -> Journal:
    """The journal of that name, among what runs leave behind."""
    return Journal(Path(STATE_FOLDER) / "resume" / f"{name}.jsonl")
