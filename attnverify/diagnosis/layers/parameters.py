"""
Mistakes with the parameters of a layer: one read in place of another, a weight read [in out] where
it is [out in], one that is never read or a bias that is added twice.

Which parameters a layer has is read off a few draws: those of a feed-forward are in some alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import case_of

Changed = Callable[[dict[str, Any]], dict[str, Any]]
DRAWS, SEED = 12, 0
READ_FOR = "{one} read in place of {other}, which is never read"
RANKS = (2, 4)
SHARDS = "{name}: the first of {ranks} shards of its {places} on every rank, the others never read"


def parameter_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each, for a layer; none for its gradient."""
    if "parameters" not in operation.arguments or operation.is_gradient:
        return
    shapes = parameter_shapes(operation.name)
    parts = list(dict.fromkeys(name.rpartition(".")[0] for name in shapes if "." in name))
    matrices = [part for part in parts if len(shapes.get(f"{part}.weight", ())) == 2]
    for one, other in permutations(parts, 2):
        if shapes.get(f"{one}.weight") == shapes.get(f"{other}.weight"):
            words = READ_FOR.format(one=one, other=other)
            yield words, with_parameters(partial(exchanged, one, other))
    for names in (*((part,) for part in matrices), matrices[:-1], matrices) if matrices else ():
        words = f"weights read transposed, [in out] for [out in]: {', '.join(names)}"
        yield words, with_parameters(partial(transposed, names))
    for name in matrices:
        for (axis, places), ranks in product(enumerate(("rows", "columns")), RANKS):
            words = SHARDS.format(name=name, ranks=ranks, places=places)
            yield words, with_parameters(partial(first_shard, name, axis, ranks))
    for one, other in permutations((name for name in shapes if "." not in name), 2):
        if shapes[one] == shapes[other]:
            words = READ_FOR.format(one=one, other=other)
            yield words, with_parameters(partial(read, one, other))
    if {"u", "v"} <= shapes.keys():
        yield "u and v exchanged", with_parameters(lambda own: own | {"u": own["v"], "v": own["u"]})
    for name, shape in shapes.items():
        if len(shape) == 1:
            is_gain = name.endswith(".weight")
            words = f"{name} never read" if is_gain else f"{name} left out"
            yield words, with_parameters(partial(times, name, 0))
            if not is_gain:
                yield f"{name} added twice", with_parameters(partial(times, name, 2))


@lru_cache
def parameter_shapes(operation: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter, in the first of a few draws that has it."""
    found: dict[str, tuple[int, ...]] = {}
    for recipe in draw_recipes(operation, "any", DRAWS, SEED):
        given = case_of(recipe, "float64").inputs["parameters"]
        for own in given if isinstance(given, list) else [given]:
            if not found or own.keys() - found.keys():
                found = {name: np.shape(x) for name, x in own.items()}
    return found


def with_parameters(change: Changed) -> Callable[[Operation, Inputs], Any]:
    """Return the reference with other parameters, in every layer of a stack."""

    def answer(operation: Operation, inputs: Inputs) -> Any:
        own = inputs["parameters"]
        new = [change(each) for each in own] if isinstance(own, list) else change(own)
        return operation.reference(**inputs | {"parameters": new})

    return answer


def exchanged(one: str, other: str, own: dict[str, Any]) -> dict[str, Any]:
    """The parameters of ``other`` are those of ``one``, where there are both."""
    leaves = ("weight", "bias")
    if f"{one}.weight" not in own or f"{other}.weight" not in own:
        return own
    return own | {f"{other}.{leaf}": own.get(f"{one}.{leaf}") for leaf in leaves}


def read(one: str, other: str, own: dict[str, Any]) -> dict[str, Any]:
    return own | {other: own[one]} if own[one].shape == own[other].shape else own


def transposed(names: Sequence[str], own: dict[str, Any]) -> dict[str, Any]:
    weights: dict[str, ndarray] = {f"{name}.weight": own[f"{name}.weight"].T for name in names}
    return own | weights


def first_shard(name: str, axis: int, ranks: int, own: dict[str, Any]) -> dict[str, Any]:
    """A map (and a bias of its rows) made of its first shard, where ranks can share the axis."""
    new = {}
    for leaf in (f"{name}.weight", f"{name}.bias")[: 2 - axis]:
        whole = own.get(leaf)
        if whole is not None and whole.shape[axis] % ranks == 0:
            shard = np.split(whole, ranks, axis)[0]
            new[leaf] = np.concatenate([shard] * ranks, axis)
    return own | new


def times(name: str, count: int, own: dict[str, Any]) -> dict[str, Any]:
    """A bias so many times; a gain to the power of it: 1 where it is never read."""
    change = np.power if name.endswith(".weight") else np.multiply
    return own | {name: change(own[name], count)} if name in own else own
