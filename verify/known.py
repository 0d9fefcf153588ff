"""
Known failures: one line each in a file of the stranger's own, with a reason. They are strict: an unexpected pass is an error.

    # implementation   dtype     aspect     : reason                                     [replay <hash>]
    alibi_attention    float16   values     : slopes are rounded before the product      [replay 1f0c2d3e4a5b]
    softmax_*          *         refusals   : raises TypeError, PyTorch's convention
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from verify.cells import ASPECTS, Cell

LINE = re.compile(r"(?P<name>\S+)\s+(?P<dtype>\S+)\s+(?P<aspect>values|gradients|refusals|side effects|hidden NaN)\s*:\s*(?P<reason>.+)")


@dataclass
class Known:
    """One line of the file."""

    name: str
    dtype: str
    aspect: str
    reason: str
    source: str

    def speaks_of(self, cell: Cell) -> bool:
        own = cell.implementation
        return fnmatchcase(own.name, self.name) and fnmatchcase(cell.dtype, self.dtype) and self.aspect == cell.aspect


def read_known(path: Path) -> list[Known]:
    """The lines of a file; a line that cannot be read is an error, not a comment."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.split("#", 1)[0].strip():
            match = LINE.fullmatch(line.strip())
            if match is None:
                wanted = f"'<implementation> <dtype> <aspect> : <reason>' with an aspect of {', '.join(ASPECTS)}"
                raise ValueError(f"{path}:{number}: wanted {wanted}, got {line!r}")
            found.append(Known(**match.groupdict(), source=f"{path.name}:{number}"))
    return found


def beside(source: str) -> Path | None:
    """The known failures that lie beside a backend's file, ``my_kernels.known-failures.txt``."""
    path = Path(source)
    file = path.with_name(f"{path.stem}.known-failures.txt")
    return file if (path.suffix == ".py" or path.is_dir()) and file.exists() else None
