"""
Keeping a failure: its record and, where the implementation can be called, its script.
"""

import os
from contextlib import suppress
from pathlib import Path

from attnverify.backends.implementation import Implementation
from attnverify.failures.finding import NOT_RECORDED
from attnverify.failures.record import FailureRecord, forget_what_was_read
from attnverify.failures.scripts.script import script
from attnverify.options import STATE_FOLDER


def _ignore_state(folder: Path) -> None:
    """Make the folder of what runs leave behind say itself that it is nothing for git."""
    for state in (folder, *folder.parents):
        if state.name == STATE_FOLDER and not (state / ".gitignore").exists():
            (state / ".gitignore").write_text("*\n")


def save(failure: FailureRecord, folder: str, implementation: Implementation | None) -> Path:
    """
    Write the record and, where the implementation can be called, its stand-alone script; of more
    than MAX_RECORDS those go that have been met by nobody for longest.
    """
    path = Path(folder) / f"{failure.hash}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _ignore_state(path.parent)
    write_atomically(path, failure.text)
    if implementation is not None:
        write_atomically(path.with_name(failure.program), script(failure, implementation))
    for old in _by_age(path.parent)[:-MAX_RECORDS]:
        remove(old)
    forget_what_was_read()
    return path


MAX_RECORDS = 1000
"""Each of them is judged again in every run."""


def _by_age(folder: Path) -> list[Path]:
    """Sort the records of a folder, those first that were written longest ago."""
    ages = []
    for path in folder.glob("*.json"):
        with suppress(OSError):  # gone meanwhile, by another process
            ages.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(ages)]


def remove(record: Path) -> None:
    """Remove a record and its scripts, one for each implementation that failed on it."""
    for path in (record, *record.parent.glob(f"{record.stem}*.py")):
        path.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a file that nobody sees half-written: beside its place, and then into it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


ELSEWHERE = "for a replay, name a folder that can be written: --failures DIR"


def save_or_say(
    failure: FailureRecord, folder: str, implementation: Implementation | None
) -> tuple[str, ...]:
    """Save the failure; where that cannot be done, what is to be said of it."""
    try:
        save(failure, folder, implementation)
    except OSError as error:
        return (f"{NOT_RECORDED}{error.strerror or error}: {folder}; {ELSEWHERE}",)
    return ()
