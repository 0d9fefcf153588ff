"""
Blocks of a large call: entries of its batch, or its heads, whose bounds are worked out one block
after the other. What a bound holds at a time is then a few megabytes, and stays near the processor.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import ARGUMENT_SIZES, Operation, result_axes
from attnverify.inputs.recipe import Inputs, Recipe

Axes = dict[str, str]


def block_letter(op: Operation, recipe: Recipe, inputs: Inputs) -> str | None:
    """
    Name the axis along which a call falls into calls of their own: every output has it, and no
    argument counts it. None where there is none, of layers, whose mappings and lists have axes of
    other kinds, and of operations from outside, whose letters promise nothing.
    """
    if op.traits.parameters or op.exact or op.outside is not None:
        return None
    outputs = axes_of_outputs(op, recipe, inputs)
    counted = {ARGUMENT_SIZES.get(name, "") for name in op.arguments}
    letters = {*("B" if op.traits.slopes else "HB")} - counted
    return next(
        (a for a in sorted(letters)[::-1] if all(a in axes.split() for axes in outputs)), None
    )


def axes_of_inputs(op: Operation, recipe: Recipe) -> Axes:
    """The axes of every array argument, those of masks as the recipe says."""
    found = dict(op.axes)
    if op.mask and recipe.mask:
        found[op.mask] = recipe.mask["axes"]
    if "keep" in op.arguments and recipe.dropout:
        whole = "B H N M" if "H" in recipe.sizes else "B N M"
        found["keep"] = recipe.dropout.get("axes", whole)
    return found


def axes_of_outputs(op: Operation, recipe: Recipe, inputs: Inputs) -> list[str]:
    """The axes of every output; of a gradient those of the inputs, of a float mask too."""
    if not op.is_gradient:
        return [result_axes(op)]
    found = [axes for name, axes in op.axes.items() if not name.startswith("d_")]
    mask = inputs.get(op.mask) if op.mask else None
    if mask is not None and mask.dtype != bool and recipe.mask:
        found.append(recipe.mask["axes"])
    return found


def cut_in_blocks(op: Operation, recipe: Recipe, inputs: Inputs, letter: str) -> Iterator[Inputs]:
    """Yield the inputs of each block: one entry of its axis, or as many as are small together."""
    axes, step = axes_of_inputs(op, recipe), entries_of_block(recipe, letter)
    for at in range(0, recipe.sizes[letter], step):
        yield {
            name: cut(x, axes[name], letter, at, step) if name in axes and x is not None else x
            for name, x in inputs.items()
        }


SMALL = 2**13
"""Queries times keys times columns of value of all heads: the largest array of a bound."""


def entries_of_block(recipe: Recipe, letter: str) -> int:
    """Count the entries, or heads, whose bound is small: those of a grid of tiny ones are many."""
    entry = prod(recipe.sizes.get(each, 1) for each in "BHNME" if each != letter)
    return max(SMALL // max(entry, 1), 1)


def cut(x: ndarray, axes: str, letter: str, at: int, step: int) -> ndarray:
    """The block of an array; the whole, where it does not have the axis."""
    place = axes.split()
    if letter not in place:
        return x
    return x[(slice(None),) * place.index(letter) + (slice(at, at + step),)]


def join_blocks(op: Operation, recipe: Recipe, found: Sequence[Any], letter: str) -> Any:
    """Join the bounds of the blocks, output by output."""
    if not op.is_gradient:
        return np.concatenate(found, axis=result_axes(op).split().index(letter))
    axes = [axes for name, axes in op.axes.items() if not name.startswith("d_")]
    axes += [recipe.mask["axes"]] * (len(found[0]) - len(axes)) if recipe.mask else []
    return tuple(
        np.concatenate([block[place] for block in found], axis=each.split().index(letter))
        for place, each in enumerate(axes)
    )
