"""
How long a run will take yet: what calls of this kernel have cost so far, by how many queries and
keys they had, times the calls that are left.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import FROM_SOME, count_draws, count_hidden
from attnverify.options import ANSWER
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.search import forward_and_gradient
from attnverify.verdicts.shown import recipes_to_call_twice, shown_recipes
from attnverify.verdicts.tally import Options

HIDDEN = {"hidden NaN": "nan", "isolation": FROM_SOME}
FEW = 16
"""After so many calls their cost is known well enough to be told."""
SLOW = 0.2
"""Seconds of a call above which it is the kernel that takes them, and its size may say how many."""
SHARED = 0.9
"""So much at least of what calls differ by must their sizes explain, to be scaled by them."""
OTHERS = 16
"""Calls that are refused, about; none is large."""


def size_of(sizes: Mapping[str, int]) -> int:
    """Count the pairs of queries and keys of a call, in all heads."""
    N = sizes.get("N", 1)
    return prod((sizes.get("B", 1), sizes.get("H", 1), N, sizes.get("M", N)))


def planned_recipes(cell: Cell, options: Options) -> Iterator[Recipe]:
    """List what a cell is shown, as far as it can be told before."""
    own = cell.gradient if cell.aspect == "gradients" and cell.gradient else cell.implementation
    if cell.aspect in ANSWER:
        cases = count_draws(own.operation.name, options.cases)
        shown = shown_recipes(own, cell.aspect, options, "any", cases, cell.dtype)
        yield from (*shown.at_first, *shown.drawn, *shown.real)
    for one in forward_and_gradient(cell) if cell.aspect in HIDDEN else ():
        kind = HIDDEN[cell.aspect]
        yield from shown_recipes(
            one, cell.aspect, options, kind, count_hidden(kind, options.cases)
        ).drawn
    for one in forward_and_gradient(cell) if cell.aspect == "side effects" else ():
        yield from 2 * recipes_to_call_twice(one, options)


@dataclass
class Calls:
    """How many calls there were, the means of their seconds and pairs, and how these vary."""

    count: int = 0
    mean: float = 0.0
    size: float = 0.0
    spread: float = 0.0
    shared: float = 0.0
    varied: float = 0.0

    def add(self, size: int, seconds: float, many: int) -> None:
        """Note so many calls of a size, each of so many seconds."""
        self.count += many
        share, more, longer = many / self.count, size - self.size, seconds - self.mean
        self.size, self.mean = self.size + share * more, self.mean + share * longer
        weight = many * (1 - share)
        self.spread += weight * more**2
        self.shared += weight * more * longer
        self.varied += weight * longer**2

    def rates(self) -> tuple[float, float]:
        """Estimate the seconds of a call, and those of each pair that it has, by least squares."""
        explained = self.shared**2 >= SHARED * self.spread * self.varied
        if self.mean < SLOW or self.shared <= 0 or not explained:
            return self.mean, 0.0
        each = min(self.shared / self.spread, self.mean / self.size)
        return self.mean - each * self.size, each


class Remaining:
    """
    What is known of a run's time: of its cells by name those that are left, the calls so far, and
    how much longer than planned each aspect took.
    """

    def __init__(self, cells: Mapping[str, Cell], options: Options) -> None:
        self.left, self.options = dict(cells), options
        self.plans = dict[tuple[str, str], list[int]]()
        self.calls = Calls()
        self.took: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.now: tuple[int, float] | None = None
        self.begun = dict[str, tuple[float, int]]()

    def begin(self, name: str) -> None:
        """Note that a cell has begun."""
        self.begun[name], self.now = (time.monotonic(), self.calls.count), None

    def call(self, sizes: Mapping[str, int], many: int = 1) -> None:
        """
        Note that a call of these sizes begins, and so how long the one before took, and those that
        were missed since.
        """
        moment = time.monotonic()
        if self.now:
            self.calls.add(self.now[0], (moment - self.now[1]) / many, many)
        self.now = size_of(sizes), moment

    def end(self, name: str) -> None:
        """Note that a cell is over, and what it took of what was planned."""
        cell, (since, _) = self.left.pop(name, None), self.begun.pop(name, (0.0, 0))
        if cell and since:
            spent = self.took[cell.aspect]
            spent[0] += time.monotonic() - since
            spent[1] += self.cost(self.plan(cell))
        self.now = None

    def plan(self, cell: Cell) -> list[int]:
        """List the sizes of a cell's calls, the same in each dtype."""
        key = cell.implementation.label + cell.implementation.name, cell.aspect
        if key not in self.plans:
            found = [size_of(one.sizes) for one in planned_recipes(cell, self.options)]
            self.plans[key] = found or [1] * OTHERS
        return self.plans[key]

    def cost(self, sizes: list[int]) -> float:
        call, pair = self.calls.rates() if self.calls.count >= FEW else (1.0, 0.0)
        return call * len(sizes) + pair * sum(sizes)

    def seconds(self) -> float | None:
        """Estimate the seconds that are left; None while too little is known."""
        if self.calls.count < FEW:
            return None
        spent = [sum(x) for x in zip(*self.took.values(), strict=True)] or [1.0, 1.0]
        total = 0.0
        for name, cell in self.left.items():
            own = self.took.get(cell.aspect, spent)
            whole = self.cost(self.plan(cell)) * (own[0] / own[1] if own[1] else 1.0)
            since, before = self.begun.get(name, (0.0, 0))
            if since:
                rest = self.cost(self.plan(cell)[self.calls.count - before :])
                whole = max(whole - (time.monotonic() - since), rest)
            total += whole
        return total


LONG = 300.0
"""Seconds left above which a run says how it would be over sooner."""


def advise(seconds: float, given: Mapping[str, Any]) -> str:
    """Say what to type for a run that is over sooner, of the options that were not given."""
    ways = ["--dtype float32"] * (not given["dtype"])
    ways += ["--profile quick"] * (given["profile"] != "quick")
    ways += ["--minutes 5 (what tells most comes first)"] * (given["minutes"] is None)
    return f"about {round(seconds / 60)} minutes left; sooner: {', or '.join(ways)}" if ways else ""
