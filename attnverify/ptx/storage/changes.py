"""Who changed last what others wait for: the other side of a lock that never opens."""

from typing import NamedTuple

__all__ = ["Change", "Changes"]


class Change(NamedTuple):
    """A write: its instruction, and the block and thread."""

    at: int
    block: int
    thread: int


class Changes:
    """
    The last change of each place that atomic and volatile accesses touch, by array and offset, and
    how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: dict[tuple[int, int], Change] = {}

    def note(self, place: tuple[int, int], change: Change) -> None:
        self.count += 1
        self.last[place] = change
