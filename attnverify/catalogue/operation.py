"""
The catalogue: every operation of the law, read off ``spec/`` so that nothing is written twice.
"""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, get_args

from attnverify.catalogue.traits import (
    CHAPTERS,
    DTYPES,
    EXACT,
    LAYER_PARAMETERS,
    SCALAR_ARGUMENT_SIZES,
)
from attnverify.spec.shapes import PATTERN


@dataclass(frozen=True)
class Operation:
    """One operation of the law: its function in ``spec/`` (the law) and its chapter."""

    name: str
    chapter: str
    law: Callable[..., Any]

    @cached_property
    def reference(self) -> Callable[..., Any]:
        """
        The same operation in ``numpy_ref/``: the oracle where the law's loops would take too long.
        """
        function: Callable[..., Any] = getattr(
            importlib.import_module(f"attnverify.numpy_ref.{self.chapter}"), self.name
        )
        return function

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.law).parameters)

    @cached_property
    def axes(self) -> dict[str, str]:
        """
        The axes of each float array argument as the law annotates them, ``{"query": "B H N D"}``.
        """
        parameters = inspect.signature(self.law).parameters.items()
        return {
            name: axes
            for name, parameter in parameters
            if (axes := float_axes(parameter.annotation))
        }

    @property
    def exact(self) -> bool:
        """Whether it moves numbers and computes none: then it must agree bit for bit."""
        return self.name in EXACT

    @property
    def is_gradient(self) -> bool:
        return self.name.endswith("_grad")

    @property
    def forward(self) -> "Operation":
        """The operation that this is the gradient of; itself otherwise."""
        return CATALOGUE[self.name.removesuffix("_grad")]

    @property
    def gradient(self) -> "Operation | None":
        return CATALOGUE.get(f"{self.name}_grad")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """causal_mask knows no float: it is judged once."""
        return ("bool",) if self.name == "causal_mask" else DTYPES


def float_axes(annotation: Any) -> str | None:
    """
    The axes of ``Float[ndarray, "B H N D"]``, also inside ``... | None``; None for masks and for
    anything else.
    """
    parts = [part for part in (annotation, *get_args(annotation)) if hasattr(part, "dim_str")]
    if len(parts) != 1 or "float64" not in parts[0].dtypes:
        return None
    return "... N M" if parts[0].dim_str == "..." else str(parts[0].dim_str)


def read_catalogue() -> dict[str, Operation]:
    chapters = {
        chapter: importlib.import_module(f"attnverify.spec.{chapter}") for chapter in CHAPTERS
    }
    return {
        name: Operation(name, chapter, getattr(module, name))
        for chapter, module in chapters.items()
        for name in module.__all__
    }


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


@lru_cache
def size_letters(op: Operation) -> frozenset[str]:
    """
    The sizes that the operation has: of its arrays, its parameters, its masks, its lists and its
    counts.
    """
    text = " ".join(
        (
            *op.axes.values(),
            *(axes for _, _, axes in PATTERN.findall(LAYER_PARAMETERS.get(op.name, ""))),
        )
    )
    found = set(re.findall("[A-Z]", text)) | {
        SCALAR_ARGUMENT_SIZES[name] for name in SCALAR_ARGUMENT_SIZES if name in op.arguments
    }
    masks = {
        "mask": "NM",
        "visible": "NM",
        "attn_mask": "BNM",
        "key_padding_mask": "BM",
        "mem": "BSF",
        "mems": "BSFL",
        "hids": "BNFL",
    }
    return frozenset(found.union(*(masks[name] for name in masks if name in op.arguments)))


def uses(op: Operation, letter: str) -> bool:
    return letter in size_letters(op)
