"""
Keeping a failure: its record and, where the implementation can be called, its script.
"""

import json
from dataclasses import asdict
from pathlib import Path

from attnverify.backends.loader import Implementation
from attnverify.failures.record import FailureRecord, load_records
from attnverify.failures.script import script
from attnverify.options import STATE_FOLDER


def _ignore_state(folder: Path) -> None:
    """The folder of what runs leave behind says itself that it is nothing for git."""
    for state in (folder, *folder.parents):
        if state.name == STATE_FOLDER and not (state / ".gitignore").exists():
            (state / ".gitignore").write_text("*\n")


def save(failure: FailureRecord, folder: str, implementation: Implementation | None) -> Path:
    """Write the record and, where the implementation can be called, its stand-alone script."""
    path = Path(folder) / f"{failure.hash}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _ignore_state(path.parent)
    record = {name: value for name, value in asdict(failure).items() if value is not None}
    path.write_text(json.dumps(record, sort_keys=True) + "\n")
    if implementation is not None:
        path.with_suffix(".py").write_text(script(failure, implementation))
    load_records.cache_clear()
    return path


def save_or_say(
    failure: FailureRecord, folder: str, implementation: Implementation | None
) -> tuple[str, ...]:
    """Save the failure; where that cannot be done, what is to be said of it."""
    try:
        save(failure, folder, implementation)
    except OSError as error:
        return (f"not recorded: {error.strerror or error}: {folder}",)
    return ()
