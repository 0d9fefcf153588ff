"""
Mutants of a backward pass: the gradient of a specification of which one part is lost, overwritten
or has lost a factor. A backward that is written by hand errs there, where no line of the forward
does: "the gradient through `lse * target.sum(-1)` without its factor, my_spec.py:9".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.outside import Mutant
from attnverify.catalogue.pytrees import leaves
from attnverify.derived.forms import source_of
from attnverify.derived.gradient import (
    Collect,
    Given,
    Place,
    added,
    sum_of_exponentials,
    without_lead,
)
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
    "{what} through {line} left out": _lost,
    "{what} through {line} negated": lambda given: _with_part(given, -given.part),
    "{what} through {line} without its factor": _bare,
}
PART = "a part of the gradient"
"""Of a line that gives back several parts, as a power does."""
WEIGHTED = "the gradient through {line} multiplied with the softmax before it is summed"
OVERWRITTEN = "of the gradients added to one place {words} part alone, through {line}"
ORDERS = {"the last": True, "the first": False}
"""What is left where blocks load, add and store at one place."""


def changed_gradients(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List the mutants of a gradient's own pass; a forward function has none."""
    if not operation.is_gradient:
        return
    seen = parts_of(operation)
    shifts: dict[Place, Collect] = {given.place: _lost for given in seen if is_shift(given)}
    for words, change in CHANGES.items():
        for given in seen:
            told = words.format(
                what=name_part(given, seen), line=quote_line(operation.own, given.through.origin)
            )
            changes = shifts | {given.place: change}
            yield told, _answer(operation, partial(_several, changes)), 2
    yield from _averaged(operation, seen)
    yield from _behind_factors(operation, seen)
    for given in seen:
        if given.d.size > given.part.size and sum_of_weights(given.to) is not None:
            told = WEIGHTED.format(line=quote_line(operation.own, given.through.origin))
            changes = shifts | {given.place: _weighted}
            yield told, _answer(operation, partial(_several, changes)), 2
    several = {given.to: given for given in seen if given.before is not None}
    for to, given in several.items():
        places = {each.place for each in seen if each.to is to}
        for words, last in ORDERS.items():
            line = quote_line(operation.own, given.through.origin)
            told = OVERWRITTEN.format(words=words, line=line)
            yield told, _answer(operation, partial(Overwriting, places, last)), 2


def name_part(given: Given, seen: list[Given]) -> str:
    """
    Say whether all that comes back through a line passes here, or all that comes to one argument.
    """
    line = [
        each
        for each in seen
        if each.through.origin == given.through.origin and each.through is not each.to
    ]
    to = {each.to for each in line}
    begin = {each.through for each in line} - to
    ends = to - {each.through for each in line}
    if given.through is given.to:  # what arrives at an output
        begin.discard(given.to)
    reached = reach(begin, [each for each in line if each is not given]) & ends
    lost = reach({given.to}, line) & ends
    if not reached:
        return "the gradient"
    names = [node.name for node in lost if node.kind == "leaf" and node not in reached]
    return f"the gradient of `{names[0]}`" if len(names) == len(lost) == 1 else PART


def reach(begin: set[Node], edges: list[Given]) -> set[Node]:
    """Follow the edges from the nodes on."""
    while more := {each.to for each in edges if each.through in begin} - begin:
        begin = begin | more
    return begin


def _averaged(operation: "SpecifiedOperation", seen: list[Given]) -> Iterator[Mutant]:
    """List sums over what an input was broadcast along that are means, over all of it or a part."""
    for given in seen:
        lead = given.d.ndim - given.part.ndim
        axes = [*range(lead)] if given.to.kind == "leaf" else []
        for few in (each for n in range(len(axes)) for each in combinations(axes, n + 1)):
            over = " and ".join(f"axis {axis}" for axis in few)
            line = quote_line(operation.own, given.through.origin)
            told = f"the gradient of `{given.to.name}` through {line} averaged over {over}"
            changes = {given.place: partial(_mean, axes=few)}
            yield told, _answer(operation, partial(_several, changes)), 1


def _mean(given: Given, axes: Sequence[int]) -> Traced:
    count = prod(given.d.shape[axis] for axis in axes)
    return _with_part(given, given.part / float(count))


def _behind_factors(operation: "SpecifiedOperation", seen: list[Given]) -> Iterator[Mutant]:
    """
    List what one part of a quotient or product lacks: a factor of what arrives at it, which the
    others have, as where a norm's mean is taken without the gain.
    """
    for first in seen:
        if first.through.name != "multiply":
            continue
        for then in (each for each in seen if each.through is first.to):
            others = [x for x in map(source_of, first.through.inputs) if x is not first.to]
            leaf = bool(others) and others[0].kind == "leaf" and not others[0].const
            factor = f"`{others[0].name}`" if leaf else "the factor behind it"
            line = quote_line(operation.own, then.through.origin)
            told = f"{PART} through {line} without {factor}"
            yield told, partial(_without_factor, operation, first.place, then.place), 2


def _without_factor(
    operation: "SpecifiedOperation", first: Place, then: Place, inputs: dict[str, Any]
) -> Any:
    """
    Compute a gradient in which what arrives lacks a factor for one part alone: gradients are linear
    in what arrives, so the flow through that part is the difference of two.
    """
    own, bare, rest = (
        leaves(_answer(operation, partial(_several, changes))(inputs))
        for changes in ({then: _lost}, {first: _bare}, {first: _bare, then: _lost})
    )
    return tuple(x + y - z for x, y, z in zip(own, bare, rest, strict=True))


def is_shift(given: Given) -> bool:
    """Tell whether it is what comes back to a maximum that is only subtracted: nothing."""
    part, d = given.part.node.value, given.d.node.value
    return given.to.kind == "max" and bool(np.abs(part).max() <= 1e-11 * np.abs(d).sum())


def _several(changes: Mapping[Place, Collect]) -> Collect:
    return lambda given: changes.get(given.place, added)(given)


def sum_of_weights(node: Node) -> Node | None:
    return sum_of_exponentials(node.inputs[0]) if node.name == "log" else None


def _weighted(given: Given) -> Traced:
    """Multiply what arrives at a log-sum-exp with the weights of its row before it is summed."""
    total = sum_of_weights(given.to)
    assert total is not None
    d = given.d * (-1.0 if given.through.name == "subtract" else 1.0)
    weights = Traced(total.inputs[0]) / Traced(total)
    if weights.shape != d.shape:
        return added(given)
    return _with_part(given, without_lead(weights * d, given.to.shape))


class Overwriting:
    """Parts of one adjoint that overwrite each other, where each gives something."""

    def __init__(self, places: set[Place], last: bool) -> None:
        self.places, self.last = places, last
        self.written: dict[Node, ndarray] = {}

    def __call__(self, given: Given) -> Traced:
        if given.place not in self.places:
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
