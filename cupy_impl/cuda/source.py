"""
The text of a kernel with all that it includes: what is compiled, and what a compiled kernel is
known by.
"""

import re
from pathlib import Path

__all__ = ["text"]

FOLDER = Path(__file__).parent / "kernels"
EMULATION = Path(__file__).parent / "emulation"
INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)


def text(name: str, folder: Path | None = None) -> str:
    """
    The source with its own headers in place, each where it is included first. (CuPy's cache does
    not look into headers.)
    """
    seen = {name}

    def read(header: str) -> str:
        path = (folder or FOLDER) / header
        return (path if path.exists() else EMULATION / header).read_text()

    def included(match: re.Match[str]) -> str:
        if match[1] in seen:
            return ""
        seen.add(match[1])
        return INCLUDE.sub(included, read(match[1]))

    return INCLUDE.sub(included, read(name)).replace("#pragma once\n", "")
