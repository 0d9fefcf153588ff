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
LARGE = 1 << 16
"""Pairs of queries and keys from which on a call costs what they cost, the specification's too."""
LONG_CALL = 5.0
"""Seconds after which a call is told that takes them."""
TIMES = {"gradients": 3.0}
"""How many times as long as others calls of an aspect take, before one was made."""
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
    """What calls cost: how many small ones and their seconds, pairs of large ones and theirs."""

    count: int = 0
    seconds: float = 0.0
    pairs: int = 0
    long: float = 0.0

    def add(self, size: int, seconds: float, many: int) -> None:
        """Note so many calls of a size, each of so many seconds."""
        if size < LARGE:
            self.count, self.seconds = self.count + many, self.seconds + many * seconds
        else:
            self.pairs, self.long = self.pairs + many * size, self.long + many * seconds

    def cost(self, sizes: list[int], beside: "Calls", times: float) -> float | None:
        """
        Estimate the seconds of calls of these sizes: by what such calls have cost, or those
        ``beside`` them, so many ``times`` as long; None where none of their kind was made.
        """
        small = self if self.count >= FEW else beside
        large = self if self.pairs else beside
        pairs = sum(size for size in sizes if size >= LARGE)
        if small.count < FEW or (pairs and not large.pairs):
            return None
        few = sum(size < LARGE for size in sizes) * small.seconds / small.count
        long = pairs * large.long / large.pairs if pairs else 0.0
        return few * (1.0 if small is self else times) + long * (1.0 if large is self else times)


class Remaining:
    """
    What is known of a run's time: of its cells by name those that are left, the calls so far by
    their aspect, and how much longer than planned each aspect took.
    """

    def __init__(self, cells: Mapping[str, Cell], options: Options) -> None:
        self.left, self.options = dict(cells), options
        self.plans = dict[tuple[str, str], list[int]]()
        self.calls = defaultdict[str, Calls](Calls)
        self.took = dict[str, float]()
        self.all = Calls()
        self.now: tuple[int, float] | None = None
        self.cell, self.since, self.made = "", 0.0, list[int]()

    def begin(self, name: str) -> None:
        """Note that a cell has begun."""
        self.cell, self.since, self.made = name, time.monotonic(), []
        self.now = None

    def call(self, sizes: Mapping[str, int], many: int = 1) -> None:
        """
        Note that a call of these sizes begins, and so how long the one before took, and those that
        were missed since.
        """
        moment, cell = time.monotonic(), self.left.get(self.cell)
        if self.now and cell:
            size, since = self.now
            for one in (self.all, self.calls[cell.aspect]):
                one.add(size, (moment - since) / many, many)
            self.made += [size] * many
        self.now = size_of(sizes), moment

    def end(self, name: str) -> None:
        """
        Note that a cell is over, and how many times what its calls cost it took; those that were
        made are what is planned in the next dtype.
        """
        cell = self.left.pop(name, None)
        if cell and name == self.cell and len(self.made) >= FEW:
            self.plans[key_of(cell)] = self.made
            if cost := self.cost(cell.aspect, self.made):
                self.took[cell.aspect] = (time.monotonic() - self.since) / cost
        self.now, self.cell = None, ""

    def plan(self, cell: Cell) -> list[int]:
        """List the sizes of a cell's calls, the same in each dtype."""
        key = key_of(cell)
        if key not in self.plans:
            found = [size_of(one.sizes) for one in planned_recipes(cell, self.options)]
            self.plans[key] = found or [1] * OTHERS
        return self.plans[key]

    def cost(self, aspect: str, sizes: list[int]) -> float | None:
        return self.calls[aspect].cost(sizes, self.all, TIMES.get(aspect, 1.0))

    def waited(self) -> float:
        """Count the seconds since the call under way began."""
        return time.monotonic() - self.now[1] if self.now else 0.0

    def seconds(self) -> float | None:
        """
        Estimate the seconds that are left; None while too little is known: no call as large as
        those to come was made, or one takes long that need not.
        """
        size = self.now[0] if self.now else 0
        expected = self.all.cost([size], self.all, 1.0)
        if expected is None or self.waited() > max(LONG_CALL, 4 * expected):
            return None
        total = 0.0
        for name, cell in self.left.items():
            sizes = list(self.plan(cell))
            for made in self.made if name == self.cell else ():
                if made in sizes:
                    sizes.remove(made)
            cost = self.cost(cell.aspect, sizes)
            if cost is None:
                return None
            total += cost * self.took.get(cell.aspect, 1.0)
        return total


def key_of(cell: Cell) -> tuple[str, str]:
    """Name what has the same calls in each dtype."""
    return cell.implementation.label + cell.implementation.name, cell.aspect


LONG = 300.0
"""Seconds left above which a run says how it would be over sooner."""


def advise(seconds: float, given: Mapping[str, Any]) -> str:
    """Say what to type for a run that is over sooner, of the options that were not given."""
    ways = ["--dtype float32"] * (not given["dtype"])
    ways += ["--profile quick"] * (given["profile"] != "quick")
    ways += ["--minutes 5 (what tells most comes first)"] * (given["minutes"] is None)
    return f"about {round(seconds / 60)} minutes left; sooner: {', or '.join(ways)}" if ways else ""
