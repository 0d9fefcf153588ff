"""
The script of a failure on few numbers: a page that a person reads, edits and pastes into an issue.
It holds the import, the inputs as literals, the call, and one assertion by the derived bound.
"""

import keyword
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.backends.array_libraries import array_library
from attnverify.backends.implementation import Implementation
from attnverify.backends.source import parse_source
from attnverify.catalogue.dtypes import largest
from attnverify.failures.plain_data import write_array
from attnverify.inputs.recipe import layout_kinds
from attnverify.judge.case import Case
from attnverify.judge.comparison import ROUNDING
from attnverify.judge.invoke import dtype_keyword

MOST_NUMBERS = 200
"""So many numbers at most go in and come out: what fits on a page."""

OWN_NAMES = {"np", "torch", "os", "sys", "inf", "nan", "bfloat16", "error"} | {
    *("name", "expected", "bound", "output", "form", "wanted", "got", "wrong", "told")
}
"""What the page itself calls something else."""


def write_page(case: Case, implementation: Implementation) -> str:
    """
    Write the program below its title; "" where the failure takes more than one plain call, or more
    numbers than a page has room for.
    """
    if not _has_plain_arrays(implementation):
        return ""
    outputs, call = _outputs(case, implementation), _call(case, implementation)
    if call is None or not outputs or _count(call, outputs) > MOST_NUMBERS:
        return ""
    lines = [*_poison(outputs, call), *call.lines]
    blocks = ([*_import(call)], [*call.literals()], lines, [*_assertion(outputs, call)])
    body = "\n\n".join("\n".join(lines) for lines in blocks) + "\n"
    return _imports(body, call.dialect) + body


@dataclass(frozen=True)
class Dialect:
    """How a library writes an array and its dtype, and how its arrays become NumPy's."""

    array: str
    dtype: str
    to_numpy: str
    wide: str
    prefix: str = ""


DIALECTS = {
    "numpy": Dialect("np.array", '"{}"', "np.asarray({})", 'np.asarray({}).astype("float64")'),
    "torch": Dialect(
        "torch.tensor",
        "dtype=torch.{}",
        "{}.detach().cpu().numpy()",
        "{}.detach().cpu().double().numpy()",
        "torch.",
    ),
}


def _has_plain_arrays(implementation: Implementation) -> bool:
    """Whether arrays go in and come out as NumPy or PyTorch make them, and no GPU is emulated."""
    library, machine = implementation.backend.library, implementation.backend.machine
    if library is None or library.name not in DIALECTS or machine is not None:
        return False
    usual = array_library(library.name)
    return all(
        getattr(library, name).__module__ == getattr(usual, name).__module__
        for name in ("from_numpy", "to_numpy")
    )


@dataclass(frozen=True)
class Call:
    """
    A call as its author would write it.

    place     the backend's file or module, which has the function
    given     the arguments by the function's own names
    learnt    those of them by which autograd takes the gradient; arriving: what arrives at it
    """

    place: str
    function: str
    dialect: Dialect
    dtype: str
    given: dict[str, Any]
    learnt: tuple[str, ...] = ()
    arriving: dict[str, Any] = field(default_factory=dict)

    def literals(self) -> Iterator[str]:
        """Write each argument, in a line or more."""
        for name, value in (self.given | self.arriving).items():
            text = self._dtype("float64") if name == "dtype" else self._literal(value)
            learnt = ".requires_grad_()" * (name in self.learnt)
            yield f"{name} = {text.removeprefix('dtype=')}{learnt}"

    @property
    def lines(self) -> list[str]:
        """The call, which a commit may not support, and the gradients that autograd makes of it."""
        named = ", ".join(f"{name}={name}" for name in self.given)
        lines = [*_try(f"output = {self.function}({named})", "NotImplementedError")]
        if self.learnt:
            given = f"output, [{', '.join(self.learnt)}], {', '.join(self.arriving)}"
            kept = "allow_unused=True, materialize_grads=True"
            lines += ["output = torch.autograd.grad(", f"    {given}, {kept}", ")"]
        return lines

    def _literal(self, value: Any) -> str:
        """Write an argument: arrays of floats in the dtype, others in their own."""
        if not isinstance(value, ndarray):
            return repr(value)
        return write_array(self.dialect.array, value, self._dtype(value.dtype.name), self.dtype)

    def _dtype(self, name: str) -> str:
        """Write the dtype of an array; "" where the library finds it out by the numbers."""
        if name.startswith("float"):
            narrow = self.dtype == "bfloat16" and not self.dialect.prefix
            return self.dtype if narrow else self.dialect.dtype.format(self.dtype)
        return "" if name in ("bool", "int64") else self.dialect.dtype.format(name)


def _call(case: Case, implementation: Implementation) -> Call | None:
    """Write the call of a case; None where it takes more than literals in one piece each."""
    library = implementation.backend.library
    forward = getattr(implementation.function, "forward", None)
    called = forward or implementation.function
    own_arguments = getattr(called, "own_arguments", None)
    source = parse_source(implementation.backend.source)
    name = implementation.name.replace("_grad", "") if forward else implementation.name
    place = relative_source(source.place) if source.is_path else source.place
    name = source.function or name
    kinds = layout_kinds(case.recipe, len(case.inputs))
    if library is None or own_arguments is None or {*kinds} != {"contiguous"}:
        return None
    translated = (getattr(called, name, None) for name in ("exchanged", "places", "is_translated"))
    if implementation.is_alone or any(translated):
        return None
    arriving = {n: x for n, x in case.inputs.items() if forward and n.startswith("d_")}
    inputs = {n: x for n, x in case.inputs.items() if n not in arriving}
    try:
        given = own_arguments(**inputs, **dtype_keyword(implementation, case.dtype))
    except NotImplementedError:
        return None
    names = {id(x): own for own, x in given.items()}
    floats = [x for x in inputs.values() if isinstance(x, ndarray) and x.dtype.kind == "f"]
    learnt = tuple(names[id(x)] for x in floats) if forward else ()
    simple = all(isinstance(x, SIMPLE) or n == "dtype" for n, x in (given | arriving).items())
    of_one_dtype = all(
        case.operation.dtype_of(name, case.dtype) == case.dtype for name in case.inputs
    )
    simple = simple and of_one_dtype
    if not simple or len(arriving) > 1 or not _can_be_named(place, name, *given, *arriving):
        return None
    return Call(place, name, DIALECTS[library.name], case.dtype, given, learnt, arriving)


SIMPLE = (ndarray, bool, int, float, str, type(None))


def _can_be_named(place: str, *names: str) -> bool:
    """Whether the file can be imported, and the names are none of the page's own."""
    module = Path(place).stem if place.endswith(".py") else place.replace(".", "")
    return (
        all(name.isidentifier() and not keyword.iskeyword(name) for name in (module, *names))
        and module not in sys.stdlib_module_names | {"numpy", "torch"}
        and not OWN_NAMES & {*names}
    )


def relative_source(source: str) -> str:
    """
    Return a file as it is reached from here: a script that is passed on holds nobody's folders.
    """
    return f"./{Path(os.path.relpath(Path(source).resolve())).as_posix()}"


Output = tuple[ndarray, ndarray | None]
"""An output as it is expected, and its bound; None asks for the same bits."""


def _count(call: Call, outputs: Mapping[str, Output]) -> int:
    """How many numbers stand on the page."""
    given = [x for x in (call.given | call.arriving).values() if isinstance(x, ndarray)]
    return sum(x.size for x in given) + sum(expected.size for expected, _ in outputs.values())


def _outputs(case: Case, implementation: Implementation) -> dict[str, Output]:
    """
    Return each output as it is expected, with its bound, by what the page calls it; none where a
    comparison by the bound alone is not what the judge does.
    """
    bounds = case.bounds(implementation.precision(case.dtype))
    if isinstance(case.expected, ndarray):
        found = {"output": (case.expected, bounds)}
    else:
        expected = case.expected if isinstance(case.expected, list | tuple) else ()
        limits = [None] * len(expected) if bounds is None else bounds
        pairs = zip(expected, limits, strict=True)
        found = {f"output[{number}]": pair for number, pair in enumerate(pairs)}
    kinds = {(np.asarray(x).dtype.kind, limit is None) for x, limit in found.values()}
    is_plain = all(_is_plain(*output, case.dtype) for output in found.values())
    return found if is_plain and len(kinds) == 1 else {}


def _is_plain(expected: ndarray | None, bound: ndarray | None, dtype: str) -> bool:
    """Whether ``abs(got - expected) <= bound``, or equality, is all that the judge asks."""
    if (
        not isinstance(expected, ndarray)
        or expected.size == 0
        or (expected.dtype.kind == "f" and np.isnan(expected).any())
    ):
        return False
    finite = np.abs(expected[np.isfinite(expected)])
    return bound is None or bool(
        np.isfinite(bound).all()
        and (finite.max(initial=0.0) + bound.max(initial=0.0) < largest(dtype))
    )


def _imports(body: str, dialect: Dialect) -> str:
    """The imports that the page needs."""
    numbers = ", ".join(name for name in ("inf", "nan") if re.search(rf"\b{name}\b", body))
    own = ["import os"] * ("os.path" in body) + ["import sys"]
    own += [f"from math import {numbers}"] * bool(numbers)
    others = ["import numpy as np"] + ["import torch"] * bool(dialect.prefix)
    others += ["from ml_dtypes import bfloat16"] * ("bfloat16)" in body and not dialect.prefix)
    return "\n".join((*own, "", *others)) + "\n\n"


def _import(call: Call) -> Iterator[str]:
    """Import the function: a commit in which that cannot be done shows nothing."""
    module = call.place
    if module.endswith(".py"):
        module = Path(call.place).stem
        yield f'sys.path.insert(0, os.path.dirname((sys.argv[1:] or ["{call.place}"])[0]))'
    yield from _try(f"from {module} import {call.function}", "Exception")


def _try(line: str, error: str) -> Iterator[str]:
    """Write a line whose error leaves nothing to be shown."""
    yield from ("try:", f"    {line}", f"except {error} as error:")
    yield from ('    print(f"cannot run: {type(error).__name__}: {error}")', "    sys.exit(125)")


def _poison(outputs: Mapping[str, Output], call: Call) -> Iterator[str]:
    """Free arrays of NaN as large as the outputs: who does not write an output hands them out."""
    library = "torch" if call.dialect.prefix else "np"
    for shape in {expected.shape: 0 for expected, _ in outputs.values()}:
        array = f"{library}.full({shape}, {library}.nan, {call._dtype('float64')})"
        yield f"{array}  # freed: what is never written is NaN"


def _assertion(outputs: Mapping[str, Output], call: Call) -> Iterator[str]:
    """Compare with what is expected; several outputs one after the other."""
    is_one = [*outputs] == ["output"]
    for number, (expected, bound) in enumerate(outputs.values()):
        suffix = "" if is_one else f"_{number}"
        yield f"expected{suffix} = {write_array('np.array', expected)}"
        limit = np.zeros(()) if bound is None else bound * ROUNDING
        yield f"bound{suffix} = {write_array('np.array', np.broadcast_to(limit, expected.shape))}"
    lines = [*_comparison([*outputs.values()], call)]
    if is_one:
        yield from ('name = "output"', *lines)
        return
    yield "for name, output, expected, bound in ("
    for number, name in enumerate(outputs):
        yield f'    ("{name}", {name}, expected_{number}, bound_{number}),'
    yield from ("):", *(f"    {line}" for line in lines))


def _comparison(outputs: list[Output], call: Call) -> Iterator[str]:
    """Compare one output with what is expected, which all of them are in the same way."""
    dtype = "bool" if outputs[0][0].dtype == bool else call.dtype
    convert = call.dialect.to_numpy if dtype == "bool" else call.dialect.wide
    yield 'form = str(getattr(output, "dtype", type(output))), getattr(output, "shape", ())'
    yield f'wanted = "{call.dialect.prefix}{dtype}", expected.shape'
    yield 'assert form == wanted, f"{name}: wanted {wanted}, got {form}"'
    yield f"got = {convert.format('output')}"
    yield f"wrong = {_which_are_wrong(outputs)}"
    yield 'told = f"{name}: {wrong.sum()} of {wrong.size} elements out of bound"'
    some = "got {got[wrong][:4]}, expected {expected[wrong][:4]}"
    yield f'assert not wrong.any(), f"{{told}}: {some}"'
    yield "print(told)"


def _which_are_wrong(outputs: list[Output]) -> str:
    """Write the comparison; NaN is within no bound."""
    (expected, bound), *_ = outputs
    if expected.dtype == bool:
        return "got != expected"
    if bound is None:
        return "(got != expected) | (np.signbit(got) != np.signbit(expected))"
    within = "abs(got - expected) <= bound"
    is_finite = all(np.isfinite(each).all() for each, _ in outputs)
    return f"~({within})" if is_finite else f"~((got == expected) | ({within}))"
