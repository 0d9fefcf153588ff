"""
A stand-alone script of a recorded failure: it needs NumPy and the backend's own library only.
"""

import base64
import re
import textwrap
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import bounds
from attnverify.backends.array_libraries import dtype_name
from attnverify.backends.implementation import Implementation
from attnverify.backends.source import parse_source
from attnverify.catalogue.operation import Operation
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.catalogue.traits import DTYPES
from attnverify.failures.plain_data import WIDTH
from attnverify.failures.record import FailureRecord
from attnverify.failures.replay import replay
from attnverify.failures.scripts import loading, runtime
from attnverify.failures.scripts.page import relative_source, write_page
from attnverify.inputs import memory_layouts
from attnverify.inputs.recipe import Inputs, layout_kinds
from attnverify.judge import comparison
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import dtype_keyword
from attnverify.reference.oracle import evaluate_spec


def script(failure: FailureRecord, implementation: Implementation) -> str:
    """
    Write a program that shows the failure with NumPy and the backend's own library alone: a page
    where one call on few numbers does.
    """
    is_one_call = not failure.check and failure.aspect != "side effects"
    page = write_page(failure.case, implementation) if is_one_call else ""
    return f'"""\n{describe(failure, implementation)}\n"""\n\n' + (
        page or write_every_call(failure, implementation)
    )


def describe(failure: FailureRecord, implementation: Implementation) -> str:
    """Say what the program shows, whether it is what was recorded, and how it is run."""
    what = (
        f"{failure.implementation} of {place_of(failure, implementation)}, {failure.dtype}, "
        f"{failure.aspect}: {failure.words}"
    )
    paragraphs = (what, failure.describe_drift(), STATUSES)
    return "\n\n".join(textwrap.fill(text, WIDTH) for text in paragraphs if text)


STATUSES = (
    "Exits with 1 where it shows the failure, 0 where the failure is gone, 125 where it cannot "
    "run: fit for git bisect run. Run it where the backend's file is found, or name the file: "
    "python THIS_FILE."
)


def place_of(failure: FailureRecord, implementation: Implementation) -> str:
    """Where the backend is, without folders; a column on the machine is on a GPU there."""
    asked = parse_source(failure.backend)
    if asked.target:
        return asked.place
    by_name = implementation.backend.by_name
    return failure.backend if by_name else relative_source(failure.backend)


def write_every_call(failure: FailureRecord, implementation: Implementation) -> str:
    """Write the program of any failure: every call that was made, in order, and what compares."""
    operation, library = implementation.operation, implementation.backend.library
    assert library is not None
    steps = (
        calls_of(failure, implementation) if failure.check else steps_of(failure, implementation)
    )
    called = getattr(implementation.function, "forward", implementation.function)
    fixed = {
        "source": place_of(failure, implementation),
        "chapter": operation.chapter,
        "name": failure.implementation,
        "forward": failure.implementation.replace("_grad", ""),
        "library": library.name,
        "exchanged": getattr(called, "exchanged", []),
        "places": getattr(called, "places", []),
        "takes_dtype": bool(dtype_keyword(implementation, failure.dtype)),
        "wide": wide_outputs(operation, failure.dtype),
    }
    modules = (memory_layouts, comparison, loading, runtime)
    sources = [Path(str(module.__file__)).read_text() for module in modules]
    body = re.sub(r"^from attnverify\..*\n", "", "\n\n".join(sources), flags=re.MULTILINE)
    steps = [] if getattr(called, "is_translated", False) or implementation.is_alone else steps
    own = [fixed | own for step in steps for own in by_own_names(implementation, step)]
    told = ("".join(f"    {name}={pack(value)},\n" for name, value in step.items()) for step in own)
    calls = "".join(f"show_again(\n{arguments})\n" for arguments in told)
    again = f"{calls}sys.exit(int(any(SHOWN)))\n" if calls else TOO_LARGE
    return f"{body}\n\n{again}"


TOO_LARGE = """\
print("These inputs are too large, or translated by what the file says: use attnverify replay.")
sys.exit(125)
"""
READABLE = 64
"""Arrays of so many numbers are written out."""

MOST = 1_000_000
"""The most numbers that a script carries."""


def steps_of(failure: FailureRecord, implementation: Implementation) -> list[dict[str, Any]]:
    """Write the one call of a case, with what is expected; none of a case that is too large."""
    case = failure.case
    if (
        case.rows
        or sum(leaf.size for leaf in leaves(case.inputs) if isinstance(leaf, ndarray)) > MOST
    ):
        return []
    kinds = layout_kinds(case.recipe, len(case.inputs))
    step = {
        "dtype": case.dtype,
        "layout": dict(zip(case.inputs, kinds, strict=True)),
        "inputs": case.inputs,
        "expected": case.expected,
        "bound": case.bounds(implementation.precision(case.dtype)),
    }
    return [step]


def calls_of(failure: FailureRecord, implementation: Implementation) -> list[dict[str, Any]]:
    """Watch the calls that a check makes, each with what the specification says."""
    library, made = implementation.backend.library, []
    assert library is not None

    @wraps(implementation.function)
    def watched(**arguments: Any) -> Any:
        given = {name: value for name, value in arguments.items() if name != "dtype"}
        dtypes = [
            dtype_name(leaf)
            for leaf in leaves(given)
            if hasattr(leaf, "shape") and dtype_name(leaf) in DTYPES
        ]
        copies = map_leaves(
            lambda leaf: np.array(library.to_numpy(leaf)) if hasattr(leaf, "shape") else leaf, given
        )
        made.append((dtypes[0] if dtypes else failure.dtype, copies))
        return implementation.function(**arguments)

    with suppress(Disagreement, Unsupported):
        replay(failure, replace(implementation, function=watched))
    small = (
        sum(leaf.size for _, inputs in made for leaf in leaves(inputs) if isinstance(leaf, ndarray))
        <= MOST
    )
    return [step_of_call(implementation, dtype, inputs) for dtype, inputs in made] if small else []


def step_of_call(implementation: Implementation, dtype: str, inputs: Inputs) -> dict[str, Any]:
    operation, bound = implementation.operation, None
    try:
        expected = evaluate_spec(operation, inputs)
        if not operation.exact:
            bound = bounds.bound(operation.name, inputs, implementation.precision(dtype))
    except ValueError:
        expected = "ValueError"
    layout = dict.fromkeys(inputs, "contiguous")
    return {
        "dtype": dtype,
        "layout": layout,
        "inputs": inputs,
        "expected": expected,
        "bound": bound,
    }


def by_own_names(implementation: Implementation, step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """
    Yield a step with its arguments by the function's own names; no step that it does not take.
    """
    forward = getattr(implementation.function, "forward", None)
    own_arguments = getattr(forward or implementation.function, "own_arguments", dict)
    own = implementation.operation.dtype_of
    inputs = {
        n: in_own_dtype(x, own(n, step["dtype"]), step["dtype"]) for n, x in step["inputs"].items()
    }
    arriving = {n: x for n, x in inputs.items() if forward and n.startswith("d_")}
    with suppress(NotImplementedError):
        given = own_arguments(**{n: x for n, x in inputs.items() if n not in arriving})
        names = {id(x): name for name, x in inputs.items()}  # each array is a view of its own
        kinds = step["layout"]
        layout = {own: kinds.get(names.get(id(x)), "contiguous") for own, x in given.items()}
        layout |= {name: kinds[name] for name in arriving}
        yield step | {"inputs": given | arriving, "layout": layout}


def wide_outputs(operation: Operation, dtype: str) -> list[int]:
    """Which of its outputs have another dtype than the call."""
    return [at for at in range(9) if operation.dtype_of_output(at, dtype) != dtype]


def in_own_dtype(x: Any, own: str, dtype: str) -> Any:
    """A view of an array; a copy in its own dtype where that is not the call's."""
    if not isinstance(x, ndarray):
        return x
    return x.astype(own) if own != dtype and x.dtype.kind == "f" else x.view()


def pack(tree: Any) -> str:
    """
    Write a tree of arrays as a literal: every array becomes ``array("dtype", shape, "its bytes,
    compressed")``.
    """
    return repr(
        map_leaves(lambda leaf: ArrayLiteral(leaf) if isinstance(leaf, ndarray) else leaf, tree)
    )


@dataclass(frozen=True)
class ArrayLiteral:
    array: ndarray

    def __repr__(self) -> str:
        name, shape = self.array.dtype.name, self.array.shape
        if self.array.size <= READABLE:
            return f"np.array({self.array.ravel().tolist()}, {name!r}).reshape({shape})"
        packed = base64.b85encode(
            zlib.compress(np.ascontiguousarray(self.array).tobytes(), 9)
        ).decode()
        return f"array({name!r}, {shape}, {packed!r})"
