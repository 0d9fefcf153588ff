"""NumPy's elementwise functions, comparisons and choices."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from attnverify.derived.tracing.array import FUNCTIONS, UFUNCS, Condition, Traced, node_of, spread
from attnverify.derived.tracing.node import Node, refuse, stepped
from attnverify.derived.tracing.steps import step

UNARY = (
    *("exp", "log", "sqrt", "tanh", "sin", "cos", "negative", "absolute", "expm1", "log1p"),
    *("rint", "floor", "ceil", "trunc", "erf"),
)
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
TESTS = ("isfinite", "isnan", "isinf")


OTHERS = {"erf": np.vectorize(math.erf, otypes=[float])}
"""Functions that NumPy has not: a ufunc of the name, as SciPy's, is followed."""


@step
def elementwise(name: str, *inputs: Any) -> Traced:
    """Make the node of an elementwise function; of constants alone, a constant."""
    nodes = [node_of(x) for x in inputs]
    function = OTHERS.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        value = function(*(node.value for node in nodes))
    return Traced(stepped("ew", name, nodes, value))


@step
def compared(name: str, a: Any, b: Any) -> Any:
    """
    Compare: a condition whose margin is the difference; plain of constants, and of infinity: what
    rounding does to numbers does not make them infinite (:func:`tested`).
    """
    first, second = node_of(a), node_of(b)
    with np.errstate(all="ignore"):
        value = getattr(np, name)(first.value, second.value)
    infinite = [x for x in (first, second) if x.const and np.isinf(x.value).all()]
    if infinite or (first.const and second.const):
        return value
    margin = elementwise("subtract", a, b).node
    return Condition(value, [spread(margin, value.shape)])


def tested(name: str, x: Any) -> Any:
    """Ask whether numbers are finite: what rounding does to them does not change that."""
    return getattr(np, name)(node_of(x).value)


@step
def where(condition: Any, a: Any, b: Any) -> Traced:
    """Choose: what decides the condition is kept beside the two."""
    first, second = node_of(a), node_of(b)
    if isinstance(condition, Traced):
        condition = compared("not_equal", condition, 0.0)
    chosen = condition.value if isinstance(condition, Condition) else np.asarray(condition, bool)
    value = np.where(chosen, first.value, second.value)
    margins = condition.margins if isinstance(condition, Condition) else ()
    margins = tuple(spread(node, value.shape) for node in margins)
    nodes = [first, second]
    return Traced(stepped("select", "where", nodes, value, condition=chosen, margins=margins))


def power(base: Any, exponent: Any) -> Any:
    """Write a power by products, a root and a quotient; a constant exponent alone is known."""
    if isinstance(exponent, Traced) or np.size(exponent) != 1:
        if not isinstance(base, Traced) and np.size(base) == 1:
            return np.exp(exponent * float(np.log(base)))
        raise refuse("a power with an exponent that is an array")
    k = float(exponent)
    if k < 0:
        return 1.0 / power(base, -k)
    if k == int(k) and 1 <= k <= 8:
        half = power(base, k // 2) if k > 1 else None
        return base if half is None else half * half * base if k % 2 else half * half
    if 2 * k == int(2 * k) and k < 8:
        root = np.sqrt(base)
        return root if k == 0.5 else power(base, k - 0.5) * root
    return np.exp(k * np.log(base))


def logaddexp(a: Any, b: Any) -> Any:
    top = np.maximum(a, b)
    return top + np.log(np.exp(a - top) + np.exp(b - top))


def clip(x: Any, low: Any = None, high: Any = None, **options: Any) -> Any:
    low, high = options.get("min", low), options.get("max", high)
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def sign(x: Any) -> Traced:
    return where(compared("greater", x, 0.0), 1.0, where(compared("less", x, 0.0), -1.0, 0.0))


def cast(x: Traced, dtype: Any) -> Any:
    """Follow a cast: float64 and float32 keep a number, narrow formats round it, integers cut."""
    kind = np.dtype(dtype)
    if kind in (np.float64, np.float32):
        return Traced(x.node)
    if kind.kind == "b":
        return compared("not_equal", x, 0.0)
    if kind.kind in "iu":
        return elementwise("trunc", x)
    node = x.node
    narrow = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        value = node.value.astype(kind).astype(np.float64)
    made = Node("ew", "cast", [node], value)
    made.fill = float(narrow.eps)
    return Traced(made)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda *inputs: function(name, *inputs)


UFUNCS |= {name: _named(elementwise, name) for name in UNARY + BINARY}
UFUNCS |= {name: _named(compared, name) for name in COMPARISONS}
UFUNCS |= {name: _named(tested, name) for name in TESTS}
UFUNCS |= {
    "power": power,
    "float_power": power,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x,
    "positive": lambda x: x,
    "exp2": lambda x: np.exp(x * float(np.log(2.0))),
    "log2": lambda x: np.log(x) / float(np.log(2.0)),
    "log10": lambda x: np.log(x) / float(np.log(10.0)),
    "logaddexp": logaddexp,
    "fabs": _named(elementwise, "absolute"),
    "fmax": _named(elementwise, "maximum"),
    "fmin": _named(elementwise, "minimum"),
    "sign": sign,
    "clip": clip,
    "logical_not": lambda x: compared("equal", x, 0.0),
}
FUNCTIONS |= {
    np.where: where,
    np.clip: clip,
    np.round: lambda x, decimals=0: np.rint(x) if decimals == 0 else _rounded(x, decimals),
    np.real: lambda x: x,
    "astype": cast,
}


def _rounded(x: Any, decimals: int) -> Any:
    raise refuse(f"np.round to {decimals} decimals")
