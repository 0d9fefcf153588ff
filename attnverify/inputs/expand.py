"""
Recipes: an input as a few words and seeds, expanded by NumPy.

A recipe says geometry, values, masks, layout, poison and options separately, each as plain data;
Hypothesis draws and shrinks recipes, never arrays. :func:`expand` turns one into the arguments of
the operation: float64 arrays whose numbers are exactly representable in the dtype under test, so
that both sides of a comparison see the same numbers.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to
from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.inputs.masks import draw_mask, draw_visible
from attnverify.inputs.poison import plant
from attnverify.inputs.value_families import fill
from attnverify.spec import layers
from attnverify.spec.shapes import PATTERN

Inputs = dict[str, Any]

PARAMETERS = {
    "self_attention": "w_query [K F], w_key [K F], w_value [E F]",
    "multi_head_attention": layers.MULTI_HEAD,
    "multi_head_self_attention": layers.MULTI_HEAD,
    "relative_multi_head_attention": layers.RELATIVE,
    "alibi_multi_head_attention": layers.ALIBI,
    "transformer_xl_layer": layers.TRANSFORMER_XL,
    "transformer_xl": layers.TRANSFORMER_XL,
}


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
    poison   None, "finite", "nan" or "inf": what stands in hidden slots
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
        return json.dumps(
            {key: value for key, value in asdict(self).items() if value is not None}, sort_keys=True
        )

    @cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name the content."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

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
            f"{key} {brief(value)}" for key, value in parts.items()
        )


def brief(value: Any) -> str:
    """``{"N": 3, "M": 5}`` as ``N=3 M=5``."""
    return (
        " ".join(f"{key}={item}" for key, item in value.items())
        if isinstance(value, dict)
        else str(value)
    )


def from_text(text: str) -> Recipe:
    return Recipe(**json.loads(text))


@lru_cache(maxsize=2048)
def expand(recipe: Recipe, dtype: str) -> Inputs:
    """
    The arguments of the operation. The arrays are shared by all who expand this recipe, and
    read-only.
    """
    operation = CATALOGUE[recipe.operation]
    rng = np.random.default_rng(recipe.values["seed"])
    with np.errstate(all="ignore"):
        inputs = arrays(operation, recipe, rng)
        fill(inputs, recipe, dtype, rng)
        inputs |= masks(operation, recipe, dtype, inputs) | numbers(operation, recipe)
        if recipe.poison:
            plant(inputs, operation, recipe.poison, dtype)
        inputs = {
            name: rounded(inputs[name], dtype) for name in operation.arguments if name in inputs
        }
    return inputs


def rounded(tree: Any, dtype: str) -> Any:
    """Every float array of a tree of arguments rounded to the dtype, and made read-only."""
    if isinstance(tree, dict):
        return {name: rounded(leaf, dtype) for name, leaf in tree.items()}
    if isinstance(tree, list):
        return [rounded(leaf, dtype) for leaf in tree]
    if isinstance(tree, ndarray):
        tree = round_to(tree, dtype) if tree.dtype.kind == "f" else tree.copy()
        tree.setflags(write=False)
    return tree


def arrays(operation: Operation, recipe: Recipe, rng: np.random.Generator) -> Inputs:
    """
    Standard normal numbers in the shape of every float array argument, parameters and memories
    included.
    """
    made: Inputs = {}
    sizes, options = recipe.sizes, recipe.options
    for name, axes in operation.axes.items():
        if name not in ("attn_mask", "mem", "hids", "mems"):
            made[name] = normal(axes, recipe, rng)
    if operation.name in PARAMETERS:
        layers_of = [
            parameters(PARAMETERS[operation.name], recipe, rng) for _ in range(sizes.get("L", 1))
        ]
        made["parameters"] = layers_of if operation.name == "transformer_xl" else layers_of[0]
    if "hids" in operation.arguments:
        made["hids"] = [normal("B N F", recipe, rng) for _ in range(sizes["L"])]
    if "mems" in operation.arguments:
        made["mems"] = (
            [normal("B S F", recipe, rng) for _ in range(sizes["L"])]
            if options.get("mems", True)
            else None
        )
    if "mem" in operation.arguments:
        made["mem"] = normal("B S F", recipe, rng) if options.get("mems", True) else None
    return made


def parameters(pattern: str, recipe: Recipe, rng: np.random.Generator) -> Inputs:
    """
    The weights of a layer: variance 1 / fan-in, so that every stage keeps the size of its input.
    """
    biases = recipe.options.get("biases", True)
    made = {}
    for name, optional, axes in PATTERN.findall(pattern):
        if optional and not biases:
            continue
        x = normal(axes, recipe, rng)
        made[name] = (
            1 + 0.25 * x
            if name == "layer_norm.weight"
            else x / np.sqrt(x.shape[-1])
            if name.endswith("weight")
            else x
        )
    return made


def normal(axes: str, recipe: Recipe, rng: np.random.Generator) -> ndarray:
    return rng.standard_normal(shape_of(axes, recipe.sizes, recipe.options.get("lead", ())))


def shape_of(axes: str, sizes: dict[str, int], lead: Any = ()) -> tuple[int, ...]:
    """The shape of ``... N 2P`` for these sizes."""
    letters = axes.split()
    tail = tuple(int(axis[:-1] or 1) * sizes[axis[-1]] for axis in letters if axis != "...")
    return (*lead, *tail) if letters[0] == "..." else tail


def masks(operation: Operation, recipe: Recipe, dtype: str, inputs: Inputs) -> Inputs:
    """The masks of the recipe, under the names that the operation gives them."""
    made: Inputs = {}
    names = operation.arguments
    for name in ("mask", "visible", "attn_mask"):
        if name in names:
            made[name] = (
                draw_mask(recipe, dtype, hidden_is_true=name == "attn_mask")
                if recipe.mask
                else None
            )
    if "key_padding_mask" in names:
        made["key_padding_mask"] = (
            ~draw_visible(recipe.padding, "B M", recipe.sizes) if recipe.padding else None
        )
    if "keep" in names:
        p = recipe.dropout["p"] if recipe.dropout else 0.0
        made |= {"keep": keep(recipe), "p": p}
    return made


def keep(recipe: Recipe) -> ndarray | None:
    if recipe.dropout is None:
        return None
    whole = {"dropout": "... N M"}.get(
        recipe.operation, "B H N M" if "H" in recipe.sizes else "B N M"
    )
    shape = shape_of(
        recipe.dropout.get("axes", whole), recipe.sizes | {"1": 1}, recipe.options.get("lead", ())
    )
    share = (
        recipe.dropout["p"] or 0.25
    )  # with p = 0 nothing is scaled, and a draw that drops still drops
    kept: ndarray = np.random.default_rng(recipe.dropout["seed"]).random(shape) >= share
    return kept


NUMBERS = {
    "n_heads": "H",
    "num_heads": "H",
    "N": "N",
    "M": "M",
    "F": "F",
    "n_layers": "L",
    "batch": "B",
    "width": "F",
}


def numbers(operation: Operation, recipe: Recipe) -> Inputs:
    """Counts, sizes and words among the arguments."""
    made: Inputs = {
        name: recipe.sizes[letter]
        for name, letter in NUMBERS.items()
        if name in operation.arguments
    }
    return made | {
        name: recipe.options[name] for name in ("align", "mem_len", "eps") if name in recipe.options
    }
