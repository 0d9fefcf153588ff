"""
What the system says of a process and of the machine: who waits for a processor, who holds memory,
how much there is.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class Moment:
    """
    A time, and how long each thread of a process and of its children had waited for a processor
    until then, in seconds.
    """

    time: float
    waits: dict[str, float]


def read_moment(pid: int) -> Moment:
    return Moment(time.monotonic(), dict(read_waits(pid)))


def seconds_since(then: Moment, now: Moment) -> float:
    """
    Seconds between two moments, less those in which others had the processors: what the thread has
    waited that waited longest, whether the process ran in it or waited for it.
    """
    waited = (now.waits[thread] - then.waits.get(thread, 0.0) for thread in now.waits)
    return now.time - then.time - max(waited, default=0.0)


def read_waits(pid: int) -> Iterator[tuple[str, float]]:
    """
    Read the seconds that each thread of a process and of its children has waited for a processor;
    nothing where the system does not say.
    """
    for task in threads_of(pid):
        try:
            yield task.name, int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            continue
    for child in children_of(pid):
        yield from read_waits(child)


def threads_of(pid: int) -> list[Path]:
    """List the threads of a process; none of one that has ended, at whatever moment."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def children_of(pid: int) -> Iterator[int]:
    """Read which processes a process has started; none where the system does not say."""
    for task in threads_of(pid):
        try:
            yield from map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue


def read_resident_memory(pid: int) -> float:
    """
    Read the memory that a process and its children hold, in MB; 0 where the system does not say.
    """
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    own = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return own + sum(map(read_resident_memory, children_of(pid)))


def installed() -> float:
    """Read the memory of this machine, in MB, shared among the workers of pytest-xdist."""
    return _memory("MemTotal")


def available() -> float:
    """Read the memory that is free on this machine, in MB, shared likewise."""
    return _memory("MemAvailable")


def _memory(name: str) -> float:
    """Read an entry; without end where nobody knows."""
    try:
        found = re.search(rf"{name}:\s+(\d+)", MEMORY.read_text())
    except OSError:
        found = None
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    return int(found[1]) / 1024 / workers if found else float("inf")
