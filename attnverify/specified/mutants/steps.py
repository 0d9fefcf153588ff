"""
Mutants of steps: what a library computes inside one call, as a module's norm or a loss, with one
step changed, which the user's own line does not spell: "the number 1e-05 as 0.001 in
`return self.norm(x)`, 3_norm.py:12".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import product
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from attnverify.catalogue.outside import Mutant, Number
from attnverify.derived.forms import source_of
from attnverify.derived.tracing.array import DECISIONS, Traced, node_of
from attnverify.derived.tracing.run import trace
from attnverify.derived.tracing.steps import Step, Steps, counted_by
from attnverify.inputs.recipe import Recipe
from attnverify.specified.form import traced_values
from attnverify.specified.mutants.misread import SMALL
from attnverify.specified.reading import quote_line

if TYPE_CHECKING:
    from attnverify.specified.operation import SpecifiedOperation

Other = Callable[..., Any]
Told = tuple[str, Other]

ALONE = "the {} alone in place of {}"
RESULTS = {
    "add": ("term", "their sum"),
    "subtract": ("term", "their difference"),
    "multiply": ("factor", "their product"),
    "divide": ("part", "their quotient"),
    "maximum": ("number", "the larger"),
    "minimum": ("number", "the smaller"),
}
"""Elementwise functions of two: what each is called, and what comes out."""
SIBLINGS = {
    "add": ("subtract", "maximum"),
    "subtract": ("add",),
    "multiply": ("divide",),
    "divide": ("multiply",),
    "maximum": ("minimum", "add"),
    "minimum": ("maximum",),
    "less": ("less_equal", "greater"),
    "less_equal": ("less", "greater"),
    "greater": ("greater_equal", "less"),
    "greater_equal": ("greater", "less"),
}
NEUTRAL = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}
"""Numbers that do nothing, which no line spells."""
NOUNS = {
    "add": ("term", "term"),
    "subtract": ("term", "term"),
    "multiply": ("factor", "factor"),
    "divide": ("dividend", "divisor"),
}
OVERFLOWING = (88.72, 11.09)
"""Above these numbers exp overflows in float32 and bfloat16, and in float16."""
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "left out (0)": lambda x: 0.0 * x,
    "left out (1)": lambda x: 0.0 * x + 1.0,
    "with 1 added": lambda x: x + 1.0,
    "with 1 taken off": lambda x: x - 1.0,
    "doubled": lambda x: 2.0 * x,
    "halved": lambda x: x / 2.0,
    "negated": lambda x: -x,
}
"""What a plain number may have been read as."""
APPROXIMATIONS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "erf": {
        "by tanh, as GELU with approximate='tanh' has it": lambda x: np.tanh(
            2 / np.sqrt(np.pi) * (x + 2 * 0.044715 * x * x * x)
        ),
        "by a sigmoid, as GELU by sigmoid(1.702 x)": lambda x: np.tanh(1.702 / np.sqrt(2) * x),
    }
}
"""What libraries compute in place of a function (Hendrycks and Gimpel, arXiv 1606.08415)."""
TILES = (32, 64, 128)
FILLS = (0.0, -np.inf, np.inf, 1.0, -1.0)
HALVES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def steps_of(operation: "SpecifiedOperation") -> Sequence[Step]:
    """List an operation's steps, as they are at its usual sizes."""
    forward: Any = operation.forward if operation.is_gradient else operation
    usual = Recipe(forward.name, **next(forward.fixed()))
    steps = Steps()
    with counted_by(steps):
        trace(forward.run, forward.expand(usual, "float64"))
    return steps.seen


def numbers_of_steps(operation: "SpecifiedOperation") -> Iterator[Number]:
    """
    List the numbers of an operation's steps, each with what it is called and where it stands; one
    that a line has several times in the same role is one.
    """
    places: dict[tuple[str, float, int], list[int]] = {}
    for at, step in enumerate(steps_of(operation)):
        name, *given = step.arguments if step.name in ("elementwise", "compared") else ("",)
        for place, x in enumerate(given if len(given) == 2 else ()):
            if (node := node_of(x)).is_number and node.number != NEUTRAL.get(name):
                noun = NOUNS.get(name, ("limit", "limit"))[place]
                line = quote_line(operation.own, step.line)
                words = f"the {noun} {node.number:g} as {{:g}} in {line}"
                places.setdefault((words, node.number, place), []).append(at)
    for (words, number, place), ats in places.items():
        yield words.format, number, partial(_with_another, operation, tuple(ats), place)


def _with_another(
    operation: "SpecifiedOperation", at: tuple[int, ...], place: int, number: float
) -> Callable[[dict[str, Any]], Any]:
    """Return the operation with another number in this place of a step."""
    read = partial(_another, other=number)
    return _answer(operation, at, partial(_with_number, place=place, read=read))


def changed_steps(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List the mutants of an operation's steps."""
    for at, step in enumerate(steps_of(operation)):
        for words, other in CHANGES[step.name](*step.arguments):
            yield (
                f"{words} in {quote_line(operation.own, step.line)}",
                _answer(operation, (at,), other),
                2,
            )


def without_maxima(operation: "SpecifiedOperation") -> Iterator[Mutant]:
    """List maxima that are not subtracted, where exp, or the sum of what it gives, overflows."""
    steps = steps_of(operation)
    elementwise = [
        (at, step.arguments) for at, step in enumerate(steps) if step.name == "elementwise"
    ]
    exps = [at for at, (name, *_) in elementwise if name == "exp"]
    sums = [at for at, step in enumerate(steps) if step.name == "reduced"]
    for at, (name, *given) in elementwise if exps else ():
        if name == "subtract" and source_of(node_of(given[1])).kind == "max":
            line = quote_line(operation.own, steps[at].line)
            words = f"the maximum not subtracted, so that exp overflows, in {line}"
            for most, added in product(OVERFLOWING, (True, False)):
                other = partial(_overflowing, most=most, added=added)
                yield words, _answer(operation, (at, *exps, *sums), other), 2


def _overflowing(kind: str, x: Any, *rest: Any, most: float, added: bool) -> Any:
    """
    What a difference, an exponential or a sum gives where nothing was subtracted; a maximum is
    0 unless it is ``added`` to what comes out.
    """
    if kind == "max" and not added:
        return 0.0 * np.max(x, axis=rest[0], keepdims=rest[1])
    if kind == "subtract":
        return x + 0.0 * rest[0]
    if kind == "exp":
        return np.where(x > most, np.inf, np.exp(np.where(x > most, 0.0, x)))
    found = getattr(np, kind)(x, axis=rest[0], keepdims=rest[1])
    return np.where(found > np.exp(most), np.inf, found) if kind == "sum" else found


def _answer(
    operation: "SpecifiedOperation", at: tuple[int, ...], other: Other
) -> Callable[[dict[str, Any]], Any]:
    form = operation.form

    def in_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
        own = form.in_numpy(function)

        @wraps(own)
        def run(**inputs: Any) -> Any:
            with counted_by(Steps(at, other)):
                plain = form.itself is None and DECISIONS.get() is None
                return traced_values(own, inputs) if plain else own(**inputs)

        return run

    def answer(inputs: dict[str, Any]) -> Any:
        with np.errstate(all="ignore"):
            return replace(operation, form=replace(form, in_numpy=in_numpy)).evaluate(inputs)

    return answer


# the changes of each kind of step: words, and what its arguments give instead


def of_elementwise(name: str, *given: Any) -> Iterator[Told]:
    """An operand alone, another function of the same two, a number that is another."""
    if name in RESULTS:
        noun, result = RESULTS[name]
        for place, which in enumerate(("first", "second")):
            yield ALONE.format(f"{which} {noun}", result), partial(_operand, place=place)
    elif len(given) == 1:
        yield f"{name} left out", partial(_operand, place=0)
        for how, other in APPROXIMATIONS.get(name, {}).items():
            yield f"{name} approximated {how},", lambda _, x, other=other: other(x)
    if name == "multiply":
        yield from of_scaled_choice(*given)
    yield from of_comparison(name, *given)


def _operand(name: str, *given: Any, place: int) -> Any:
    return given[place] + 0.0 * given[1 - place] if len(given) == 2 else given[0]


def of_scaled_choice(*given: Any) -> Iterator[Told]:
    """One of what is chosen, of two, left unscaled."""
    for place, x in enumerate(given):
        scale = node_of(given[1 - place])
        if node_of(x).kind == "select" and scale.is_number and scale.number != 1:
            noun = f"the factor {scale.number:.4g}"
            yield f"{noun} only where the condition holds", partial(_scaled, place=place, where=1)
            yield f"{noun} only where it does not hold", partial(_scaled, place=place, where=0)


def _scaled(_: str, *given: Any, place: int, where: int) -> Any:
    chosen, product = given[place], given[place] * given[1 - place]
    return np.where(node_of(chosen).condition == bool(where), product, chosen)


def of_comparison(name: str, *given: Any) -> Iterator[Told]:
    for sibling in SIBLINGS.get(name, ()):
        words = f"{sibling.replace('_', ' or ')} in place of {name.replace('_', ' or ')}"
        yield words, lambda _, *own, sibling=sibling: getattr(np, sibling)(*own)
    for place, x in enumerate(given):
        if len(given) == 2 and (node := node_of(x)).is_number:
            yield from _of_number(name, place, node.number)


def _of_number(name: str, place: int, number: float) -> Iterator[Told]:
    if number == NEUTRAL.get(name):
        return
    is_a_size = bool(np.isfinite(number)) and number == int(number) and number > 2
    noun = "the " + NOUNS.get(name, ("limit", "limit"))[place]
    noun += "" if is_a_size else f" {number:g}"
    for words, read in NUMBERS.items():
        if read(number) != number:
            yield f"{noun} {words}", partial(_with_number, place=place, read=read)
    for small in SMALL if 0 < number < 0.1 else ():
        if small != number:
            read = partial(_another, other=small)
            yield f"{noun} as {small:g}", partial(_with_number, place=place, read=read)


def _another(_: Any, other: float) -> float:
    return other


def _with_number(name: str, *given: Any, place: int, read: Callable[[Any], Any]) -> Any:
    own = [read(x) if k == place else x for k, x in enumerate(given)]
    return getattr(np, name)(*own)


def of_reduction(kind: str, x: Any, axis: Any, keepdims: bool) -> Iterator[Told]:
    """Over other axes; the smallest, or the largest, of what is reduced."""
    ndim = node_of(x).value.ndim
    for other in _other_axes(axis, ndim):
        words = f"the {kind} over axis {other} in place of {_spelled(axis)}"
        yield (
            words,
            lambda kind, x, _, keepdims, other=other: getattr(np, kind)(
                x, axis=other, keepdims=keepdims
            ),
        )
    for tile in TILES if isinstance(axis, int) else ():
        words = f"the {kind} over whole tiles of {tile} alone"
        yield (
            words,
            lambda kind, x, axis, keepdims, tile=tile: getattr(np, kind)(
                _whole_tiles(x, axis, tile), axis=axis, keepdims=keepdims
            ),
        )
    for name in {"sum": ("max",), "max": ("min", "sum"), "min": ("max", "sum")}[kind]:
        words = f"the {name} in place of the {kind}"
        yield (
            words,
            lambda _, x, axis, keepdims, name=name: getattr(np, name)(
                x, axis=axis, keepdims=keepdims
            ),
        )


def _whole_tiles(x: Any, axis: int, tile: int) -> Any:
    count = x.shape[axis] // tile * tile
    return np.take(x, np.arange(count), axis=axis) if count else 0.0 * x


def _other_axes(axis: Any, ndim: int) -> Iterator[int]:
    axes = {a % ndim for a in ((axis,) if isinstance(axis, int) else axis or range(ndim))}
    yield from (a for a in range(ndim) if {a} != axes)


def _spelled(axis: Any) -> str:
    axes = (axis,) if isinstance(axis, int) else axis
    return "all" if axes is None else " and ".join(map(str, axes))


def of_product(a: str, b: str, out: str, x: Any, y: Any) -> Iterator[Told]:
    """One factor, or both, rounded to half precision."""
    for (name, narrow), which in product(HALVES.items(), ((0,), (1,), (0, 1))):
        noun = "both factors" if len(which) == 2 else f"the {('first', 'second')[which[0]]} factor"
        yield f"{noun} rounded to {name}", partial(_rounded_product, narrow=narrow, which=which)


def _rounded_product(
    a: str, b: str, out: str, x: Any, y: Any, narrow: Any, which: Sequence[int]
) -> Any:
    given = [Traced(x), Traced(y)]
    own = [x.astype(narrow) if k in which else x for k, x in enumerate(given)]
    return np.einsum(f"{a},{b}->{out}", *own).node


def of_choice(condition: Any, a: Any, b: Any) -> Iterator[Told]:
    yield "the condition inverted", lambda condition, a, b: np.where(condition, b, a)
    yield "what stands where it holds, everywhere", lambda _, a, b: a + 0.0 * b
    yield "what stands where it does not hold, everywhere", lambda _, a, b: b + 0.0 * a


def of_padding(x: Any, width: Any, value: float) -> Iterator[Told]:
    for other in FILLS:
        if other != value:
            words = f"padding of {other:g} in place of {value:g}"
            yield words, lambda x, width, _, other=other: np.pad(x, width, constant_values=other)


CHANGES: dict[str, Callable[..., Iterator[Told]]] = {
    "elementwise": of_elementwise,
    "compared": of_comparison,
    "reduced": of_reduction,
    "_product": of_product,
    "where": of_choice,
    "padded": of_padding,
}
"""By the name of the function that makes the step (:mod:`attnverify.derived.tracing`)."""
