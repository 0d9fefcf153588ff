"""
Kernels without an axis of heads (``LAYOUT = "BND"``: the heads of all entries lie one behind the
other), and kernels of one matrix each (``LAYOUT = "ND"``), which are called once for each head of
each entry.

Both are the file's own arrays, so that a gradient by its library goes through it.
"""

import re
import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from attnverify.catalogue.operation import Operation

Given = Mapping[str, Any]
Call = Callable[..., Any]


def has_heads(axes: str, width: bool) -> bool:
    """Tell whether axes end in batch, heads and positions, and a ``width`` behind these."""
    return bool(re.search(r"\bB [HG] [NM]" + " [DEJ]" * width + "$", axes))


def layouts_of(operation: Operation) -> tuple[str, ...]:
    """Name the orders and numbers of axes that calls of an operation can be translated to."""
    arrays, traits = list(operation.axes.values()), operation.traits
    headed = [has_heads(axes, width=True) for axes in arrays]
    apart = bool(arrays) and not (traits.slopes or traits.parameters or operation.second_result)
    apart &= operation.forward.is_attention or bool(re.match(r"\.\.\. \S+ \S+$", (*arrays, "")[0]))
    return ("BNHD",) * any(headed) + ("BND",) * (apart and all(headed)) + ("ND",) * apart


def by_layout(layout: str | None, call: Call, operation: Operation, inputs: Given) -> Any:
    """Call what has fewer axes than the specification; any other layout as it is."""
    if layout not in ("BND", "ND") or layout not in layouts_of(operation):
        return call(**inputs)
    lead = tuple(inputs[next(iter(operation.axes))].shape[:-2])
    one = call_folded if layout == "BND" else call_apart
    output = one(call, operation, inputs, lead)
    several = output if isinstance(output, (list, tuple)) else [output]
    arrays = [name for name in operation.axes if not name.startswith("d_")]
    if operation.is_gradient and len(several) > len(arrays):
        raise NotImplementedError("LAYOUT: the gradient of a mask that heads share is not known")
    return output


def call_folded(call: Call, operation: Operation, inputs: Given, lead: tuple[int, ...]) -> Any:
    """Call what has the heads in its batch."""

    def fold(name: str, x: Any) -> Any:
        if name not in operation.axes and not is_mask(name, x, operation):
            return x
        if len(x.shape) > 2 and tuple(x.shape[:-2]) != lead:
            x = library_of(x).broadcast_to(x, (*lead, *x.shape[-2:]))
        return x.reshape(prod(lead), *x.shape[-2:]) if len(x.shape) > 2 else x

    def unfold(x: Any) -> Any:
        shape = tuple(getattr(x, "shape", ()))
        return x.reshape(*lead, *shape[1:]) if shape[:1] == (prod(lead),) else x

    output = call(**{name: fold(name, x) for name, x in inputs.items()})
    return type(output)(map(unfold, output)) if is_several(output) else unfold(output)


def call_apart(call: Call, operation: Operation, inputs: Given, lead: tuple[int, ...]) -> Any:
    """Call what has one matrix of each array, as often as there are."""
    letters = next(iter(operation.axes.values())).split()[:-2]
    shared = [axes for axes in operation.axes.values() if axes.split()[: len(letters)] != letters]
    if operation.is_gradient and shared:
        raise NotImplementedError("LAYOUT: the gradient of what heads share is not known")

    def part(name: str, x: Any, at: tuple[int, ...]) -> Any:
        if is_mask(name, x, operation):
            own = tuple(x.shape[:-2])
            places = at[len(at) - len(own) :]
            return x[tuple(0 if n == 1 else i for n, i in zip(own, places, strict=True))]
        axes = operation.axes.get(name, "").split()
        if axes[:1] == ["..."]:
            return x[at]
        of = dict(zip(letters, at, strict=False))
        return x[tuple(of.get(letter, slice(None)) for letter in axes)] if axes else x

    outputs = [
        call(**{name: part(name, x, at) for name, x in inputs.items()}) for at in np.ndindex(*lead)
    ]
    if not is_several(outputs[0]):
        return joined(outputs, lead)
    return type(outputs[0])(joined(parts, lead) for parts in zip(*outputs, strict=True))


def joined(parts: Any, lead: tuple[int, ...]) -> Any:
    """Put the results of all calls together; what is no array stays for the judge to tell."""
    if not hasattr(parts[0], "shape"):
        return parts[0]
    return library_of(parts[0]).stack(list(parts)).reshape(*lead, *parts[0].shape)


def is_mask(name: str, x: Any, operation: Operation) -> bool:
    """Tell whether an argument is an array [... N M] that is laid over all heads."""
    return name in (operation.mask, "keep") and len(getattr(x, "shape", ())) >= 2


def is_several(output: Any) -> bool:
    return isinstance(output, (list, tuple))


def library_of(x: Any) -> Any:
    """The module whose functions take an array."""
    name = type(x).__module__.partition(".")[0]
    return sys.modules["jax.numpy" if name.startswith("jax") else name]
