"""
As much of NumPy as the specification calls, for Brython, which has none.

``tests/docs/test_live_numpy.py`` holds it to NumPy: the specification's own source, run on it,
gives NumPy's numbers for every operation.
"""

import builtins
import math
from itertools import product
from math import inf as inf
from math import nan as nan
from math import pi as pi
from math import prod

from strided import array as array
from strided import asarray as asarray
from strided import bool_ as bool_
from strided import broadcast_to as broadcast_to
from strided import common_shape, dtype_of, places, widest
from strided import float64 as float64
from strided import inexact as inexact
from strided import int8 as int8
from strided import int64 as int64
from strided import integer as integer
from strided import ndarray as ndarray

newaxis = None


def divide(a, b):
    """As processors do: nothing is an error."""
    if b:
        return a / b
    return nan if not a or a != a else math.copysign(inf, a) * math.copysign(1.0, b)


def multiply(a, b):
    return a * b


def power(a, b):
    try:
        return a**b
    except (OverflowError, ZeroDivisionError):
        return inf


def elementwise(function, kind=None):
    """A method that combines two arrays element by element, each broadcast to the other."""

    def combine(one, other):
        one, other = asarray(one), asarray(other)
        shape = common_shape(one, other)
        a, b = broadcast_to(one, shape).data, broadcast_to(other, shape).data
        made = kind or widest(one.dtype, other.dtype, int64)
        return ndarray([function(x, y) for x, y in zip(a, b, strict=True)], shape, made)

    return combine


OPERATORS = {
    "add": (lambda a, b: a + b, None),
    "sub": (lambda a, b: a - b, None),
    "mul": (multiply, None),
    "truediv": (divide, float64),
    "pow": (power, None),
    "eq": (lambda a, b: a == b, bool_),
    "ne": (lambda a, b: a != b, bool_),
    "le": (lambda a, b: a <= b, bool_),
    "lt": (lambda a, b: a < b, bool_),
    "ge": (lambda a, b: a >= b, bool_),
    "gt": (lambda a, b: a > b, bool_),
    "and": (lambda a, b: a and b, bool_),
    "or": (lambda a, b: a or b, bool_),
}


def reflected(method):
    return lambda one, other: method(asarray(other), one)


def in_place(method):
    def change(one, other):
        one[...] = method(one, other)
        return one

    return change


for name, (function, kind) in OPERATORS.items():
    method = elementwise(function, kind)
    setattr(ndarray, f"__{name}__", method)
    if name in ("add", "sub", "mul", "truediv", "pow", "and", "or"):
        setattr(ndarray, f"__r{name}__", reflected(method))
        setattr(ndarray, f"__i{name}__", in_place(method))
ndarray.__invert__ = lambda x: ndarray([not a for a in x.data], x.shape, bool_)
ndarray.__neg__ = lambda x: ndarray([-a for a in x.data], x.shape, x.dtype)
ndarray.__abs__ = lambda x: ndarray([builtins.abs(a) for a in x.data], x.shape, x.dtype)
ndarray.__matmul__ = lambda one, other: matmul(one, other)


def mapped(function, kind=float64, beyond=nan):
    """A function of each number; what Python refuses is a number of processors."""

    def number(x):
        try:
            return function(x)
        except (OverflowError, ValueError):
            return beyond

    def apply(x):
        if not isinstance(x, ndarray):
            return number(x)
        return ndarray([number(a) for a in x.data], x.shape, kind)

    return apply


exp = mapped(math.exp, beyond=inf)
log = mapped(lambda x: math.log(x) if x else -inf)
sin, cos, tanh, sqrt = mapped(math.sin), mapped(math.cos), mapped(math.tanh), mapped(math.sqrt)
isfinite, isnan = mapped(math.isfinite, bool_), mapped(math.isnan, bool_)
abs = mapped(math.fabs)


def greatest(numbers):
    return nan if any_nan(numbers) else builtins.max(numbers)


def any_nan(numbers):
    return builtins.any(x != x for x in numbers)


def reduced(function, kind=None):
    """A function of all numbers, or of those along some axes."""

    def reduce(x, axis=None, keepdims=False):
        x = asarray(x)
        axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        gone = {a % x.ndim for a in axes}
        kept = [a for a in range(x.ndim) if a not in gone]
        steps = places([x.shape[a] for a in gone], [x.strides[a] for a in gone])
        starts = places([x.shape[a] for a in kept], [x.strides[a] for a in kept], x.offset)
        numbers = [function([x.buffer[at + step] for step in steps]) for at in starts]
        shape = [1 if a in gone else x.shape[a] for a in range(x.ndim) if keepdims or a in kept]
        made = kind or widest(x.dtype, int64)
        return ndarray(numbers, shape, made) if shape else numbers[0]

    return reduce


sum, max, min = reduced(builtins.sum), reduced(greatest), reduced(builtins.min)
any, all = reduced(builtins.any, bool_), reduced(builtins.all, bool_)
mean = reduced(lambda numbers: divide(builtins.sum(numbers), len(numbers)), float64)
for name, method in {
    "sum": sum,
    "max": max,
    "min": min,
    "any": any,
    "all": all,
    "mean": mean,
}.items():
    setattr(ndarray, name, method)


def zeros(shape, kind=float):
    shape, kind = shape if isinstance(shape, tuple) else (shape,), dtype_of(kind)
    return ndarray([kind.of(0)] * prod(shape), shape, kind)


def ones(shape, kind=float):
    made = zeros(shape, kind)
    made[...] = 1
    return made


def zeros_like(x):
    return zeros(x.shape, x.dtype)


def eye(size, dtype=float):
    made = zeros((size, size), dtype)
    for i in range(size):
        made[i, i] = 1
    return made


def arange(*bounds):
    """Also of floats, as far as they count in ones."""
    numbers = list(range(*[int(bound) for bound in bounds]))
    kind = float64 if float in map(type, bounds) else int64
    return ndarray([kind.of(x) for x in numbers], (len(numbers),), kind)


def where(condition, one, other):
    condition, one, other = asarray(condition), asarray(one), asarray(other)
    shape = common_shape(condition, one, other)
    columns = (broadcast_to(x, shape).data for x in (condition, one, other))
    kind = widest(one.dtype, other.dtype)
    return ndarray([kind.of(a if c else b) for c, a, b in zip(*columns, strict=True)], shape, kind)


def maximum(one, other):
    return where(asarray(one) > other, one, other)


def real(x):
    return x


def repeat(x, count, axis):
    before, after = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    numbers = []
    for row in range(before * x.shape[axis]):
        numbers += x.data[row * after : (row + 1) * after] * count
    shape = (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :])
    return ndarray(numbers, shape, x.dtype)


def cumsum(x, axis):
    """Along the last axis."""
    if axis not in (-1, x.ndim - 1):
        raise NotImplementedError("cumsum: only along the last axis")
    width, sums = x.shape[-1], []
    for place, number in enumerate(x.data):
        sums.append(number + (sums[-1] if place % width else 0))
    return ndarray(sums, x.shape, widest(x.dtype, int64))


def concatenate(arrays, axis=0):
    axis %= arrays[0].ndim
    shape = list(arrays[0].shape)
    shape[axis] = builtins.sum(x.shape[axis] for x in arrays)
    made, start = zeros(tuple(shape), widest(*[x.dtype for x in arrays])), 0
    for x in arrays:
        made[(slice(None),) * axis + (slice(start, start + x.shape[axis]),)] = x
        start += x.shape[axis]
    return made


def split(x, count, axis):
    axis, width = axis % x.ndim, x.shape[axis] // count
    lead = (slice(None),) * axis
    return [x[(*lead, slice(part * width, (part + 1) * width))] for part in range(count)]


def outer(one, other):
    return one[:, None] * other[None, :]


def einsum(subscripts, *arrays):
    """Products over all letters, summed over those that the result does not have."""
    inputs, _, output = subscripts.partition("->")
    letters = [lettered(names, x.ndim) for names, x in zip(inputs.split(","), arrays, strict=True)]
    width = builtins.max(builtins.sum(name in FREE for name in names) for names in letters)
    output = output.replace("...", FREE[len(FREE) - width :])
    sizes = {}
    for names, x in zip(letters, arrays, strict=True):
        for name, size in zip(names, x.shape, strict=True):
            sizes[name] = sizes.get(name, 1) if size == 1 else size
    summed = [name for name in sizes if name not in output]
    columns = []
    for names, x in zip(letters, arrays, strict=True):
        steps = {n: s for n, s, size in zip(names, x.strides, x.shape, strict=True) if size > 1}
        starts, inner = (
            places([sizes[n] for n in axes], [steps.get(n, 0) for n in axes])
            for axes in (output, summed)
        )
        columns.append((x.buffer, [x.offset + start for start in starts], inner))
    shape = [sizes[name] for name in output]
    kind = widest(*[x.dtype for x in arrays])
    numbers = [kind.of(products(columns, place)) for place in range(prod(shape))]
    return ndarray(numbers, shape, kind)


FREE = "".join(map(chr, range(65, 91)))
"""The letters of the axes in place of dots, counted from the last."""


def lettered(names, ndim):
    """The letters of an array's axes, those in place of the dots written out."""
    free = ndim - len(names.replace("...", ""))
    return names.strip().replace("...", FREE[len(FREE) - free :] if free else "")


def products(columns, place):
    """The sum of products that stands at one place of the result."""
    terms = None
    for buffer, starts, inner in columns:
        numbers = [buffer[starts[place] + step] for step in inner]
        terms = numbers if terms is None else list(map(multiply, terms, numbers))
    return builtins.sum(terms)


def matmul(one, other):
    """Of vectors and matrices."""
    left, right = ("i"[: one.ndim - 1] + "k", "k" + "j"[: other.ndim - 1])
    made = einsum(f"{left},{right}->{left[:-1]}{right[1:]}", one, other)
    return made if made.shape else made.item()


def ndindex(*shape):
    shape = shape[0] if shape and isinstance(shape[0], tuple) else shape
    return product(*[range(size) for size in shape])


def argwhere(x):
    return [index for index in ndindex(x.shape) if x[index]]


def issubdtype(kind, of):
    return of is inexact and kind == float64


def result_type(*arrays):
    return widest(*[asarray(x).dtype for x in arrays])


class errstate:
    """Nothing warns here."""

    def __init__(self, **kinds):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False
