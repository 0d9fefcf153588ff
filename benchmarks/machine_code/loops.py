"""
Loops of machine code, and what one turn of them costs a processor of sm_90.

A processor issues one instruction a clock for each of its four quarters: ``issue`` is the number of
clocks that a tile of pairs takes if every quarter issues at every clock, ``tensor`` and ``special``
what the tensor cores and the unit for exponentials take for it. No kernel is faster than the
largest of them.
"""

import re
from collections import Counter
from dataclasses import dataclass

from attnverify.ptx.sass import Line

__all__ = [
    "Loop",
    "find_fast_feature_loop",
    "find_feature_gradient_loop",
    "find_feature_loop",
    "find_pair_loop",
]

BACK = re.compile(r"BRA\S*\s.*?(0x[0-9a-f]+)")
SHAPE = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)")
GROUPED, SINGLE = 4096, 2560
"""Operations a clock of a processor: products of a warp group, and of a warp."""


@dataclass(frozen=True)
class Loop:
    """The instructions of one turn of a loop, counted by name, for one warp."""

    counts: Counter[str]

    def count(self, *names: str) -> int:
        """How many instructions have one of these names, whatever comes behind the dot."""
        return sum(n for name, n in self.counts.items() if name.split(".")[0] in names)

    def issue(self, warps: int) -> float:
        """Clocks to issue a turn."""
        return self.counts.total() * warps / 4

    def tensor(self, warps: int) -> float:
        """Clocks of the tensor cores in a turn."""
        grouped = sum(n * operations(name) for name, n in self.counts.items() if SHAPE.match(name))
        single = 4096 * self.count("HMMA")
        return warps / 4 * grouped / GROUPED + warps * single / SINGLE

    def special(self, warps: int) -> float:
        """Clocks of the unit for exponentials and reciprocals in a turn."""
        return 2.0 * self.count("MUFU") * warps


def operations(name: str) -> int:
    """Of one product of a warp group."""
    match = SHAPE.match(name)
    assert match is not None
    return 2 * int(match[1]) * int(match[2]) * int(match[3])


def find_loops(lines: list[Line]) -> list[tuple[int, int]]:
    """First and last address of every loop: where a branch leads back."""
    found = []
    for line in lines:
        match = BACK.match(line.bare)
        if match and int(match[1], 16) < line.address:
            found.append((int(match[1], 16), line.address))
    return found


def count_loop(lines: list[Line], first: int, last: int) -> Loop:
    return Loop(Counter(line.name for line in lines if first <= line.address <= last))


def find_pair_loop(lines: list[Line]) -> Loop:
    """
    The loop over tiles: most products of matrices, and of several such loops the one of fewest
    instructions. Where a kernel walks whole tiles and those at the edge apart, that of the whole;
    what goes around another loop over tiles is none.
    """
    found = {each: count_loop(lines, *each) for each in find_loops(lines)}
    pairs = {
        each: loop
        for each, loop in found.items()
        if loop.counts["MUFU.EX2"] and (loop.count("HGMMA", "HMMA") or loop.count("FFMA") > 100)
    }
    inner = [loop for each, loop in pairs.items() if not any(goes_around(each, x) for x in pairs)]
    return min(inner, key=lambda loop: (-loop.tensor(4), loop.counts.total()))


def goes_around(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer != inner and outer[0] <= inner[0] and inner[1] <= outer[1]


def find_feature_loop(lines: list[Line]) -> Loop:
    """
    The loop over features of additive scores: of reciprocals without a product, the shortest;
    those of large projections are longer.
    """
    return min(feature_loops(lines), key=lambda loop: loop.counts.total())


def find_fast_feature_loop(lines: list[Line]) -> Loop:
    """The shortest loop of reciprocals without an exponential, which large projections take."""
    fast = [loop for loop in feature_loops(lines) if not loop.counts["MUFU.EX2"]]
    return min(fast, key=lambda loop: loop.counts.total())


def find_feature_gradient_loop(lines: list[Line]) -> Loop:
    """The shortest loop of reciprocals that adds to memory: it sums the features' gradients."""
    adding = [loop for loop in feature_loops(lines) if loop.count("RED", "ATOM", "ATOMG", "REDG")]
    return min(adding, key=lambda loop: loop.counts.total())


def feature_loops(lines: list[Line]) -> list[Loop]:
    loops = [count_loop(lines, *each) for each in find_loops(lines)]
    return [loop for loop in loops if loop.counts["MUFU.RCP"] and not loop.count("HGMMA", "HMMA")]
