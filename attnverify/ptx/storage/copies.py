"""Copies under way to shared memory: ``cp.async`` arrives when a thread waits for it."""

from dataclasses import dataclass

import numpy as np

from attnverify.ptx.kinds import Array

__all__ = ["Batch", "Copies"]


@dataclass
class Batch:
    """
    What some lanes copy with one instruction: to where, what, and in which group of each lane.
    """

    lanes: Array
    offsets: Array
    values: Array
    groups: Array
    index: int
    size: int

    def some(self, which: Array) -> "Batch":
        return Batch(
            self.lanes[which],
            self.offsets[which],
            self.values[which],
            self.groups[which],
            self.index,
            self.size,
        )


class Copies:
    """The copies of all lanes, and how many groups each has committed."""

    def __init__(self, lanes: int) -> None:
        self.committed = np.zeros(lanes, np.int64)
        self.batches: list[Batch] = []

    def start(self, lanes: Array, offsets: Array, values: Array, index: int, size: int) -> None:
        self.batches.append(Batch(lanes, offsets, values, self.committed[lanes], index, size))

    def arrived(self, lanes: Array, pending: int | None) -> list[Batch]:
        """
        Find what these lanes have waited for: all groups but the last ``pending``, or with None all
        copies.
        """
        limit = np.zeros(len(self.committed), np.int64)
        limit[lanes] = self.committed[lanes] - pending if pending is not None else 1 << 40
        arrived, kept = [], []
        for batch in self.batches:
            done = batch.groups < limit[batch.lanes]
            if done.all():
                arrived.append(batch)
            elif done.any():
                arrived.append(batch.some(done))
                kept.append(batch.some(~done))
            else:
                kept.append(batch)
        self.batches = kept
        return arrived
