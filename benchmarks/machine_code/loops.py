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
from math import prod

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
    """The instructions of a loop, each once."""
    return Loop(Counter(line.name for line in lines if first <= line.address <= last))


def count_executed(lines: list[Line], first: int, last: int) -> Loop:
    """
    What one turn executes: a loop inside of it that has products as often as it turns. One that has
    none only clears what is not finite, and is counted once.
    """
    inner = [
        (at, count_turns(lines, *at))
        for at in find_loops(lines)
        if goes_around((first, last), at) and has_products(lines, *at)
    ]
    counts = Counter[str]()
    for line in lines:
        if first <= line.address <= last:
            turns = (n for (start, end), n in inner if start <= line.address <= end)
            counts[line.name] += prod(turns)
    return Loop(counts)


def has_products(lines: list[Line], first: int, last: int) -> bool:
    return any(
        first <= line.address <= last and line.name.split(".")[0] in ("HGMMA", "HMMA")
        for line in lines
    )


LIMIT = re.compile(r"ISETP\.(GE|NE)\.\S+ (U?P\d), PT, (R\d+)(?:\.reuse)?, (0x[0-9a-f]+), PT")
STEP = re.compile(r"(?:VIADD|IADD3) (R\d+), \1(?:\.reuse)?, (0x[0-9a-f]+)")


def count_turns(lines: list[Line], first: int, last: int) -> int:
    """
    How often a loop turns whose counter is held to a number that the code has; ValueError where it
    is another. Warps share such a loop and begin below its step: of the first, which has most. Of a
    counter that is compared before it is moved on, the last turn is the one that compares.
    """
    body = [line for line in lines if first <= line.address <= last]
    guard = re.match(r"@!?(U?P\d)", body[-1].text)
    found = [(x.address, m) for x in body if (m := LIMIT.match(x.bare))]
    limits = [(at, m) for at, m in found if guard and m[2] == guard[1]]
    moved = {m[1]: (x.address, int(m[2], 16)) for x in body if (m := STEP.match(x.bare))}
    if not limits or limits[-1][1][3] not in moved:
        raise ValueError(f"loop at {first:#x}: wanted a counter held to a number, got none")
    compared, limit = limits[-1]
    at, step = moved[limit[3]]
    turns = -(-int(limit[4], 16) // step)
    return turns + 1 if compared < at else turns


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
    inner = [each for each in pairs if not any(goes_around(each, x) for x in pairs)]
    whole = min(inner, key=lambda each: (-pairs[each].tensor(4), pairs[each].counts.total()))
    return count_executed(lines, *whole)


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
