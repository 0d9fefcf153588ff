"""
Mutants of a backward pass: the gradient of a specification of which one part is lost, overwritten
or has lost a factor. A backward that is written by hand errs there, where no line of the forward
does: "what comes back through `lse * target.sum(-1)` without its factor, my_spec.py:9".
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.outside import Mutant
from attnverify.derived.gradient import Collect, Given, added, without_lead
from attnverify.derived.tracing.array import Traced
from attnverify.derived.tracing.elementwise import where
from attnverify.derived.tracing.node import Node
from attnverify.inputs.recipe import Recipe
from attnverify.specified.reading import quote_line

if TYPE_CHECKING:
    from attnverify.specified.operation import SpecifiedOperation


def _lost(given: Given) -> Traced:
    return given.part * 0.0 if given.before is None else given.before


def _with_part(given: Given, part: Traced) -> Traced:
    return part if given.before is None else given.before + part


def covered(given: Given) -> ndarray:
    """Which elements a node gives something to: of what it read a part of, that part."""
    size, through = given.part.size, given.through
    if through.kind != "move":
        return np.ones(given.to.shape, bool)
    start = sum(x.value.size for x in through.inputs[: through.inputs.index(given.to)])
    return np.isin(np.arange(size), through.index - start).reshape(given.to.shape)


def _bare(given: Given) -> Traced:
    """Leave out what the part of an input is multiplied with."""
    bare = without_lead(given.d, given.to.shape)
    return _with_part(given, bare if bare.shape == given.part.shape else given.part)


CHANGES: dict[str, Collect] = {
    "{what} comes back through {line} left out": _lost,
    "{what} comes back through {line} negated": lambda given: _with_part(given, -given.part),
    "{what} comes back through {line} without its factor": _bare,
}
PART = "a part of what"
"""Of a line that gives back several parts, as a power does."""
OVERWRITTEN = "of what comes back to one place {words} part alone, through {line}"
ORDERS = {"the last": True, "the first": False}
"""What is left where blocks load, add and store at one place."""


def changed_gradients(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List the mutants of a gradient's own pass; a forward function has none."""
    if not operation.is_gradient:
        return
    seen = parts_of(operation)
    ways = Counter(given.through.origin for given in seen)
    for words, change in CHANGES.items():
        for given in seen:
            what = PART if ways[given.through.origin] > 1 else "what"
            told = words.format(what=what, line=quote_line(operation.own, given.through.origin))
            yield told, _answer(operation, partial(partial, _one, given.number, change)), 2
    several = {given.to: given for given in seen if given.before is not None}
    for to, given in several.items():
        numbers = {each.number for each in seen if each.to is to}
        for words, last in ORDERS.items():
            line = quote_line(operation.own, given.through.origin)
            told = OVERWRITTEN.format(words=words, line=line)
            yield told, _answer(operation, partial(Overwriting, numbers, last)), 2


class Overwriting:
    """Parts of one adjoint that overwrite each other, where each gives something."""

    def __init__(self, numbers: set[int], last: bool) -> None:
        self.numbers, self.last = numbers, last
        self.written: dict[Node, ndarray] = {}

    def __call__(self, given: Given) -> Traced:
        if given.number not in self.numbers:
            return added(given)
        mine, before = covered(given), self.written.get(given.to)
        self.written[given.to] = mine if before is None else mine | before
        if given.before is None:
            return given.part
        if self.last:
            return where(mine, given.part, given.before)
        return where(before, given.before, given.part)


def parts_of(operation: "SpecifiedOperation") -> list[Given]:
    """List what the nodes give back at the usual sizes."""
    seen: list[Given] = []

    def collect(given: Given) -> Traced:
        seen.append(given)
        return added(given)

    recipe = Recipe(operation.name, **next(iter(operation.fixed())))
    operation.collected(operation.expand(recipe, "float64"), collect)
    return [given for given in seen if given.through.origin]


def _answer(
    operation: "SpecifiedOperation", new: Callable[[], Collect]
) -> Callable[[dict[str, Any]], Any]:
    def answer(inputs: dict[str, Any]) -> Any:
        with np.errstate(all="ignore"):
            return operation.collected(inputs, new()).values

    return answer


def _one(number: int, change: Collect, given: Given) -> Traced:
    return change(given) if given.number == number else added(given)
