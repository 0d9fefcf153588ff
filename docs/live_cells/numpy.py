"""
As much of NumPy as the specification's functions in the live cells call, for Brython, which has
none.

Arrays are a flat list and a shape; a dtype is bool, int or float. ``tests/docs/test_live_numpy.py``
holds
it to NumPy: the specification's own source, run on it, gives NumPy's numbers.
"""

import builtins
from itertools import product
from math import prod

newaxis = None
inf = float("inf")
nan = float("nan")


class inexact:
    """The name of the kinds of numbers that are rounded."""


class integer:
    """No number here is of NumPy's own integers."""


class ndarray:
    """Numbers in row-major order and the sizes of the axes."""

    def __init__(self, data, shape, dtype):
        self.data, self.shape, self.dtype = [dtype(x) for x in data], tuple(shape), dtype

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: prod(self.shape))

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, key):
        shape, at = places(self.shape, key)
        return (
            self.data[at[0]]
            if shape == ()
            else ndarray([self.data[p] for p in at], shape, self.dtype)
        )

    def __setitem__(self, key, value):
        shape, at = places(self.shape, key)
        new = broadcast_to(asarray(value), shape).data
        for place, x in zip(at, new, strict=True):
            self.data[place] = self.dtype(x)

    def reshape(self, *shape):
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        known = prod(size for size in shape if size != -1)
        return ndarray(
            self.data,
            [len(self.data) // known if size == -1 else size for size in shape],
            self.dtype,
        )

    def copy(self):
        return ndarray(self.data, self.shape, self.dtype)

    def tolist(self):
        return nested(self.data, self.shape)

    def __repr__(self):
        return f"array({self.tolist()})"

    def __invert__(self):
        return ndarray([not x for x in self.data], self.shape, self.dtype)


def nested(data, shape):
    if shape == ():
        return data[0]
    step = prod(shape[1:])
    return [nested(data[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def places(shape, key):
    """The shape that a key selects, and the place of each of its elements in the flat list."""
    key = key if isinstance(key, tuple) else (key,)
    given = sum(part is not None and part is not Ellipsis for part in key)
    if Ellipsis not in key:
        key = (*key, Ellipsis)
    middle = key.index(Ellipsis)
    key = (*key[:middle], *[slice(None)] * (len(shape) - given), *key[middle + 1 :])
    axis, sizes, chosen = 0, [], []
    for part in key:
        if part is None:
            sizes.append(1)
            continue
        step, size = prod(shape[axis + 1 :]), shape[axis]
        if isinstance(part, slice):
            indices = list(range(*part.indices(size)))
            sizes.append(len(indices))
        elif -size <= part < size:
            indices = [part % size]
        else:
            raise IndexError(f"index {part} is out of bounds for axis {axis} with size {size}")
        chosen.append([index * step for index in indices])
        axis += 1
    return tuple(sizes), [sum(parts) for parts in product(*chosen)]


def asarray(x):
    return x if isinstance(x, ndarray) else array(x)


def array(x):
    """Of a number or of nested lists."""
    shape, flat = [], [x]
    while isinstance(flat[0], (list, tuple)):
        shape.append(len(flat[0]))
        flat = [item for row in flat for item in row]
    kinds = {type(item) for item in flat}
    return ndarray(flat, shape, float if float in kinds else int if int in kinds else bool)


def broadcast_to(x, shape):
    x = asarray(x)
    lead = (1,) * (len(shape) - len(x.shape)) + x.shape
    if any(size not in (1, wanted) for size, wanted in zip(lead, shape, strict=True)):
        raise ValueError(f"operands could not be broadcast together: {x.shape} and {shape}")
    steps = [0 if size == 1 else prod(lead[axis + 1 :]) for axis, size in enumerate(lead)]
    at = product(*[range(size) for size in shape])
    return ndarray(
        [x.data[sum(i * step for i, step in zip(index, steps, strict=True))] for index in at],
        shape,
        x.dtype,
    )


def elementwise(function, kind=None):
    """A method that combines two arrays element by element, each broadcast to the other."""

    def combine(one, other):
        one, other = asarray(one), asarray(other)
        width = builtins.max(len(one.shape), len(other.shape))
        shapes = [(1,) * (width - len(x.shape)) + x.shape for x in (one, other)]
        shape = tuple(b if a == 1 else a for a, b in zip(*shapes, strict=True))
        pairs = zip(broadcast_to(one, shape).data, broadcast_to(other, shape).data, strict=True)
        wider = float if float in (one.dtype, other.dtype) else int
        return ndarray([function(a, b) for a, b in pairs], shape, kind or wider)

    return combine


OPERATORS = {
    "add": (lambda a, b: a + b, None),
    "sub": (lambda a, b: a - b, None),
    "mul": (lambda a, b: a * b, None),
    "truediv": (lambda a, b: a / b, float),
    "le": (lambda a, b: a <= b, bool),
    "lt": (lambda a, b: a < b, bool),
    "ge": (lambda a, b: a >= b, bool),
    "gt": (lambda a, b: a > b, bool),
    "and": (lambda a, b: a and b, bool),
    "or": (lambda a, b: a or b, bool),
}
for name, (function, kind) in OPERATORS.items():
    setattr(ndarray, f"__{name}__", elementwise(function, kind))
    if name in ("add", "mul", "and", "or"):
        setattr(ndarray, f"__r{name}__", elementwise(function, kind))
ndarray.__rsub__ = elementwise(lambda a, b: b - a)


def zeros(shape, dtype=float):
    shape = shape if isinstance(shape, tuple) else (shape,)
    return ndarray([0] * prod(shape), shape, dtype)


def ones(shape, dtype=float):
    return zeros(shape, dtype) + dtype(1)


def zeros_like(x):
    return zeros(x.shape, x.dtype)


def arange(*bounds):
    """Also of floats, as far as they count in ones."""
    numbers = range(*[int(bound) for bound in bounds])
    return ndarray(numbers, (len(numbers),), float if float in map(type, bounds) else int)


def cumsum(x, axis):
    """Along the last axis."""
    if axis not in (-1, len(x.shape) - 1):
        raise NotImplementedError("cumsum: only along the last axis")
    width, sums = x.shape[-1], []
    for place, number in enumerate(x.data):
        sums.append(number + (sums[-1] if place % width else 0))
    return ndarray(sums, x.shape, float if x.dtype is float else int)


def concatenate(arrays, axis):
    if axis < 0:
        axis += len(arrays[0].shape)
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    chunks = [prod(x.shape[axis:]) for x in arrays]
    data = [
        x.data[i * chunk : (i + 1) * chunk]
        for i in range(prod(shape[:axis]))
        for x, chunk in zip(arrays, chunks, strict=True)
    ]
    return ndarray([number for part in data for number in part], shape, arrays[0].dtype)


def issubdtype(kind, of):
    return of is inexact and kind is float


int64, float64, bool_ = int, float, bool
