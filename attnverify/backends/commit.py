"""
The commit at which code was judged: that of the repository, if any, which holds it.
"""

import importlib.util
import os
import subprocess
from pathlib import Path

from attnverify import IS_CHECKOUT, PACKAGE, ROOT
from attnverify.backends.source import PROJECT_BACKENDS, parse_source

HOME = ROOT if IS_CHECKOUT else PACKAGE
"""The folder that holds the specification and our own columns."""

NO_COMMIT = "none: no git repository holds it"

SECONDS = 10.0
"""How long git may take to answer."""


def describe_commit(path: Path | None) -> str:
    """
    Name the commit of the repository that holds a file or folder, and say whether it was changed
    since; or say that there is none.
    """
    if path is None or not path.exists():
        return NO_COMMIT
    place = path.resolve()
    folder = place if place.is_dir() else place.parent
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if not commit or not _ask_git(folder, "ls-files", "--", str(place)):
        return NO_COMMIT
    changed = _ask_git(folder, "status", "--porcelain", "-uno", "--", str(place))
    return f"{commit}{' with changes' * bool(changed)}"


def _ask_git(folder: Path, *words: str) -> str:
    """Return what git answers there; nothing where it cannot."""
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit_of_suite() -> str:
    """Name the commit of this checkout; an installation has none."""
    return describe_commit(HOME)


def commit_of_backend(source: str) -> str:
    """Name the commit of the file or package that a backend was loaded from."""
    asked = parse_source(source)
    if asked.place in PROJECT_BACKENDS:
        return describe_commit(HOME / asked.place)
    return describe_commit(Path(asked.place) if asked.is_path else _file_of_module(asked.place))


def _file_of_module(name: str) -> Path | None:
    """Find the file of a module or package, where this process can import it."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found and found.origin and found.has_location else None
