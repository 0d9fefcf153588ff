"""What the machine has to say: what it refuses to execute, and what it saw a kernel do wrong."""

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Finding", "NotUnderstood", "Place", "Source"]


class NotUnderstood(Exception):
    """
    An instruction, modifier, type or directive that the machine does not know: refused with its
    text, never guessed.
    """


@dataclass(frozen=True)
class Source:
    """
    A line of the file that was compiled; ``inlined`` is where the function of that line was called.
    """

    file: str
    line: int
    inlined: "Source | None" = None

    def __str__(self) -> str:
        called = "" if self.inlined is None else f", called at {self.inlined}"
        return f"{_shown(self.file)}:{self.line}{called}"


def _shown(file: str) -> str:
    """A path as it is printed: below the folder in which this process runs, from there."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


@dataclass(frozen=True)
class Place:
    """An instruction of a kernel, and the first thread that was seen at it."""

    kernel: str
    instruction: str
    line: int
    source: Source | None = None
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        told = [f"kernel {self.kernel}", f"PTX line {self.line}: {self.instruction}"]
        if self.source is not None:
            told.insert(0, str(self.source))
        if self.block is not None and self.thread is not None:
            told.append(f"block {self.block}, thread {self.thread}")
        return "; ".join(told)


@dataclass(eq=False)
class Finding(Exception):
    """Something that a kernel must not do, in plain English, with the place where it was seen."""

    kind: str
    message: str
    place: Place
    other: Place | None = field(default=None)

    def __str__(self) -> str:
        told = f"{self.kind}: {self.message} ({self.place})"
        return told if self.other is None else f"{told}; the other side: {self.other}"
