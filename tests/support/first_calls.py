"""
When each function of the judge is called first, over every process of a run: a file
``sitecustomize.py`` on the path starts the record in each of them.
"""

import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "attnverify."


def record_first_calls(file: str) -> None:
    """Append the time, the module and the name of every function that is called first."""
    seen = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith(PACKAGE):
            return
        called = f"{module.removeprefix(PACKAGE)} {frame.f_code.co_name}"
        if called not in seen:
            seen.add(called)
            with open(file, "a") as record:
                record.write(f"{time.monotonic_ns()} {called}\n")

    threading.setprofile(note)
    sys.setprofile(note)


def write_sitecustomize(folder: Path, record: Path) -> None:
    """The file that starts the record in every Python whose path has the folder."""
    lines = f"from {__name__} import record_first_calls\nrecord_first_calls({str(record)!r})\n"
    (folder / "sitecustomize.py").write_text(lines)


def read_first_calls(record: Path) -> list[tuple[str, str]]:
    """Module and function, in the order of their first calls."""
    lines = sorted(record.read_text().splitlines(), key=lambda line: int(line.split()[0]))
    calls = [tuple(line.split()[1:3]) for line in lines]
    return [(module, function) for module, function in dict.fromkeys(calls)]
