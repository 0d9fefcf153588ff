"""What is measured of the project's kernels, as the book's data hold it: when, at which commit."""

import json
import subprocess
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnverify import ROOT

COMPILERS = ("triton", "nvidia-cuda-nvrtc")


def stamp(profile: str) -> dict[str, Any]:
    """When, at which commit and with which compilers, as each file of the book's data says it."""
    line = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "profile": profile,
        "installed": ", ".join(f"{name} {version(name)}" for name in COMPILERS),
    }


def lines_of(path: Path, kind: str) -> list[dict[str, Any]]:
    """What a file holds of ``kernels`` or ``faults``; nothing where there is none yet."""
    return list(json.loads(path.read_text())[kind]) if path.exists() else []


def write(path: Path, profile: str, kind: str, lines: Sequence[dict[str, Any]]) -> None:
    """A line for each, so that a change is seen as one."""
    head = json.dumps(stamp(profile), indent=1)[:-2]
    body = ",\n".join(f"  {json.dumps(line)}" for line in lines)
    path.write_text(f'{head},\n "{kind}": [\n{body}\n ]\n}}\n')
