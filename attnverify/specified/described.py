"""What was understood of a specification: axes, domains, and where its bound comes from."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.derived import Derived
from attnverify.derived.tracing.array import FUNCTIONS, UFUNCS
from attnverify.inputs.recipe import Recipe
from attnverify.precision import FORMATS, PRESETS
from attnverify.specified.operation import SpecifiedOperation
from attnverify.specified.reading import Argument, source_line

SHOWN = ("float32", "bfloat16", "float16")
LEAST = 0.02
"""Shares of the bound below this are not told."""


def describe(operation: SpecifiedOperation) -> Iterator[str]:
    """Describe an operation from outside, line by line."""
    yield f"{operation.name}({', '.join(operation.arguments)})"
    width = max(len(one.name) for one in operation.described) + 2
    for one in operation.described:
        yield f"  {one.name:<{width}}{domain_of(one)}"
    derived = operation.derived(
        operation.expand(Recipe(operation.name, **next(operation.fixed())), "float64")
    )
    shapes = ", ".join(str(node.shape) for node in derived.nodes)
    yield f"  {'->':<{width}}{shapes} on the sizes {_sizes(operation)}"
    back = CATALOGUE.get(f"{operation.name}_grad")
    yield f"  gradient by {', '.join(operation.floats)}" if back else "  no gradient"
    for dtype in SHOWN:
        yield from (f"  {line}" for line in describe_bound(operation, derived, dtype))


def describe_functions() -> Iterator[str]:
    """List the functions of NumPy that a specification may call on its arguments."""
    named = [f"np.{name}" for name in UFUNCS if hasattr(np, name)]
    others = [f"{f.__module__}.{f.__name__}" for f in FUNCTIONS if callable(f)]
    yield "Of an argument, or of what is computed from it, these are understood:"
    yield "  " + " ".join(sorted({*named, *(name.replace("numpy", "np", 1) for name in others)}))
    yield "and operators, slices and methods of these names. Of what holds no argument all are."


def domain_of(argument: Argument) -> str:
    """Say what is drawn for an argument."""
    axes = argument.written
    if argument.kind == "number":
        return " or ".join(f"{choice!r}" for choice in argument.choices)
    if argument.kind == "bool":
        return f"mask [{axes}]"
    if argument.kind == "float":
        ends = argument.choices
        return f"numbers [{axes}]" + (f" from {ends[0]} to {ends[1]}" if ends else "")
    if argument.kind == "offsets":
        return f"offsets [{axes} + 1] from 0 to {argument.below}"
    most = f"{argument.below} - 1" if argument.below else argument.most
    extra = "".join(f", or {value}" for value in argument.extra)
    return f"integers [{axes}] from {argument.least} to {most}{extra}"


def describe_bound(operation: SpecifiedOperation, derived: Derived, dtype: str) -> Iterator[str]:
    """Say how small an error is noticed, and which lines make the bound as large as it is."""
    precision = PRESETS[operation.undeclared](FORMATS[dtype])
    whole = derived.without("", precision)
    noticed = relative(whole, derived)
    yield f"in {dtype}, {operation.undeclared}: an error of {noticed:.1e} of a number is noticed"
    for line in derived.lines:
        share = 1 - relative(derived.without(line, precision), derived) / noticed
        if share >= LEAST:
            yield f"  {share:4.0%} of it from {line}: {source_line(operation.own, line)}"


def relative(bounds: Sequence[ndarray], derived: Derived) -> float:
    """Compute the median of bound over size, of all outputs."""
    pairs = zip(bounds, derived.nodes, strict=True)
    parts = [(E / np.maximum(np.abs(node.value), 1e-30)).ravel() for E, node in pairs]
    return float(np.median(np.concatenate(parts)))


def _sizes(operation: SpecifiedOperation) -> str:
    sizes = next(operation.fixed())["sizes"]
    return " ".join(f"{letter}={size}" for letter, size in sizes.items())
