"""What each file of the book's data says of itself."""

import subprocess
from datetime import date
from importlib.metadata import version

from attnverify.machine import count_processors, processor_name


def stamp() -> dict[str, str]:
    """When, at which commit and on what, as each file of the book's data says it."""
    line = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": str(date.today()),
        "commit": commit,
        "profile": "default",
        "installed": f"numpy {version('numpy')}, {processor_name()}, {count_processors()} cores",
    }
