"""
Cases of a search: a recipe, a derivation, and edits of the numbers, all of them plain data.

A move changes one of the three. What an edit leaves is rounded to the dtype, so that both sides see
the same numbers.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.inputs.expand import expand
from attnverify.inputs.recipe import Recipe, parse_recipe
from attnverify.inputs.strategies import draw_recipe
from tests.rounding_variants.grammar import Derivation, Order, draw_derivation, mutate

Inputs = dict[str, Any]
Edit = tuple[Any, ...]
"""A path to an array, what is done to it, and with what."""

USUAL = asdict(Order())
"""What a case as JSON does not name of its order."""

MOST = 1500
"""Most numbers that the largest array of a small case has."""


@dataclass(frozen=True)
class Case:
    """What one evaluation of the search looks at."""

    recipe: Recipe
    derived: Derivation
    edits: tuple[Edit, ...] = ()

    def inputs(self, dtype: str) -> Inputs:
        inputs = expand(self.recipe, dtype)
        for edit in self.edits:
            inputs = apply_edit(inputs, edit, dtype)
        return inputs

    @property
    def data(self) -> dict[str, Any]:
        """The case as JSON holds it."""
        return {
            "recipe": json.loads(self.recipe.text),
            "arithmetic": self.derived.arithmetic,
            "order": {k: x for k, x in asdict(self.derived.order).items() if x != USUAL[k]},
            "edits": [list(edit) for edit in self.edits],
        }


def case_from(data: dict[str, Any]) -> Case:
    recipe = parse_recipe(json.dumps(data["recipe"]))
    derived = Derivation(recipe.operation, data["arithmetic"], Order(**data["order"]))
    return Case(recipe, derived, tuple((tuple(path), *rest) for path, *rest in data["edits"]))


def small_recipe(rng: Random, operation: str, most: int = MOST) -> Recipe:
    """A recipe of the suite's own whose arrays are small."""
    while True:
        recipe = draw_recipe(rng.choice, operation)
        if numbers_in(recipe) <= most:
            return recipe


def numbers_in(recipe: Recipe) -> int:
    """How many numbers the recipe's largest array has, hidden layers and scores included."""
    sizes = {letter: max(size, 1) for letter, size in recipe.sizes.items()}
    lead = int(np.prod(recipe.options.get("lead", ())))
    product = lambda letters: lead * int(np.prod([sizes.get(letter, 1) for letter in letters]))
    widest = max(sizes.get(letter, 1) for letter in "DEFQKA")
    rows = max(product("BHN"), product("BHM")) * widest
    return max(product("BHNMA"), rows, product("LFF"), product("PHD"))


def small_inputs(rng: Random, operation: str, dtype: str, most: int = MOST) -> Inputs:
    return expand(small_recipe(rng, operation, most), dtype)


def draw_case(rng: Random, operation: str, dtype: str) -> Case:
    return Case(small_recipe(rng, operation), draw_derivation(rng.choice, operation, dtype))


# moves


def neighbour(rng: Random, case: Case, dtype: str) -> Case:
    """The case after one move."""
    kind = rng.random()
    if kind < 0.35:
        return replace(case, derived=mutate(rng.choice, case.derived, dtype))
    if kind < 0.4:
        return replace(case, recipe=resized(rng, case.recipe), edits=())
    if kind < 0.5 and case.recipe.values["seed"]:
        values = {**case.recipe.values, "seed": rng.randrange(2**16)}
        return replace(case, recipe=replace(case.recipe, values=values))
    edit = draw_edit(rng, case.inputs(dtype))
    return case if edit is None else replace(case, edits=(*case.edits, edit))


def resized(rng: Random, recipe: Recipe) -> Recipe:
    """The same numbers and masks in another geometry."""
    other = small_recipe(rng, recipe.operation)
    return replace(recipe, sizes=other.sizes, options=other.options)


def float_arrays(
    tree: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], ndarray]]:
    """Every float array of the arguments that holds something, with the way to it."""
    if isinstance(tree, dict | list):
        for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from float_arrays(branch, (*path, key))
    elif isinstance(tree, ndarray) and tree.dtype.kind == "f" and tree.size:
        yield path, tree


def draw_edit(rng: Random, inputs: Inputs) -> Edit | None:
    arrays = list(float_arrays(inputs))
    if not arrays:
        return None
    path, x = rng.choice(arrays)
    kind, at = rng.choice(list(EDITS)), rng.randrange(x.size)
    arguments: dict[str, tuple[Any, ...]] = {
        "scale all": (rng.randrange(-6, 7),),
        "scale one": (at, rng.randrange(-8, 9)),
        "negate": (at,),
        "copy": (at, rng.randrange(x.size)),
        "set": (at, rng.choice((0.0, 1.0, -1.0, rng.gauss(0, 1)))),
        "nudge": (at, rng.choice((-2, -1, 1, 2))),
        "jitter": (rng.randrange(2**16),),
        "copy row": (rng.randrange(x.shape[0]), rng.randrange(x.shape[0])),
        "constant": (at,),
    }
    return (path, kind, *arguments[kind])


def apply_edit(inputs: Inputs, edit: Edit, dtype: str) -> Inputs:
    """A copy of the arguments with one array edited."""
    path, kind, *arguments = edit
    return _replaced(inputs, path, lambda x: _edited(x, kind, arguments, dtype))


def _replaced(tree: Any, path: tuple[Any, ...], function: Callable[[ndarray], ndarray]) -> Any:
    if not path:
        return function(tree)
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = _replaced(tree[path[0]], path[1:], function)
    return copy


def _edited(x: ndarray, kind: str, arguments: list[Any], dtype: str) -> ndarray:
    with np.errstate(all="ignore"):
        y = EDITS[kind](x.ravel().copy(), *arguments, x=x, unit=UNITS[dtype])
        y = round_to(y.reshape(x.shape), dtype)
    y = np.where(np.isfinite(x), y, x)
    y.setflags(write=False)
    return y


UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance from 1 to the next number."""


def _at(y: ndarray, at: int, value: Any) -> ndarray:
    y[at] = value
    return y


def _copy_row(y: ndarray, i: int, j: int, x: ndarray) -> ndarray:
    rows = y.reshape(x.shape)
    rows[i] = rows[j]
    return rows


def _jitter(y: ndarray, seed: int, unit: float) -> ndarray:
    steps = np.random.default_rng(seed).integers(-3, 4, y.size)
    return np.asarray(y * (1 + steps * unit))


EDITS: dict[str, Callable[..., ndarray]] = {
    "scale all": lambda y, k, **_: y * 2.0**k,
    "scale one": lambda y, at, k, **_: _at(y, at, y[at] * 2.0**k),
    "negate": lambda y, at, **_: _at(y, at, -y[at]),
    "copy": lambda y, at, other, **_: _at(y, at, y[other]),
    "set": lambda y, at, value, **_: _at(y, at, value),
    "nudge": lambda y, at, steps, unit, **_: _at(y, at, y[at] * (1 + steps * unit)),
    "jitter": lambda y, seed, unit, **_: _jitter(y, seed, unit),
    "copy row": lambda y, i, j, x, **_: _copy_row(y, i, j, x),
    "constant": lambda y, at, **_: np.full_like(y, y[at]),
}
