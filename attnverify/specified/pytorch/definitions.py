"""
Definitions as specifications, as flashinfer-bench has them: JSON with axes, inputs, outputs,
constraints, and a ``reference`` whose ``run`` computes it in PyTorch. A function ``run`` answers.

An axis that varies is drawn; one that is constant keeps its value while the inputs are small, and
is halved, in the reference as well, where they are not. ``a == b + 1`` ties an axis to another;
``n == p[-1].item()`` says that p holds offsets, from 0 to n. What other integers are
below is found by asking the reference. A definition names its dtypes, and is judged in those.
"""

import ast
import inspect
import json
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnverify.catalogue.outside import Answer
from attnverify.precision import UNDECLARED
from attnverify.specified.form import Form, followed
from attnverify.specified.pytorch.following import run_itself
from attnverify.specified.pytorch.problems import LETTERS, MOST
from attnverify.specified.reading import Argument, taking

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8")
LARGER = re.compile(r"(\w+) == (\w+) \+ 1")
AT_LEAST = re.compile(r"(\w+) (>=|>) (\w+)")
SHAPE = re.compile(r"(\w+)\.shape\[(-?\d+)\] == (\w+)")
LAST = re.compile(r"(\w+) == (\w+)\[-1\](?:\.item\(\))?")
SHRUNK = 16
"""No constant axis is halved below this."""
SEVERAL = (0.25, 1.0)
"""What a scalar may be that nothing is said of."""
COUNTS = (1, 3)


@dataclass(frozen=True, eq=False)
class Definition:
    """A definition file."""

    file: Path

    @cached_property
    def given(self) -> dict[str, Any]:
        found = json.loads(self.file.read_text())
        lacking = [k for k in ("name", "axes", "inputs", "outputs", "reference") if k not in found]
        if lacking:
            self.refuse("a definition's name, axes, inputs, outputs, reference", f"no {lacking[0]}")
        return dict(found)

    def refuse(self, wanted: str, got: str) -> None:
        raise ValueError(f"{self.file.name}: wanted {wanted}, got {got}")

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "_", self.given["name"]).lower()

    # axes

    @cached_property
    def longer(self) -> dict[str, str]:
        """Axes that are longer by one than another."""
        return dict(self._constraints(LARGER))

    @cached_property
    def offsets(self) -> dict[str, str]:
        """Inputs that hold offsets, and the axis that the last of them is the length of."""
        return {array: axis for axis, array in self._constraints(LAST)}

    def _constraints(self, form: re.Pattern[str]) -> Iterator[tuple[str, str]]:
        for text in map(str.strip, self.given.get("constraints") or ()):
            if found := form.fullmatch(text):
                yield found[1], found[2]
            elif not (LARGER.fullmatch(text) or LAST.fullmatch(text) or self._holds(text)):
                self.refuse("constraints as 'a == b + 1' or 'n == p[-1].item()'", repr(text))

    def _holds(self, text: str) -> bool:
        """
        Tell whether constant axes hold a constraint, an input's shape says it, or what varies is
        made as large as it asks for.
        """
        if found := SHAPE.fullmatch(text):
            shape = self.given["inputs"].get(found[1], {}).get("shape") or [""]
            return bool(shape[int(found[2])] == found[3])
        axes = self.given["axes"]
        found = AT_LEAST.fullmatch(text)
        if found and axes.get(found[1], {}).get("type") == "var":
            return found[3].isdigit() or found[3] in axes
        try:
            return eval(text, {"__builtins__": {}}, self.values) is True
        except Exception:
            return False

    @cached_property
    def letters(self) -> dict[str, str]:
        varying = [k for k, axis in self.given["axes"].items() if axis["type"] == "var"]
        return dict(zip((k for k in varying if k not in self.longer), LETTERS, strict=False))

    @property
    def values(self) -> dict[str, int]:
        axes = self.given["axes"].items()
        return {k: axis["value"] for k, axis in axes if axis["type"] == "const"}

    @cached_property
    def constants(self) -> dict[str, int]:
        """The constant axes, the largest made smaller until what is small where axes vary fits."""
        made = dict(self.values)
        shapes = [x["shape"] for x in self.given["inputs"].values() if x["shape"]]
        while sum(prod(made.get(k, 8) for k in shape) for shape in shapes) > MOST:
            largest = max(made.values())
            if largest <= SHRUNK:
                self.refuse(f"at most {MOST:,} numbers", "more where every axis is small")
            made = {k: v // 2 if v == largest else v for k, v in made.items()}
        return made

    def axes(self, shape: list[str]) -> tuple[tuple[int, str], ...]:
        named = [self.longer.get(k, k) for k in shape]
        return tuple(
            (1, self.letters[k]) if k in self.letters else (self.constants[k], "") for k in named
        )

    def fitted(self, sizes: dict[str, int]) -> dict[str, int]:
        """Return sizes that are as large as constraints ask for."""
        made, named = dict(sizes), {v: k for k, v in self.letters.items()}
        constraints = [*(self.given.get("constraints") or ())]
        for text in constraints * len(constraints):
            found = AT_LEAST.fullmatch(text.strip())
            if found and found[1] in self.letters:
                known = self.constants | {named[letter]: n for letter, n in made.items()}
                least = int(found[3]) if found[3].isdigit() else known[found[3]]
                own = self.letters[found[1]]
                made[own] = max(made[own], least + (found[2] == ">"))
        return made

    # the reference

    @cached_property
    def run(self) -> Callable[..., Any]:
        """The ``run`` of the reference, whose lines are told as those of ``name.reference``."""
        text, place = self.given["reference"], f"{self.file.with_suffix('')}.reference"
        lines = text.splitlines(keepends=True)
        linecache.cache[place] = (len(text), None, lines, place)
        tree = ast.parse(text, place)
        pairs = ((value, self.constants[k]) for k, value in self.values.items())
        changed = {value: made for value, made in pairs if value != made}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                node.value = changed.get(node.value, node.value)
        names: dict[str, Any] = {"__name__": "definition", "__file__": place}
        exec(compile(tree, place, "exec"), names)
        if not callable(names.get("run")):
            self.refuse("a function run in its reference", "none")
        return inspect.unwrap(names["run"])

    # arguments

    def dtype_of(self, spec: dict[str, Any]) -> str:
        if spec["dtype"] not in (*FLOATS, *INTEGERS, "bool"):
            self.refuse(f"dtypes {', '.join((*FLOATS, *INTEGERS, 'bool'))}", spec["dtype"])
        return str(spec["dtype"])

    @cached_property
    def dtype(self) -> str:
        """The narrowest dtype of its floats: what it is judged in; others are wide."""
        specs = [*self.given["inputs"].values(), *self.given["outputs"].values()]
        found = {self.dtype_of(x) for x in specs if x["shape"] is not None} & {*FLOATS}
        halves = found - {"float32"}
        if len(halves) > 1 or not found:
            self.refuse("floats of one dtype, and float32 beside it", ", ".join(sorted(found)))
        return next(iter(halves or found))

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        known = {k: self._argument(k, x) for k, x in self.given["inputs"].items()}
        asked = [k for k, one in known.items() if one.kind == "int"]
        for k in asked:
            known[k] = self._below(known, k)
        return tuple(known.values())

    def _argument(self, name: str, spec: dict[str, Any]) -> Argument:
        dtype = self.dtype_of(spec)
        if spec["shape"] is None:
            choices = SEVERAL if dtype in FLOATS else COUNTS
            return Argument(name, "number", choices=(1e-5, 1e-2) if "eps" in name else choices)
        axes = self.axes(spec["shape"])
        if name in self.offsets:
            below = self.letters[self.offsets[name]]
            return Argument(name, "offsets", axes, below=below, dtype=dtype)
        kind = "float" if dtype in FLOATS else "bool" if dtype == "bool" else "int"
        ends = (0.0, 1.0) if kind == "float" and name == "top_p" else ()
        dtype = dtype if kind == "int" else "int64"
        least = 1 if name == "top_k" else 0
        return Argument(name, kind, axes, ends, least=least, most=3, dtype=dtype)

    def _below(self, known: dict[str, Argument], name: str) -> Argument:
        """Find the axis that integers are below: with its size among them the reference fails."""
        for letter in self.letters.values():
            sizes = {one: 5 + 2 * k for k, one in enumerate(self.letters.values())}
            last, beyond = (self._runs(known, sizes, name, sizes[letter] - 1 + k) for k in (0, 1))
            if last and not beyond:
                return replace(known[name], below=letter, least=0, most=0)
        return known[name]

    def _runs(self, known: dict[str, Argument], sizes: Any, name: str, value: int) -> bool:
        made = {k: _plain(one, sizes) for k, one in known.items()}
        made[name] = np.full(known[name].shape(sizes), value)
        try:
            run_itself(self.run, made)
        except (IndexError, RuntimeError):
            return False
        return True

    # what it becomes

    def in_numpy(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return followed(function)

    def form(self) -> Form:
        outputs = [self.dtype_of(x) for x in self.given["outputs"].values()]
        if not {*outputs} <= {*FLOATS}:
            self.refuse("outputs of floats", ", ".join(outputs))
        inputs, wide_by = self.given["inputs"].items(), self.given["reference"]
        wide = tuple(k for k, x in inputs if x["dtype"] == "float32" != self.dtype)
        return Form(
            self.name,
            self.run,
            self.arguments,
            self.in_numpy,
            self.fitted,
            itself=self.run,
            answers={"run": Answer(self.answered_by, self.is_answered_by)},
            undeclared=UNDECLARED if "float32" in wide_by or ".float()" in wide_by else "stepwise",
            dtype=self.dtype,
            wide=wide,
            wide_outputs=tuple(k for k, d in enumerate(outputs) if d != self.dtype),
        )

    def is_answered_by(self, run: Callable[..., Any]) -> bool:
        """Tell whether a function takes the inputs, and perhaps the outputs behind them."""
        names = [k for k in inspect.signature(run).parameters]
        outputs = len(self.given["outputs"])
        return len(names) in (len(self.arguments), len(self.arguments) + outputs)

    def answered_by(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a solution's function, which returns its outputs or fills those given."""

        def answer(*given: Any, **named: Any) -> Any:
            names = [one.name for one in self.arguments]
            inputs = dict(zip(names, given, strict=False)) | named
            called = [self._as_declared(k, inputs[k]) for k in names]
            if len(inspect.signature(run).parameters) == len(names):
                return run(*called)
            outputs = [self._empty(x, inputs) for x in self.given["outputs"].values()]
            run(*called, *outputs)
            return tuple(outputs) if len(outputs) > 1 else outputs[0]

        answer.__signature__ = taking(one.name for one in self.arguments)  # type: ignore[attr-defined]
        return answer

    def _as_declared(self, name: str, x: Any) -> Any:
        dtype = self.given["inputs"][name]["dtype"]
        is_index = isinstance(x, torch.Tensor) and dtype in INTEGERS
        return x.to(getattr(torch, dtype)) if is_index else x

    def _empty(self, spec: dict[str, Any], inputs: dict[str, Any]) -> torch.Tensor:
        sizes = dict(self.constants)
        for k, x in self.given["inputs"].items():
            sizes |= dict(zip(x["shape"] or (), getattr(inputs[k], "shape", ()), strict=False))
        device = next(x.device for x in inputs.values() if isinstance(x, torch.Tensor))
        shape = [sizes[k] for k in spec["shape"]]
        return torch.full(shape, torch.nan, dtype=getattr(torch, spec["dtype"]), device=device)


def _plain(one: Argument, sizes: dict[str, int]) -> Any:
    """Make some value of an argument."""
    if one.kind == "number":
        return one.choices[0]
    shape = one.shape(sizes)
    if one.kind == "offsets":
        return np.linspace(0, sizes[one.below], shape[0]).astype(int)
    make = {"float": partial(np.full, fill_value=0.5), "bool": partial(np.ones, dtype=bool)}
    return make.get(one.kind, partial(np.full, fill_value=1))(shape)
