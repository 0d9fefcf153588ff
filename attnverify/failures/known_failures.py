"""
The known-failures file: what its author knows to be wrong, one line each with a reason.
"""

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from attnverify.backends.source import parse_source
from attnverify.catalogue.traits import ASPECTS
from attnverify.inputs.conditions import Condition, parse_condition
from attnverify.inputs.measures.scores import Case

KINDS = ("limitation", "nonconformance")
"""
What a known failure can be: less than the specification asks, and said so, or something else than
the specification.
"""

KIND = rf"(?:\[(?P<kind>{'|'.join(KINDS)})\]\s*)?"
LINE = re.compile(
    rf"(?P<name>\S+)\s+(?P<dtype>\S+)\s+(?P<aspect>{'|'.join(ASPECTS)})(?:\s+when\s+(?P<when>[^:]+?))?\s*:\s*{KIND}(?P<reason>.+)"
)
REPLAY = re.compile(r"\[replay ([0-9a-f]{5,})\]")


@dataclass(frozen=True)
class KnownFailure:
    """One line of the file."""

    name: str
    dtype: str
    aspect: str
    when: str | None
    reason: str
    source: str
    kind: str | None = None
    """One of KINDS, where the line says it."""

    backend: str | None = None
    """
    The backend beside whose file the line stands, as it was named; None: the line speaks of every
    backend of the run.
    """

    def speaks_of(self, backend: str, implementation: str, dtype: str, aspect: str) -> bool:
        named = self.backend in (None, backend) and fnmatchcase(implementation, self.name)
        return named and fnmatchcase(dtype, self.dtype) and self.aspect == aspect

    @property
    def replay(self) -> str | None:
        """The hash of the record that shows the failure, where the reason names one."""
        match = REPLAY.search(self.reason)
        return match[1] if match else None

    @cached_property
    def conditions(self) -> list[Condition]:
        return (
            [parse_condition(text.strip()) for text in re.split(r"\band\b", self.when or "")]
            if self.when
            else []
        )

    def covers(self, case: Case) -> bool:
        """
        Tell whether the case lies in the line's region; never, for a line that speaks of the whole
        cell.
        """
        return bool(self.when) and all(holds(case) for holds in self.conditions)


def read_known_failures(path: Path, backend: str | None = None) -> list[KnownFailure]:
    """
    Read the lines of a file, about one backend or about all; a line that cannot be read is an
    error, not a comment.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(
                replace(parse_line(line.strip(), f"{path.name}:{number}"), backend=backend)
            )
    return found


def parse_line(line: str, source: str) -> KnownFailure:
    match = LINE.fullmatch(line)
    if match is None:
        wanted = (
            "'<implementation> <dtype> <aspect> [when <conditions>] : <reason>' with an "
            f"aspect of {', '.join(ASPECTS)}"
        )
        raise ValueError(f"{source}: wanted {wanted}, got {line!r}")
    known = KnownFailure(**match.groupdict(), source=source)
    try:
        _ = known.conditions
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return known


def known_failures_file(source: str) -> Path | None:
    """
    Find the known failures that lie beside a backend's file, ``my_kernels.known-failures.txt``.
    """
    path = Path(parse_source(source).place)
    path = path if path.name else path.absolute()  # the folder in which this is started
    file = path.with_name(f"{path.stem}.known-failures.txt")
    return file if (path.suffix == ".py" or path.is_dir()) and file.exists() else None
