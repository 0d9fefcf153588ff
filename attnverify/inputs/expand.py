"""
Recipes: an input as a few words and seeds, expanded by NumPy.

A recipe says geometry, values, masks, layout, poison and options separately, each as plain data;
Hypothesis draws and shrinks recipes, never arrays. :func:`expand` turns one into the arguments of
the operation: float64 arrays whose numbers are exactly representable in the dtype under test, so
that both sides of a comparison see the same numbers.
"""

import hashlib
import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.annotations import Domain
from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import ARGUMENT_SIZES, CATALOGUE, INNER, Operation
from attnverify.catalogue.packing import (
    fit_lengths,
    fit_pages,
    fit_selection,
    heads_first,
    tokens_first,
)
from attnverify.catalogue.pytrees import leaves
from attnverify.catalogue.rows import single_row
from attnverify.catalogue.traits import Traits
from attnverify.contract.shapes import PATTERN
from attnverify.inputs.given import GIVEN, LARGEST, count_pairs, given_inputs, recipe_of_file
from attnverify.inputs.masks import draw_mask, draw_visible
from attnverify.inputs.poison import FROM_ALL, clear_hidden_slots, poison_hidden_slots
from attnverify.inputs.recipe import Inputs, Recipe
from attnverify.inputs.value_families import apply_family


def expand(recipe: Recipe, dtype: str) -> Inputs:
    """
    Return the arguments of the operation. The arrays are shared by all who expand this recipe, and
    read-only; of large ones the last two alone are kept.
    """
    return (expand_large if recipe.is_large else expand_small)(recipe, dtype)


def expand_anew(recipe: Recipe, dtype: str) -> Inputs:
    """Return the arguments, made for this call."""
    operation = CATALOGUE[recipe.operation]
    if OF_GRADIENT in recipe.options:
        return inputs_of_gradient(recipe, dtype)
    if recipe.values["family"] == GIVEN:
        if "row" in recipe.values:
            return row_of_file(recipe, dtype)
        found = without_second(given_inputs(recipe, operation), recipe)
        found = found if recipe.poison else cleared(found, operation, recipe)
        return {
            name: round_inputs(value, operation.dtype_of(name, dtype))
            for name, value in found.items()
        }
    if operation.outside is not None:
        found = operation.outside.expand(recipe, dtype)  # as it draws them itself
        return {name: round_inputs(value, dtype) for name, value in found.items()}
    rng = np.random.default_rng(recipe.values["seed"])
    with np.errstate(all="ignore"):
        inputs = normal_arrays(operation, recipe, rng)
        inputs = heads_first(inputs) if operation.lies_otherwise else inputs
        apply_family(inputs, recipe, dtype, rng)
        inputs = without_second(inputs, recipe)
        inputs |= mask_arguments(operation, recipe, dtype, inputs) | scalar_arguments(
            operation, recipe
        )
        inputs = fit_selection(fit_lengths(inputs))
        inputs = fit_pages(inputs, recipe.poison in FROM_ALL)
        if recipe.poison:
            poison_hidden_slots(inputs, operation, recipe.poison, dtype, rng)
        inputs = tokens_first(inputs) if operation.lies_otherwise else inputs
        inputs = {
            name: round_inputs(inputs[name], operation.dtype_of(name, dtype))
            for name in operation.arguments
            if name in inputs
        }
    return inputs


def cleared(inputs: Inputs, operation: Operation, recipe: Recipe) -> Inputs:
    """
    Give somebody's arguments ordinary numbers in the slots that no row sees: what a hidden NaN does
    is a question of its own. Those of a call that is judged by rows stay as they are.
    """
    judged_apart = operation.can_hide and count_pairs(recipe.sizes) <= LARGEST
    return clear_hidden_slots(inputs, operation) if judged_apart else inputs


def hides_numbers(operation: Operation, path: str) -> bool:
    """Tell whether a file holds NaN or infinity in slots that no row sees."""
    recipe = recipe_of_file(operation, path)
    given = given_inputs(recipe, operation)
    return cleared(given, operation, recipe) is not given


OF_GRADIENT = "of gradient"
"""The option of a call that is given the inputs of its gradient."""


def recipe_of_forward(recipe: Recipe) -> Recipe:
    """The recipe of the operation whose gradient this is, on the same inputs."""
    forward = CATALOGUE[recipe.operation].forward.name
    return replace(recipe, operation=forward, options=recipe.options | {OF_GRADIENT: True})


def inputs_of_gradient(recipe: Recipe, dtype: str) -> Inputs:
    operation = CATALOGUE[recipe.operation]
    assert operation.gradient is not None
    options = {name: x for name, x in recipe.options.items() if name != OF_GRADIENT}
    whole = expand(replace(recipe, operation=operation.gradient.name, options=options), dtype)
    return {name: whole[name] for name in operation.arguments if name in whole}


def without_second(inputs: Inputs, recipe: Recipe) -> Inputs:
    """Let nothing arrive at the weights or lse of who returns none, where the recipe says so."""
    second = CATALOGUE[recipe.operation].forward.second_result
    if recipe.options.get(second, True) or f"d_{second}" not in inputs:
        return inputs
    return inputs | {f"d_{second}": np.zeros_like(inputs[f"d_{second}"])}


expand_small = lru_cache(maxsize=2048)(expand_anew)
expand_large = lru_cache(maxsize=2)(expand_anew)


def row_of_file(recipe: Recipe, dtype: str) -> Inputs:
    """Cut a row out of a file's call; nothing of it is copied."""
    operation = CATALOGUE[recipe.operation]
    whole = recipe_of_file(operation, recipe.values["file"])
    if whole.values["sha"] != recipe.values["sha"]:
        given_inputs(recipe, operation)  # says what has changed
    return single_row(operation, expand(whole, dtype), recipe.values["row"])


def checksum(recipe: Recipe, dtype: str) -> str:
    """
    Twelve hexadecimal digits of the inputs' bits: NumPy promises no streams across its versions,
    and no libm the same last bits on every machine.
    """
    found = hashlib.sha256()
    for leaf in leaves(expand(recipe, dtype)):
        found.update(
            np.ascontiguousarray(leaf).tobytes()
            if isinstance(leaf, ndarray)
            else repr(leaf).encode()
        )
    return found.hexdigest()[:12]


def round_inputs(tree: Any, dtype: str) -> Any:
    """Every float array of a tree of arguments rounded to the dtype, and made read-only."""
    if isinstance(tree, dict):
        return {name: round_inputs(leaf, dtype) for name, leaf in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(round_inputs(leaf, dtype) for leaf in tree)
    if isinstance(tree, ndarray):
        tree = round_to(tree, dtype) if tree.dtype.kind == "f" else tree.copy()
        tree.setflags(write=False)
    return tree


def normal_arrays(operation: Operation, recipe: Recipe, rng: np.random.Generator) -> Inputs:
    """
    Standard normal numbers in the shape of every float array argument, parameters and memories
    included.
    """
    made: Inputs = {}
    sizes, options = recipe.sizes, recipe.options
    for name, axes in operation.axes.items():
        left_out = name in operation.domains and not options.get(name)
        if name not in ("attn_mask", "mem", "hids", "mems", "d_new_mems") and not left_out:
            made[name] = normal(axes, recipe, rng)
    if operation.traits.parameters:
        layers_of = [
            layer_parameters(operation.traits, recipe, rng) for _ in range(sizes.get("L", 1))
        ]
        if "qkv_net.weight" in layers_of[0] and operation.is_gradient:
            weaken_attentions(layers_of)
        made["parameters"] = layers_of if operation.is_stack else layers_of[0]
    if "hids" in operation.arguments:
        made["hids"] = [normal("B N F", recipe, rng) for _ in range(sizes["L"])]
    if "mems" in operation.arguments:
        made["mems"] = (
            [normal("B S F", recipe, rng) for _ in range(sizes["L"])]
            if options.get("mems", True)
            else None
        )
    if "d_new_mems" in operation.arguments:
        made["d_new_mems"] = gradients_of_memory(recipe, rng)
    if "mem" in operation.arguments:
        made["mem"] = normal("B S F", recipe, rng) if options.get("mems", True) else None
    return made


def gradients_of_memory(recipe: Recipe, rng: np.random.Generator) -> list[ndarray] | None:
    """What arrives at a new memory: as many positions as it has; None where there is none."""
    sizes, options = recipe.sizes, recipe.options
    if not options.get("mems", True):
        return None
    kept = recipe.sizes | {"S": min(options["mem_len"], sizes["S"] + sizes["N"])}
    return [rng.standard_normal(shape_of("B S F", kept)) for _ in range(sizes["L"])]


def weaken_attentions(layers_of: list[Inputs]) -> None:
    """
    Let each layer of Transformer-XL hand on mostly what it was given, in place: else the bound of a
    gradient through the norms of three layers is larger than it in every dtype but float64.
    """
    for parameters in layers_of:
        parameters["qkv_net.weight"] /= 2
        parameters["o_net.weight"] /= 16
        if "ff_out.weight" in parameters:
            parameters["ff_out.weight"] /= 16


def layer_parameters(traits: Traits, recipe: Recipe, rng: np.random.Generator) -> Inputs:
    """
    Return the weights of a layer: variance 1 / fan-in, so that every stage keeps the size of its
    input. Those of the feed-forward are there where its inner width is; its last inner unit is
    given 0 exactly, where more than one is.
    """
    biases, inner = recipe.options.get("biases", True), recipe.sizes.get(INNER, 0)
    pattern = f"{traits.parameters}, {traits.option}" if inner else traits.parameters
    made = {}
    for name, optional, axes in PATTERN.findall(pattern):
        if optional and not biases:
            continue
        x = normal(axes, recipe, rng)
        made[name] = (
            1 + 0.25 * x
            if name.endswith("norm.weight")
            else x / np.sqrt(x.shape[-1])
            if name.endswith("weight")
            else x
        )
    if inner > 1:
        for name in {"ff_in.weight", "ff_in.bias"} & set(made):
            made[name][-1] = 0
    return made


def normal(axes: str, recipe: Recipe, rng: np.random.Generator) -> ndarray:
    return rng.standard_normal(shape_of(axes, recipe.sizes, recipe.options.get("lead", ())))


def shape_of(axes: str, sizes: dict[str, int], lead: Any = ()) -> tuple[int, ...]:
    """Return the shape of ``... N 2P`` or ``B+1`` for these sizes."""
    letters = axes.split()
    more = [axis.endswith("+1") for axis in letters if axis != "..."]
    sole = [axis.removesuffix("+1") for axis in letters if axis != "..."]
    tail = tuple(
        int(axis[:-1] or 1) * sizes[axis[-1]] + one for axis, one in zip(sole, more, strict=True)
    )
    return (*lead, *tail) if letters[0] == "..." else tail


def mask_arguments(operation: Operation, recipe: Recipe, dtype: str, inputs: Inputs) -> Inputs:
    """Return the masks of the recipe, under the names that the operation gives them."""
    made: Inputs = {}
    if operation.mask:
        polarity = operation.mask == "attn_mask"
        made[operation.mask] = draw_mask(recipe, dtype, polarity) if recipe.mask else None
    if "key_padding_mask" in operation.arguments:
        made["key_padding_mask"] = (
            ~draw_visible(recipe.padding, "B M", recipe.sizes) if recipe.padding else None
        )
    if "keep" in operation.arguments:
        p = recipe.dropout["p"] if recipe.dropout else 0.0
        made |= {"keep": keep_mask(operation, recipe), "p": p}
    return made


def keep_mask(operation: Operation, recipe: Recipe) -> ndarray | None:
    if recipe.dropout is None:
        return None
    sizes = recipe.sizes | {"1": 1}
    whole = operation.axes.get("weights", "B H N M" if "H" in sizes else "B N M")
    if operation.is_stack:
        whole = f"L {whole}"
        sizes["M"] = sizes["N"] + sizes["S"] * recipe.options.get("mems", True)
    shape = shape_of(recipe.dropout.get("axes", whole), sizes, recipe.options.get("lead", ()))
    share = (
        recipe.dropout["p"] or 0.25
    )  # with p = 0 nothing is scaled, and a draw that drops still drops
    kept: ndarray = np.random.default_rng(recipe.dropout["seed"]).random(shape) >= share
    return kept


def scalar_arguments(operation: Operation, recipe: Recipe) -> Inputs:
    """Counts, sizes, words and arrays of integers among the arguments."""
    made: Inputs = {
        name: shape_of(letter, recipe.sizes)[0] if recipe.options.get(name, True) else None
        for name, letter in ARGUMENT_SIZES.items()
        if name in operation.arguments
    }
    return made | {
        name: recipe.options[name]
        if domain.integers is None
        else draw_integers(domain, recipe, recipe.options[name]["seed"])
        for name, domain in operation.domains.items()
        if name in recipe.options and name not in operation.axes
    }


def draw_integers(domain: Domain, recipe: Recipe, seed: int) -> Any:
    """
    Draw the array, or arrays, of integers that an option is, with both ends often; where they name
    each position, in rising order every other time. Of a wide range some power of two of it is
    taken, so that small numbers are met as often as large ones; every third time they follow each
    other, from 0 or from where a cache ends.
    """
    assert domain.integers is not None
    low, high = (limit_of(x, recipe.sizes) for x in (domain.integers.least, domain.integers.most))
    rng, made = np.random.default_rng(seed), []
    if is_wide := high - low > WIDE:
        part = 2 ** int(rng.integers(int(high - low).bit_length() - 1))
        low, high = -(-low // part), high // part
    for axes in domain.axes:
        shape = shape_of(axes, recipe.sizes, recipe.options.get("lead", ()))
        drawn = rng.integers(low, high + 1, shape)
        drawn = np.where(rng.random(shape) < 0.3, rng.choice([low, high], shape), drawn)
        if is_wide and seed % 3 == 0:
            drawn = drawn[..., :1] * (seed % 2) + np.arange(shape[-1])
        if domain.integers.rising:
            drawn = rising(drawn, low, high, seed)
        drawn = np.sort(drawn, axis=-1) if len(shape) > 1 and seed % 2 else drawn
        made.append(drawn.astype(domain.integers.dtype))
    return made[0] if len(made) == 1 else tuple(made)


def rising(drawn: ndarray, low: int, high: int, seed: int) -> ndarray:
    """In order; every other time from the lowest to the highest, or evenly apart, as most are."""
    found = np.sort(drawn)
    if seed % 2:
        found[0], found[-1] = low, high
    return np.linspace(low, high, len(found)).astype(found.dtype) if seed % 6 == 5 else found


WIDE = 2**12
"""Integers beyond which a range is drawn from in parts."""


def limit_of(limit: int | str, sizes: dict[str, int]) -> int:
    """A number, a size or a product of sizes, or one with its sign turned."""
    if isinstance(limit, int):
        return limit
    product = math.prod(sizes[letter] for letter in limit.removeprefix("-"))
    return -product if limit.startswith("-") else product
