"""
Problem files as specifications: a class ``Model``, ``get_inputs()`` and ``get_init_inputs()``, as
KernelBench has them, where an answer is a class ``ModelNew`` in another file.

The whole numbers of the file are its sizes. They are made small, as far as the model still runs;
one that may vary then is a letter. Parameters of the model are arguments like its inputs: they are
drawn, and gradients are judged by them too. Shapes are tried on PyTorch's meta device.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from attnverify.catalogue.outside import Answer
from attnverify.specified.drawing import LENGTHS
from attnverify.specified.form import Form, followed
from attnverify.specified.reading import Argument, taking

Values = dict[str, int]
Shapes = dict[str, tuple[int, ...]]

SMALL = (5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48, 64, 96, 128)
LARGE = 4
"""Numbers up to this are options, as a stride is, and stay as they are."""
TRIED = (*LENGTHS, 65, 129)
LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST = 2**22
"""So many numbers at most go into a model whose sizes are small."""
LAWS = 10
"""Times that the inputs are drawn to see below what their integers are."""


def name_of_problem(file: Path) -> str:
    """Return the name of a problem's operation: its file's, without a number before it."""
    name = re.sub(r"\W+", "_", file.stem).strip("_").lower()
    return re.sub(r"^\d+_", "", name)


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem file: its text is run again with other numbers in the place of its own."""

    file: Path

    def tree(self) -> Any:
        return _Plain().visit(ast.parse(self.file.read_text()))

    @cached_property
    def numbers(self) -> Values:
        """Its whole numbers, by the names that the module gives them."""
        return {name: node.value for name, node in whole_numbers(self.tree())}

    def names(self, values: Values) -> dict[str, Any]:
        """Run the file with these numbers, on the CPU; return its names."""
        tree = self.tree()
        for name, node in whole_numbers(tree):
            node.value = values.get(name, node.value)
        names: dict[str, Any] = {"__name__": "problem", "__file__": str(self.file)}
        exec(compile(ast.fix_missing_locations(tree), str(self.file), "exec"), names)
        return names

    def model(self, values: Values, own: Any = None) -> Any:
        """Build the model, or an answer's, at these numbers."""
        names = self.names(values)
        torch.manual_seed(0)
        given = names["get_init_inputs"]()
        return (own or names["Model"])(*given)

    def shapes(self, values: Values) -> Shapes | None:
        """
        Find the shapes of all arguments; None where the model does not run at these numbers, or
        says nothing.
        """
        try:
            with torch.device("meta"), torch.no_grad():
                model, given = self.model(values), self.names(values)["get_inputs"]()
                said = tree_leaves(model(*given))
        except Exception:
            return None
        if not all(x.numel() for x in said if isinstance(x, torch.Tensor)):
            return None
        found = {name: tuple(x.shape) for name, x in zip(self.input_names, given, strict=False)}
        return found | {_argument(n): tuple(x.shape) for n, x in model.named_parameters()}

    @cached_property
    def input_names(self) -> list[str]:
        """The arguments of the model's own ``forward``."""
        model = self.names(self.numbers)["Model"]
        return list(inspect.signature(model.forward).parameters)[1:]

    @cached_property
    def small(self) -> Values:
        """Its numbers made small, each while the others are what they are by then."""
        values = dict(self.numbers)
        for name, value in self.numbers.items():
            if values[name] == value > LARGE:
                values |= self._smaller(values, [name]) or self._smaller(
                    values, [other for other in values if values[other] == value]
                )
        return values

    def _smaller(self, values: Values, names: Sequence[str]) -> Values:
        """Make numbers as small as each other, if the model runs then; none beside is as small."""
        fits = [n for n in SMALL if n < values[names[0]]]
        for n in sorted(fits, key=lambda n: n in values.values()):
            if self.shapes(values | dict.fromkeys(names, n)) is not None:
                return dict.fromkeys(names, n)
        return {}

    @cached_property
    def lengths(self) -> dict[str, tuple[int, ...]]:
        """What each number may be that may vary: all axes must be it, some times over."""
        base = self.shapes(self.small)
        if base is None:
            raise ValueError(f"{self.file.name}: wanted a Model that runs on get_inputs()")
        if (count := sum(map(prod, base.values()))) > MOST:
            raise ValueError(
                f"{self.file.name}: wanted at most {MOST:,} numbers where its whole numbers are "
                f"small, got {count:,}"
            )
        found = {}
        for name, value in self.small.items():
            allowed = tuple(n for n in TRIED if self._scales(base, name, value, n))
            if value > LARGE and len(allowed) > 1 and self._is_an_axis(base, name, allowed):
                found[name] = tuple(sorted({*allowed, value}))
        return found

    def _is_an_axis(self, base: Shapes, name: str, allowed: tuple[int, ...]) -> bool:
        return any(self.shapes(self.small | {name: n}) != base for n in allowed[:2])

    def _scales(self, base: Shapes, name: str, value: int, n: int) -> bool:
        shapes = self.shapes(self.small | {name: n})
        if shapes is None:
            return False
        pairs = [(a, b) for key in base for a, b in zip(base[key], shapes[key], strict=True)]
        return all(a == b or (a % value == 0 and a * n == b * value) for a, b in pairs)

    @cached_property
    def letter_of(self) -> dict[str, str]:
        return dict(zip(self.lengths, LETTERS, strict=False))

    def axes(self, name: str) -> tuple[tuple[int, str], ...]:
        """Return the axes of an argument: a letter some times over, or one size."""
        base = self.shapes(self.small) or {}
        found = [(size, "") for size in base[name]]
        for number, lengths in self.lengths.items():
            other = next(n for n in lengths if n != self.small[number])
            moved = (self.shapes(self.small | {number: other}) or {})[name]
            for k, size in enumerate(moved):
                if size != base[name][k]:
                    found[k] = (size // other, self.letter_of[number])
        return tuple(found)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Its inputs as they are drawn, then the parameters of the model."""
        assert self.lengths is not None  # what is too large is refused before it is made
        samples = [self.names(self.small)["get_inputs"]() for _ in range(LAWS)]
        model = self.model(self.small)
        inputs = [
            self._argument(name, drawn)
            for name, drawn in zip(self.input_names, zip(*samples, strict=True), strict=False)
        ]
        names = [_argument(name) for name, _ in model.named_parameters()]
        return (*inputs, *(Argument(name, "float", self.axes(name)) for name in names))

    def _argument(self, name: str, drawn: Sequence[Any]) -> Argument:
        if not isinstance(drawn[0], torch.Tensor):
            return Argument(name, "number", choices=(drawn[0],))
        axes, kind = self.axes(name), drawn[0].dtype
        if kind == torch.bool:
            return Argument(name, "bool", axes)
        least, most = float(min(x.min() for x in drawn)), float(max(x.max() for x in drawn))
        if not kind.is_floating_point:
            below = [n for n, v in self.small.items() if n in self.letter_of and v > most]
            letter = self.letter_of[min(below, key=lambda n: self.small[n])] if below else ""
            return Argument(name, "int", axes, (), letter, (), int(least), int(most))
        unit = least >= 0 and most <= 1 and not self.takes_all_numbers
        return Argument(name, "float", axes, (0.0, 1.0) if unit else ())

    @cached_property
    def takes_all_numbers(self) -> bool:
        """Tell whether the model gives numbers for negative inputs too."""
        given = self.names(self.small)["get_inputs"]()
        given = [x - 1 if torch.is_tensor(x) and x.is_floating_point() else x for x in given]
        with torch.no_grad():
            return not bool(self.model(self.small)(*given).isnan().any())

    def values_of(self, inputs: dict[str, Any]) -> tuple[tuple[str, int], ...]:
        """Find the numbers of the file by the shapes of its arguments."""
        found, names = dict(self.small), {v: k for k, v in self.letter_of.items()}
        for argument in self.arguments:
            for (factor, letter), size in zip(
                argument.axes, getattr(inputs[argument.name], "shape", ()), strict=True
            ):
                found |= {names[letter]: size // factor} if letter else {}
        return tuple(found.items())

    @lru_cache(maxsize=64)  # noqa: B019
    def built(self, values: tuple[tuple[str, int], ...], own: Any = None) -> Any:
        with _disable_current_modes():  # a model that is made while another is followed
            return self.model(dict(values), own)

    def call(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Call a model with parameters that are given. Raises ValueError where it has others."""
        own = dict(model.named_parameters())
        given = {name: x for name, x in inputs.items() if name not in self.input_names}
        names = _matched(own, given)
        parameters = {name: given[argument] for name, argument in names.items()}
        rest = [inputs[name] for name in self.input_names]
        return functional_call(model, parameters, tuple(rest))

    def in_numpy(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model with this forward, or a mutant's, as a function of NumPy."""
        return followed(self.bound(forward))

    def bound(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model with this forward as a function of the problem's arguments."""

        def run(**inputs: Any) -> Any:
            model = self.built(self.values_of(inputs)).double()
            model.forward = forward.__get__(model)
            return self.call(model, inputs)

        run.__signature__ = self.signature  # type: ignore[attr-defined]
        return run

    def answered_by(self, own: Any) -> Callable[..., Any]:
        """Return the class of an answer as a function of the problem's arguments."""

        def answer(*given: Any, **named: Any) -> Any:
            inputs = dict(zip([each.name for each in self.arguments], given, strict=False)) | named
            inputs = {n: x if n in self.input_names else _as_made(x) for n, x in inputs.items()}
            kinds = [x.dtype for x in inputs.values() if getattr(x, "is_floating_point", bool)()]
            model = self.built(self.values_of(inputs), own).to(kinds[0])
            return self.call(model, inputs)

        answer.__signature__ = self.signature  # type: ignore[attr-defined]
        return answer

    def is_answered_by(self, own: Any) -> bool:
        """Tell whether a class is made as the model is, and takes its inputs and parameters."""
        try:
            model = self.model(self.small, own)
            given = {one.name: one for one in self.arguments if one.name not in self.input_names}
            shapes = self.shapes(self.small) or {}
            _matched(dict(model.named_parameters()), {n: torch.empty(shapes[n]) for n in given})
            inspect.signature(model.forward).bind(*self.input_names)
        except Exception:
            return False
        return True

    @property
    def signature(self) -> inspect.Signature:
        return taking(one.name for one in self.arguments)

    def fitted(self, sizes: dict[str, int]) -> dict[str, int]:
        """Return the nearest sizes that its numbers may have; where it does not run, the small."""
        near = {
            name: nearest(lengths, sizes[self.letter_of[name]])
            for name, lengths in self.lengths.items()
        }
        found = near if self.shapes(self.small | near) else self.small
        return {letter: found[name] for name, letter in self.letter_of.items()}

    def form(self, function: Callable[..., Any]) -> Form:
        return Form(
            name_of_problem(self.file),
            function,
            self.arguments,
            self.in_numpy,
            self.fitted,
            self.bound(function),
            {"ModelNew": Answer(self.answered_by, self.is_answered_by)},
        )


def nearest(lengths: Sequence[int], wanted: int) -> int:
    return min(lengths, key=lambda n: (abs(n - wanted), n))


def _argument(name: str) -> str:
    return name.replace(".", "_")


def _as_made(parameter: Any) -> Any:
    """Lay a parameter out as a model makes it: contiguous, and at the beginning of its memory."""
    is_so = parameter.is_contiguous() and parameter.storage_offset() == 0
    return parameter if is_so else parameter.clone(memory_format=torch.contiguous_format)


def _matched(own: dict[str, Any], given: dict[str, Any]) -> dict[str, str]:
    """Match the parameters of a model to those given: by name, or by shape in their order."""
    if all(_argument(name) in given for name in own) and len(own) == len(given):
        return {name: _argument(name) for name in own}
    shapes = [tuple(x.shape) for x in given.values()]
    if [tuple(x.shape) for x in own.values()] != shapes:
        wanted = ", ".join(f"{n} {s}" for n, s in zip(given, shapes, strict=True)) or "none"
        got = ", ".join(f"{n} {tuple(x.shape)}" for n, x in own.items()) or "none"
        raise ValueError(f"ModelNew: wanted the parameters {wanted}, got {got}")
    return dict(zip(own, given, strict=True))


def whole_numbers(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Find what a module assigns: ``dim = 64`` as "dim", ``shape = (64, 32)`` as "shape[0]" ..."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign):
            continue
        target = ast.unparse(statement.targets[0])
        nodes = (n for n in ast.walk(statement.value) if isinstance(n, ast.Constant))
        whole = [n for n in nodes if isinstance(n.value, int) and not isinstance(n.value, bool)]
        for k, node in enumerate(whole):
            yield target if node is statement.value else f"{target}[{k}]", node


class _Plain(ast.NodeTransformer):
    """No tensor is moved to a GPU, and a product of numbers is one number."""

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        node = self.generic_visit(node)  # type: ignore[assignment]
        if not (isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)):
            return node
        return ast.copy_location(ast.Constant(eval(ast.unparse(node))), node)

    def visit_Call(self, node: ast.Call) -> Any:
        node = self.generic_visit(node)  # type: ignore[assignment]
        is_moved = isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
        return node.func.value if is_moved else node  # type: ignore[attr-defined]
