"""What a specification may be written as: a function of NumPy, of PyTorch, a problem's model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, get_args

import numpy as np
from numpy import ndarray

from attnverify.catalogue.outside import Answer
from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.derived import derive
from attnverify.derived.tracing.array import DECISIONS
from attnverify.derived.tracing.run import trace
from attnverify.inputs.recipe import Recipe
from attnverify.precision import FORMATS, PRESETS
from attnverify.specified.drawing import expand_arguments, fixed_sizes
from attnverify.specified.reading import (
    Argument,
    as_results,
    hints_of,
    place_of,
    read_arguments,
)

InNumpy = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, eq=False)
class Form:
    """
    A specification: its name, the function in the user's file, its arguments, how that function, or
    a mutant of it, is one of NumPy, the sizes that it takes in the place of those drawn, the
    function as PyTorch itself runs it, and what answers it, as functions.

    Where a file declares no arithmetic, it is judged by the preset ``undeclared``: what answers may
    be a library called step by step. A form that names its ``dtype`` is
    judged in that alone, without a gradient; what is ``wide`` beside it has at least float32.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    in_numpy: InNumpy
    fitted: Callable[[dict[str, int]], dict[str, int]] = lambda sizes: sizes
    itself: Callable[..., Any] | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    undeclared: str = "stepwise"
    dtype: str = ""
    wide: tuple[str, ...] = ()
    wide_outputs: tuple[int, ...] = ()


def form_of(function: Callable[..., Any]) -> Form:
    """Read a function with annotated axes. Raises ValueError that names what it lacks."""
    arguments, name = read_arguments(function), function.__name__
    if takes_tensors(function):
        form = Form(name, function, arguments, followed, itself=function)
    else:
        form = Form(name, function, arguments, lambda given: given)
    return replace(form, arguments=tuple(_with_taken(form, one) for one in arguments))


def _with_taken(form: Form, argument: Argument) -> Argument:
    """Return a number with those of its guessed choices that the specification answers."""
    usual, *others = argument.choices if argument.guessed else (None,)
    taken = [value for value in others if _answers(form, {argument.name: value})]
    return replace(argument, choices=(usual, *taken)) if others else argument


def _answers(form: Form, options: dict[str, Any]) -> bool:
    """Tell whether a specification gives finite numbers, of the usual sizes, with these options."""
    sizes = next(fixed_sizes(sorted({x for one in form.arguments for x in one.letters})))
    recipe = Recipe(form.name, sizes, {"family": "normal", "seed": 7}, options=options)
    inputs = expand_arguments(form.arguments, recipe, np.random.default_rng(7))
    try:
        with np.errstate(all="ignore"):
            found = leaves(as_results(form.in_numpy(form.function)(**inputs)))
    except Exception:
        return False
    return all(np.isfinite(x).all() for x in found if x is not None)


def takes_tensors(function: Callable[..., Any]) -> bool:
    """Tell whether an annotation with axes names PyTorch's tensors."""
    parts = [part for hint in hints_of(function).values() for part in (hint, *get_args(hint))]
    kinds = [getattr(part, "array_type", None) for part in parts if hasattr(part, "dim_str")]
    return any(getattr(kind, "__module__", "").startswith("torch") for kind in kinds)


def followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a function of PyTorch as one of NumPy: traced where it is traced, and else with the
    values of its graph, in which a cast to float32 loses nothing.
    """
    from attnverify.specified.pytorch.following import run_followed

    @wraps(function)
    def of_arrays(**inputs: Any) -> Any:
        if DECISIONS.get() is not None:
            return run_followed(function, inputs)
        return traced_values(of_arrays, inputs)

    return of_arrays


def traced_values(function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """Return what a function gives, with the values of its graph."""
    outputs = trace(function, inputs).outputs
    return map_leaves(lambda node: None if node is None else node.value, outputs)


def abs_difference(x: ndarray, y: ndarray) -> ndarray:
    """Compute |x - y|, 0 where both are the same infinity or NaN."""
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(x - y))


def check_following(form: Form, inputs: dict[str, Any]) -> None:
    """
    Raise ValueError where what is followed is not what PyTorch itself answers in float64: within
    the bound of its steps in float32, for the function may go through it, or in its own dtype.
    """
    if form.itself is None:
        return
    from attnverify.specified.pytorch.following import run_itself

    derived = derive(form.in_numpy(form.function), inputs)
    limits = leaves(derived.errors(PRESETS["stepwise"](FORMATS[form.dtype or "float32"])))
    own = leaves(run_itself(form.itself, inputs))
    for x, y, limit in zip(leaves(derived.values), own, limits, strict=True):
        if x.shape != y.shape or not (abs_difference(x, y) <= limit).all():
            raise ValueError(
                f"{place_of(form.function)}: what was read of {form.name} gives other numbers "
                "than PyTorch does: report it, or write it in NumPy"
            )
