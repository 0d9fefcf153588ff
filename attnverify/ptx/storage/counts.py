"""
What memory is made to do, on request: bank conflicts, and accesses that are spread out.

Shared memory has 32 banks of 4 bytes. A warp's request is served in as many turns as the busiest
bank has different words; requests of 8 and of 16 bytes a thread are served by halves and by
quarters of a warp. Global memory is read and written in sectors of 32 bytes (CUDA C++ Best
Practices Guide, "Coalesced access to global memory" and "Shared memory and memory banks"). Caches
are not modelled.
"""

from dataclasses import dataclass, field

import numpy as np

from attnverify.ptx.findings import Place
from attnverify.ptx.kinds import Array

__all__ = ["Counts"]

WARP, BANKS, WORD, SECTOR = 32, 32, 4, 32


@dataclass
class Counts:
    """By space and place: requests of warps, what they took, and the least that they could take."""

    found: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def note(self, space: str, place: Place, addresses: Array, lanes: Array, size: int) -> None:
        """Lanes access so many bytes each."""
        of = turns_of_banks if space == "shared" else sectors
        taken, least = of(addresses, lanes, size)
        what = place.instruction.split()[1 if place.instruction.startswith("@") else 0]
        line = f"{place.kernel}, {place.source or f'PTX line {place.line}'}, {what}"
        counts = self.found.setdefault((space, line), [0, 0, 0])
        for at, more in enumerate((len(np.unique(lanes // WARP)), taken, least)):
            counts[at] += more

    def lines(self) -> list[str]:
        """What took more than the least, the most wasteful first."""
        worst = sorted(self.found.items(), key=lambda each: each[1][2] - each[1][1])
        told = []
        for (space, line), (requests, taken, least) in worst:
            if taken > least:
                unit = "turns of the banks" if space == "shared" else "sectors of 32 bytes"
                told.append(
                    f"{line}: {requests} requests took {taken} {unit}, the least is {least}"
                )
        return told


def turns_of_banks(addresses: Array, lanes: Array, size: int) -> tuple[int, int]:
    """Turns that the requests of some warps take, and how many parts of requests there are."""
    parts = max(1, size // WORD)
    part = lanes // (WARP // parts)
    words = (addresses[:, None] + np.arange(0, max(size, WORD), WORD)) // WORD
    each = np.stack([np.broadcast_to(part[:, None], words.shape), words], -1).reshape(-1, 2)
    different = np.unique(each, axis=0)
    different[:, 1] %= BANKS
    busy, turns = np.unique(different, axis=0, return_counts=True)
    first = np.flatnonzero(np.diff(busy[:, 0], prepend=-1))
    return int(np.maximum.reduceat(turns, first).sum()), len(first)


def sectors(addresses: Array, lanes: Array, size: int) -> tuple[int, int]:
    """Sectors that the requests of some warps touch, and the least for so many different bytes."""
    warp = lanes // WARP
    touched = np.unique(np.stack([warp, addresses // SECTOR], 1), axis=0)
    different = np.unique(np.stack([warp, addresses], 1), axis=0)[:, 0]
    _, each = np.unique(different, return_counts=True)
    return len(touched), int((-(-each * size // SECTOR)).sum())
