"""
The arrays that a specification is run on: `Traced`, which is a node, and `Condition`, a boolean
array that knows on which traced values it hangs.

What NumPy does with them stands in two tables, UFUNCS and FUNCTIONS, that the modules beside this
one fill; what neither has is refused with the line of the user's file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.lib.mixins import NDArrayOperatorsMixin

from attnverify.catalogue.pytrees import leaves, map_leaves
from attnverify.derived.tracing.node import Node, NotUnderstood, constant, refuse, stepped

UFUNCS: dict[str, Callable[..., Any]] = {}
REDUCTIONS: dict[str, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
LISTED = "; attnverify spec, without a file, lists what is"

DECISIONS: ContextVar[list[tuple[Node, bool]] | None] = ContextVar("decisions", default=None)
"""
What a specification decided by traced values once for all (an order, a maximum's place, an ``if``):
nodes whose sign decided, and whether 0 leaves it open. Where one may come out otherwise, nothing is
said of the result.
"""


def decide(margins: Sequence[Node], open_at_zero: bool = False) -> None:
    """Note that the signs of these nodes have decided something."""
    noted = DECISIONS.get()
    if noted is not None:
        noted += [(node, open_at_zero) for node in margins]


class Traced(NDArrayOperatorsMixin):
    """
    A float array of the specification while it is traced: a node, read through its base where it is
    a view.
    """

    __array_priority__ = 1000

    def __init__(self, node: Node, base: "Traced | None" = None, at: ndarray | None = None) -> None:
        self._node, self._base, self._at = node, base, at
        self._seen = base.node if base is not None else None

    @property
    def node(self) -> Node:
        """The node, as it is after all that was written into the array."""
        if self._base is not None and self._at is not None and self._base.node is not self._seen:
            self._seen = self._base.node
            self._node = moved(self._at, [self._seen])
        return self._node

    @node.setter
    def node(self, new: Node) -> None:
        self._node = new

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.value.shape

    @property
    def ndim(self) -> int:
        return self.node.value.ndim

    @property
    def size(self) -> int:
        return self.node.value.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.node.value.dtype

    @property
    def T(self) -> "Traced":
        return move(np.transpose, [self])

    @property
    def mT(self) -> "Traced":
        return move(lambda i: i.swapaxes(-1, -2), [self])

    def __len__(self) -> int:
        return len(self.node.value)

    def __iter__(self) -> "Iterator[Traced]":
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> ndarray:
        if self.node.const:
            return self.node.value.astype(dtype or float)
        raise refuse("a traced array in a function that knows plain arrays alone")

    def __float__(self) -> float:
        if self.node.const:
            return float(self.node.value)
        raise refuse("a plain number made of a traced array")

    def __getitem__(self, key: Any) -> "Traced":
        key = plain_key(key)
        at = numbers_of(self.node)[key]
        if is_basic(key):
            return Traced(moved(at, [self.node]), self, at)
        return Traced(moved(at, [self.node]))

    def __setitem__(self, key: Any, new: Any) -> None:
        """Write in place: this object, and what it is a view of, stand for other nodes from now."""
        at = numbers_of(self.node)[plain_key(key)]
        self.write(at, node_of(new))

    def write(self, at: ndarray, new: Node) -> None:
        """Replace the elements of these numbers."""
        if self._base is not None and self._at is not None:
            self._base.write(self._at.ravel()[at], new)
            return
        old = self.node
        index = numbers_of(old).ravel()
        index[at] = old.value.size + np.broadcast_to(numbers_of(new), at.shape)
        self.node = moved(index.reshape(old.shape), [old, new])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **options)
        if all(x.node.const for x in leaves((args, options)) if isinstance(x, Traced)):
            args, options = map_leaves(plain_of, (args, options))
            return numbers(function(*args, **options))
        module = getattr(function, "__module__", "numpy").replace("numpy", "np", 1)
        raise refuse(f"{module}.{function.__name__}", LISTED)

    def __getattr__(self, name: str) -> Any:
        """Find a method of arrays: the NumPy function of its name, with this array first."""
        function = getattr(np, name, None)
        if name.startswith("_") or function not in FUNCTIONS:
            raise refuse(f"the method .{name} of an array", LISTED)
        return lambda *args, **options: FUNCTIONS[function](self, *args, **options)

    def reshape(self, *shape: Any, **options: Any) -> "Traced":
        return FUNCTIONS[np.reshape](self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> "Traced":
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple) else axes
        return FUNCTIONS[np.transpose](self, given or None)

    def copy(self, *_: Any) -> "Traced":
        return Traced(self.node)

    def astype(self, dtype: Any, *_: Any, **__: Any) -> "Traced":
        return FUNCTIONS["astype"](self, dtype)


class Numbers(ndarray):
    """
    Plain numbers that a specification computes with: masks and whole numbers remain plain, what is
    made of them in floating point is a constant of the graph.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(x, (Traced, Condition)) for x in inputs):
            return NotImplemented
        plain = [plain_of(x) for x in inputs]
        if out := options.pop("out", None):
            getattr(ufunc, method)(*plain, out=tuple(map(plain_of, out)), **options)
            return out[0]
        found = getattr(ufunc, method)(*plain, **options)
        if not isinstance(found, ndarray) or found.dtype.kind != "f":
            return numbers(found)
        return Traced(as_computed(found, ufunc, method, plain, options))


def as_computed(
    value: ndarray, ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]
) -> Node:
    """Make the constant of a function of plain numbers; made in an unknown way if not traced."""
    node = constant(value)
    given = [Traced(constant(x)) if isinstance(x, ndarray) else x for x in inputs]
    with suppress(NotUnderstood):
        node.made = node_of(apply_ufunc(ufunc, method, given, dict(options))).made
    return node


def numbers(x: Any) -> Any:
    return x.view(Numbers) if isinstance(x, ndarray) and x.dtype.kind in "biuf" else x


def plain_of(x: Any) -> Any:
    """Return the plain array of numbers, and of a constant."""
    return np.asarray(x) if isinstance(x, (Numbers, Traced)) else x


class Condition(NDArrayOperatorsMixin):
    """
    A boolean array made by comparing traced values: its value in float64, and the nodes, of its
    shape, whose signs decide it.
    """

    __array_priority__ = 1001

    def __init__(self, value: ndarray, margins: Sequence[Node]) -> None:
        self.value, self.margins = np.asarray(value, bool), tuple(margins)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    def plain(self) -> ndarray:
        """Return the boolean array, and note that it decides."""
        decide(self.margins)
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> ndarray:
        return self.plain().astype(dtype or bool)

    def __bool__(self) -> bool:
        return bool(self.plain())

    def __getitem__(self, key: Any) -> "Condition":
        key = plain_key(key)
        return Condition(self.value[key], [Traced(node)[key].node for node in self.margins])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and ufunc.__name__.startswith(("logical_", "bitwise_", "invert")):
            return joined(ufunc, inputs)
        if method == "reduce":
            return ufunc.reduce(self.plain(), **options)
        numbers = [as_numbers(x) if isinstance(x, Condition) else x for x in inputs]
        return apply_ufunc(ufunc, method, numbers, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function is np.where and len(args) == 3:
            return FUNCTIONS[np.where](*args)
        if args[0] is self and function in FUNCTIONS and function not in (np.sum, np.where):
            move = FUNCTIONS[function]
            margins = [move(Traced(node), *args[1:], **options).node for node in self.margins]
            return Condition(function(self.value, *args[1:], **options), margins)
        plain = [x.plain() if isinstance(x, Condition) else x for x in args]
        return function(*plain, **options)

    def astype(self, dtype: Any) -> Any:
        return self if np.dtype(dtype).kind == "b" else as_numbers(self)

    def any(self, *args: Any, **options: Any) -> Any:
        return self.plain().any(*args, **options)

    def all(self, *args: Any, **options: Any) -> Any:
        return self.plain().all(*args, **options)


def apply_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    out = options.pop("out", None)
    if out is not None:
        return written_into(out, apply_ufunc(ufunc, method, inputs, options))
    name, table = ufunc.__name__, {"__call__": UFUNCS, "reduce": REDUCTIONS}.get(method, {})
    wanted = {k: v for k, v in options.items() if v is not None and k not in ("dtype", "casting")}
    if name not in table or "where" in wanted:
        if all(x.node.const for x in inputs if isinstance(x, Traced)):
            return numbers(getattr(ufunc, method)(*map(plain_of, inputs), **options))
        raise refuse(f"np.{name}{'' if method == '__call__' else '.' + method}")
    return table[name](*inputs, **wanted)


def written_into(out: tuple[Any, ...], result: Any) -> Traced:
    """Write a result in place, as ``x += y`` does."""
    (place,) = out
    if not isinstance(place, Traced):
        raise refuse("a traced result written into a plain array")
    place.write(numbers_of(place.node), node_of(result))
    return place


def joined(ufunc: Any, inputs: Sequence[Any]) -> Condition:
    """Combine conditions by and, or, not: each of their margins may decide."""
    values = [x.value if isinstance(x, Condition) else np.asarray(x) for x in inputs]
    value = ufunc(*values)
    margins = [n for x in inputs if isinstance(x, Condition) for n in x.margins]
    return Condition(value, [spread(node, value.shape) for node in margins])


def spread(node: Node, shape: tuple[int, ...]) -> Node:
    """Broadcast a node to a shape."""
    return move(lambda i: np.broadcast_to(i, shape), [Traced(node)]).node


def as_numbers(condition: Condition) -> Any:
    return FUNCTIONS[np.where](condition, 1.0, 0.0)


def node_of(x: Any) -> Node:
    if isinstance(x, Condition):
        return node_of(as_numbers(x))
    return x.node if isinstance(x, Traced) else constant(x)


def plain_key(key: Any) -> Any:
    """
    Return an index without conditions, what they pick is decided by their values, and without
    constants that were computed and cut to whole numbers.
    """
    if isinstance(key, tuple):
        return tuple(plain_key(each) for each in key)
    if isinstance(key, Traced) and key.node.const and (key.node.value % 1 == 0).all():
        return key.node.value.astype(int)
    return key.plain() if isinstance(key, Condition) else key


def is_basic(key: Any) -> bool:
    """Tell whether NumPy's answer to this index is a view."""
    parts = key if isinstance(key, tuple) else (key,)
    basic = (int, np.integer, slice, type(...), type(None))
    return all(isinstance(part, basic) and not isinstance(part, bool) for part in parts)


def numbers_of(node: Node) -> ndarray:
    """Number the elements of a node, from 0."""
    return np.arange(node.value.size).reshape(node.shape)


def moved(index: Any, nodes: list[Node], fill: float = 0.0) -> Node:
    """Make the node that holds these elements of the nodes; -1 stands for the fill."""
    index = np.asarray(index)
    flat = np.concatenate([node.value.ravel() for node in nodes] + [[fill]])
    return stepped("move", "move", nodes, flat[index], index=index, fill=fill)


def move(function: Callable[..., Any], arrays: Sequence[Any], fill: float = 0.0) -> Traced:
    """
    Apply any function that only moves elements, to their numbers; -1 stands for the fill. What
    stays where it is needs no node, and a move of a move is one.
    """
    nodes, numbers, start = [node_of(x) for x in arrays], [], 0
    for node in nodes:
        numbers.append(numbers_of(node) + start)
        start += node.value.size
    index = np.asarray(function(*numbers))
    only = nodes[0] if len(nodes) == 1 else None
    if only is None or index.size != start:
        return Traced(moved(index, nodes, fill))
    if index.shape == only.shape and (index.ravel() == np.arange(start)).all():
        return Traced(only)
    if only.kind == "move" and only.fill == fill and (index >= 0).all():
        return Traced(moved(only.index.ravel()[index], only.inputs, fill))
    return Traced(moved(index, nodes, fill))
