"""
The catalogue: every operation of the specification, read off ``spec/`` so that nothing is written
twice.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from attnverify.catalogue.annotations import (
    Domain,
    array_types,
    at_least_float32,
    domain_of,
    float_axes,
    nested_array_types,
    single_parameters,
)
from attnverify.catalogue.outside import Outside
from attnverify.catalogue.traits import (
    CHAPTERS,
    DTYPES,
    GRADIENT_SKIPS,
    LETTERS,
    SATURATING,
    TRAITS,
    UNSTAGED_GRADIENT,
    UNTIMED_GRADIENT,
    Traits,
)
from attnverify.contract.shapes import PATTERN

ARGUMENT_SIZES = {
    "n_heads": "H",
    "num_heads": "H",
    "B": "B",
    "N": "N",
    "M": "M",
    "F": "F",
    "n_layers": "L",
    "batch": "B",
    "width": "F",
    "rotary_dim": "2R",
}
"""The sizes that are arguments, and their letters, doubled where twice as many are asked for."""


_MASK_SIZES = {
    "mask": "NM",
    "visible": "NM",
    "attn_mask": "BNM",
    "key_padding_mask": "BM",
    "mem": "BSF",
    "mems": "BSFL",
    "hids": "BNFL",
}
"""The sizes of what an annotation does not spell out."""


INNER = "I"
"""The inner width of a layer's feed-forward: a recipe has it where the layer has that option."""


MASKS = ("mask", "visible", "attn_mask")
"""The names that a mask for queries and keys has."""


@dataclass(frozen=True)
class Operation:
    """
    One operation of the specification: its function in ``spec/``, its chapter, its row of traits.
    """

    name: str
    chapter: str
    specification: Callable[..., Any]

    @property
    def outside(self) -> Outside | None:
        """What it brings with it, where it is read off somebody's own specification."""
        return None

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """
        The same operation in ``numpy_ref/``: the oracle where the specification's loops would take
        too long.
        """
        function: Callable[..., Any] = getattr(
            importlib.import_module(f"attnverify.numpy_ref.{self.chapter}"), self.name
        )
        return function

    @property
    def traits(self) -> Traits:
        """The row of the operation, or of the operation that it is the gradient of."""
        return TRAITS[self.name.removesuffix("_grad")]

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Its parameters, with each of the options that it takes as one record."""
        return {each.name: each for each in single_parameters(self.specification)}

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.parameters)

    @cached_property
    def domains(self) -> "dict[str, Domain]":
        """What its options may be, by their names, where their annotations say so."""
        return {
            name: domain
            for name, parameter in self.parameters.items()
            if (domain := domain_of(parameter.annotation))
        }

    @cached_property
    def axes(self) -> dict[str, str]:
        """
        The axes of each float array argument as the specification annotates them,
        ``{"query": "B H N D"}``.
        """
        return {
            name: axes
            for name, parameter in self.parameters.items()
            if (axes := float_axes(parameter.annotation))
        }

    @cached_property
    def integer_axes(self) -> dict[str, str]:
        """The axes of each argument that is one array of integers."""
        return {name: d.axes[0] for name, d in self.domains.items() if len(d.axes) == 1}

    @cached_property
    def sizes(self) -> frozenset[str]:
        """The letters of its arrays, parameters, masks, lists and counts."""
        patterns = PATTERN.findall(self.traits.parameters)
        arrays = (self.axes | self.integer_axes).values()
        text = " ".join((*arrays, *(axes for _, _, axes in patterns)))
        named = ARGUMENT_SIZES | _MASK_SIZES
        return frozenset(
            re.findall("[A-Z]", text + "".join(named.get(name, "") for name in self.arguments))
        )

    @property
    def letters(self) -> dict[str, str]:
        """What its letters are, in words; those of its optional parts too."""
        used = self.sizes | ({INNER} if self.traits.option else set())
        return {letter: words for letter, words in LETTERS.items() if letter in used}

    @property
    def families(self) -> tuple[str, ...]:
        """The families of numbers that its inputs are drawn from."""
        own = self.traits.families
        if not self.is_gradient:
            return own
        left_out = SATURATING if self.traits.parameters else ()
        return (*(name for name in own if name not in left_out), "one_hot")

    def dtype_of(self, argument: str, dtype: str) -> str:
        """The dtype of an argument where the operation is asked in one."""
        return at_least_float32(dtype) if argument in self.traits.wide else dtype

    def dtype_of_output(self, place: int, dtype: str) -> str:
        """The dtype of one of several outputs likewise; of a gradient that of its argument."""
        if not self.is_gradient:
            return at_least_float32(dtype) if place in self.traits.wide_outputs else dtype
        names = [name for name in self.axes if not name.startswith("d_")]
        return self.dtype_of(names[place], dtype) if place < len(names) else dtype

    @property
    def exact(self) -> bool:
        """Whether it moves numbers and computes none: then it must agree bit for bit."""
        return self.traits.exact

    @property
    def is_gradient(self) -> bool:
        return self.name.endswith("_grad")

    @property
    def is_layer_gradient(self) -> bool:
        """Whether it is the gradient of an attention between projections: fewer cases judge it."""
        return self.is_gradient and bool(self.traits.parameters)

    @property
    def forward(self) -> "Operation":
        """The operation that this is the gradient of; itself otherwise."""
        return CATALOGUE[self.name.removesuffix("_grad")]

    @property
    def gradient(self) -> "Operation | None":
        return CATALOGUE.get(f"{self.name}_grad")

    @property
    def is_attention(self) -> bool:
        """
        Whether it takes the mean of given values, without projections of its own, head by head.
        """
        takes_values = {"query", "key", "value"} <= set(self.arguments)
        return takes_values and not self.traits.parameters and not self.shares_keys

    @property
    def second_result(self) -> str:
        """What it returns beside its output: "weights", "lse", or "" """
        arriving = (self.gradient or self).axes
        found = (name for name in ("weights", "lse") if f"d_{name}" in arriving)
        alone = "lse" if self.traits.wide_outputs else ""
        return "" if self.is_gradient else next(found, alone)

    @property
    def shares_keys(self) -> bool:
        """Whether several heads of queries share one head of keys and values."""
        return "G" in self.sizes or self.is_latent

    @property
    def is_latent(self) -> bool:
        """Whether its keys and values are one array."""
        return "latent" in self.arguments

    @property
    def is_selected(self) -> bool:
        """Whether each row chooses the blocks of keys that it sees."""
        return "selection" in self.arguments

    @property
    def is_packed(self) -> bool:
        """Whether its sequences lie end to end in one array."""
        return "query_starts" in self.arguments

    @property
    def lies_otherwise(self) -> bool:
        """Whether its arrays are no heads; :mod:`attnverify.catalogue.packing` makes them."""
        return self.is_packed or self.is_latent

    @property
    def is_paged(self) -> bool:
        """Whether its keys lie in pages of a pool that a table names: nothing is differentiated."""
        return "page_table" in self.arguments

    @property
    def is_staged(self) -> bool:
        """
        Whether it consists of the stages of :mod:`attnverify.reference.staged_attention`: of the
        gradients those of the attentions alone do.
        """
        return self.traits.staged and (self.is_attention or not self.is_gradient)

    @property
    def is_score(self) -> bool:
        """Whether it returns the scores of queries and keys."""
        others = {"value", "value_pages", "latent"}
        return "query" in self.arguments and others.isdisjoint(self.arguments)

    @property
    def has_heads(self) -> bool:
        """Whether it splits the model width into heads."""
        return bool(self.traits.parameters) and "num_heads" in self.arguments

    @property
    def has_memory(self) -> bool:
        return not {"mem", "mems", "mem_len"}.isdisjoint(self.arguments)

    @property
    def is_stack(self) -> bool:
        """Whether it is several layers, one upon the other."""
        return bool(self.traits.parameters) and "mems" in self.arguments

    @cached_property
    def is_given_arrays(self) -> bool:
        """Whether some argument is an array; what is drawn for the others are sizes, and many."""
        annotations = [parameter.annotation for parameter in self.parameters.values()]
        return any(array_types(annotation) for annotation in annotations)

    @cached_property
    def takes_dtype(self) -> bool:
        """Whether its result is float though no input need be: then it takes ``dtype``."""
        return not self.axes and self.dtypes == DTYPES

    @cached_property
    def mask(self) -> str | None:
        """The name of its mask for queries and keys, if it has one."""
        return next((name for name in MASKS if name in self.arguments), None)

    @property
    def key_mask_axes(self) -> str | None:
        """The documented shape of a mask that hides a key from every query, if there is one."""
        shapes = self.traits.mask_axes
        return next((axes for axes in shapes if axes[0] == "B" and "N" not in axes), None)

    @property
    def can_hide(self) -> bool:
        """Whether a mask can hide slots that nobody may look at: keys, or the scores given."""
        if "score" in self.arguments:
            return self.mask is not None
        if self.lies_otherwise or self.is_selected:
            return True
        hides_keys = self.key_mask_axes is not None or "key_padding_mask" in self.arguments
        return "key" in self.arguments and hides_keys

    @property
    def can_hide_from_some(self) -> bool:
        """Whether some rows may be shown a key that others are not."""
        hides = self.traits.causal or self.mask is not None or self.lies_otherwise
        hides = hides or self.is_selected
        return hides and (self.is_attention or self.shares_keys or self.chapter == "layers")

    def requires(self, argument: str) -> bool:
        """Tell whether an argument is given in every call, if only as None."""
        parameter = self.parameters.get(argument)
        return parameter is not None and parameter.default is parameter.empty

    def allows_none(self, argument: str) -> bool:
        """Tell whether an argument may be None."""
        return type(None) in get_args(self.parameters[argument].annotation)

    def demands(self, argument: str) -> bool:
        """Tell whether no call is without an argument: it has no default and may not be None."""
        return self.requires(argument) and not self.allows_none(argument)

    def skips(self, check: str) -> str | None:
        """Why a check does not apply, or None where it does."""
        reasons = dict(self.traits.skipped)
        if self.is_gradient:
            reasons = GRADIENT_SKIPS | reasons
            reasons |= {} if self.is_attention else UNTIMED_GRADIENT
            reasons |= {} if self.is_staged else UNSTAGED_GRADIENT
        return reasons.get(check)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes it is judged in; a boolean result knows no float and is judged once."""
        result = inspect.signature(self.specification).return_annotation
        returns_bool = any("bool" in part.dtypes for part in array_types(result))
        return ("bool",) if returns_bool else DTYPES


def result_axes(operation: Operation) -> str:
    """Read the axes of the one array that an operation returns; "" where it returns others."""
    annotation = inspect.signature(operation.specification).return_annotation
    return float_axes(annotation) or ""


def result_axes_of(operation: Operation, inputs: Mapping[str, Any]) -> list[str]:
    """Read the axes of each array that a call returns; of a gradient those of its argument."""
    if not operation.is_gradient:
        annotation = inspect.signature(operation.specification).return_annotation
        return [str(part.dim_str) for part in nested_array_types(annotation)]
    names = [name for name in operation.arguments if not name.startswith("d_")]
    floats = [n for n in names if "float" in str(getattr(inputs.get(n), "dtype", ""))]
    return [operation.axes.get(name, "") for name in floats]


def read_catalogue() -> dict[str, Operation]:
    """
    Read every operation that a chapter names; ValueError where the table of traits lacks its row.
    """
    chapters = {
        chapter: importlib.import_module(f"attnverify.spec.{chapter}") for chapter in CHAPTERS
    }
    found = {
        name: Operation(name, chapter, getattr(module, name))
        for chapter, module in chapters.items()
        for name in module.__all__
    }
    rows = {name.removesuffix("_grad") for name in found}
    if odd := rows ^ set(TRAITS):
        raise ValueError(
            f"TRAITS: wanted a row for each operation of spec/, got {', '.join(sorted(odd))} in "
            "one of the two alone"
        )
    return found


CATALOGUE = read_catalogue()


def parse_name(name: str) -> tuple[Operation, str] | None:
    """
    ``alibi_attention_triton`` is the operation alibi_attention and the how "triton"; None where no
    operation begins the name.
    """
    fitting = [
        operation
        for operation in CATALOGUE
        if name == operation or name.startswith(f"{operation}_")
    ]
    if not fitting:
        return None
    longest = max(fitting, key=len)
    return CATALOGUE[longest], name[len(longest) + 1 :]
