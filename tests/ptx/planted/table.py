"""
The form of the table: a bug is a line of a right kernel, replaced; the repaired twin is the kernel.

Each row says which finding must come, and on which line of the source; a right kernel must run to
its end and give NumPy's answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Bug", "Kernel", "Program"]


@dataclass(frozen=True)
class Bug:
    """A replacement in a source, and the finding that must come of it."""

    name: str
    right: str
    wrong: str
    kind: str
    at: str = ""
    """Words of the line of the source that must be named; empty: any line."""
    other: str = ""
    told: str = ""
    """Where such a bug is told in public; the kernel itself is written anew."""


@dataclass(frozen=True)
class Kernel:
    """A right kernel in CUDA C++, its launch, its answer, and the bugs planted in it."""

    name: str
    source: str
    grid: int
    threads: int
    arguments: Callable[[], list[Any]]
    answer: Callable[[list[Any]], None]
    bugs: tuple[Bug, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """A right program in Triton that holds its answer to PyTorch's, and the bugs planted in it."""

    name: str
    source: str
    bugs: tuple[Bug, ...]
