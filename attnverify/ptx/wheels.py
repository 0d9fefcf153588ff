"""Files that packages of CUDA brought along: tools, libraries, headers."""

import sys
from pathlib import Path

__all__ = ["find_files"]


def find_files(*patterns: str) -> list[Path]:
    """Find what matches, each pattern in turn, in every folder from which Python imports."""
    folders = dict.fromkeys(Path(folder).resolve() for folder in sys.path if folder)
    found = (path for like in patterns for folder in folders for path in sorted(folder.glob(like)))
    return list(dict.fromkeys(found))
