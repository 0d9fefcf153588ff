"""
Recipe: an input as plain data, small enough to print and to shrink.
"""

import hashlib
import json
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from attnverify.inputs.memory_layouts import LAYOUTS

Inputs = dict[str, Any]

LARGE = 2**18
"""Numbers in the largest array of a call: 2 MB of float64."""


def in_letters(sizes: dict[str, int]) -> str:
    """Write ``B=1 N=2``."""
    return " ".join(f"{letter}={size}" for letter, size in sorted(sizes.items()))


@dataclass(frozen=True, eq=False)
class Recipe:
    """
    An input in a few words.

    sizes    the letters of the design, {"B": 2, "N": 5}
    values   family of numbers and seed, {"family": "normal", "seed": 3}
    mask     None, or pattern, axes, form and seed of ``mask`` / ``visible`` / ``attn_mask``
    padding  None, or pattern and seed of ``key_padding_mask``
    dropout  None, or p, seed and (where it is smaller than the weights) axes of ``keep``
    layout   {"kind": "transposed", "seed": 0}: where the arrays lie in memory
    poison   None, "finite", "nan" or "inf": what stands in slots hidden from all rows; "nan for
             some" ("inf", "-inf"): in slots that some rows see
    options  align, mem_len, whether there are mems, biases ...
    """

    operation: str
    sizes: dict[str, int]
    values: dict[str, Any]
    mask: dict[str, Any] | None = None
    padding: dict[str, Any] | None = None
    dropout: dict[str, Any] | None = None
    layout: dict[str, Any] = field(default_factory=lambda: {"kind": "contiguous", "seed": 0})
    poison: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The recipe as one line of JSON, keys in order."""
        told = {part.name: getattr(self, part.name) for part in fields(self)}
        return json.dumps(
            {key: value for key, value in told.items() if value is not None}, sort_keys=True
        )

    @cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name the content."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @cached_property
    def is_large(self) -> bool:
        """Whether its arrays are too large to be kept for the rest of a run."""
        size = {letter: max(self.sizes.get(letter, 1), 1) for letter in "BHNMDEFA"}
        size["N"] = max(size["N"], self.sizes.get("T", 1))
        size["M"] = max(size["M"], self.sizes.get("U", 1))
        rows = size["N"] + size["M"]
        stacked = size["B"] * size["H"] * prod(self.options.get("lead", ()))
        pairs = stacked * size["N"] * size["M"]
        return max(pairs, stacked * rows * max(size["D"], size["E"])) > LARGE

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.text == other.text

    def __repr__(self) -> str:
        parts = {
            key: value
            for key, value in json.loads(self.text).items()
            if key != "operation" and value != {}
        }
        return f"{self.operation}: " + ", ".join(
            f"{key} {format_mapping(value)}" for key, value in parts.items()
        )


def format_mapping(value: Any) -> str:
    """``{"N": 3, "M": 5}`` as ``N=3 M=5``."""
    return (
        " ".join(f"{key}={item}" for key, item in value.items())
        if isinstance(value, dict)
        else str(value)
    )


def parse_recipe(text: str) -> Recipe:
    return Recipe(**json.loads(text))


def layout_kinds(recipe: Recipe, count: int) -> list[str]:
    if recipe.layout["kind"] != "mixed":
        return [recipe.layout["kind"]] * count
    return mixed_kinds(recipe.layout["seed"], count)


@lru_cache(maxsize=1024)
def mixed_kinds(seed: int, count: int) -> list[str]:
    kinds: list[str] = (
        np.random.default_rng(seed).choice(["contiguous", *LAYOUTS], size=count).tolist()
    )
    return kinds
