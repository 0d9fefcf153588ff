"""
Arrays as NumPy has them: numbers in one list, which several arrays may look at, each with its own
shape, strides and offset.
"""

from math import prod


class inexact:
    """The name of the kinds of numbers that are rounded."""


class integer:
    """No number here is of NumPy's own integers."""


class dtype:
    """A kind of numbers: equal to itself and to Python's type of the same."""

    def __init__(self, name, kind, of):
        self.name, self.kind, self.of = name, kind, of

    def __eq__(self, other):
        return other is self or other is self.of

    def __hash__(self):
        return hash(self.name)

    def __str__(self):
        return self.name

    __repr__ = __str__


bool_ = dtype("bool", "b", bool)
int8 = dtype("int8", "i", lambda x: int(x))  # Python's int is int64
int64 = dtype("int64", "i", int)
float64 = dtype("float64", "f", float)
KINDS = (bool_, int8, int64, float64)
"""From the narrowest to the widest."""


def dtype_of(kind):
    """Of Python's type, or of the dtype itself."""
    return next(known for known in KINDS if known == kind)


def widest(*kinds):
    return KINDS[max(KINDS.index(dtype_of(kind)) for kind in kinds)]


def strides_of(shape):
    """Of an array whose numbers lie one after the other."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def places(shape, strides, offset=0):
    """Where each number lies, in row-major order."""
    found = [offset]
    for size, stride in zip(shape, strides, strict=True):
        steps = [i * stride for i in range(size)]
        found = [place + step for place in found for step in steps]
    return found


class ndarray:
    """A window on a list of numbers."""

    def __init__(self, buffer, shape, kind, strides=None, offset=0):
        self.buffer, self.shape, self.dtype = buffer, tuple(shape), kind
        self.strides = strides_of(self.shape) if strides is None else tuple(strides)
        self.offset = offset

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: prod(self.shape))
    real = property(lambda self: self)
    T = property(lambda self: self.transposed(range(self.ndim)[::-1]))
    data = property(lambda self: [self.buffer[p] for p in self.places()])

    def places(self):
        return places(self.shape, self.strides, self.offset)

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bool__(self):
        return bool(self.item())

    def __float__(self):
        return float(self.item())

    def __getitem__(self, key):
        shape, strides, at = selected(self, key)
        if strides is None:
            return ndarray([self.buffer[p] for p in at], shape, self.dtype)
        return ndarray(self.buffer, shape, self.dtype, strides, at) if shape else self.buffer[at]

    def __setitem__(self, key, value):
        shape, strides, at = selected(self, key)
        if strides is not None:
            at = places(shape, strides, at)
        convert = self.dtype.of
        for place, number in zip(at, broadcast_to(value, shape).data, strict=True):
            self.buffer[place] = convert(number)

    def reshape(self, *shape):
        shape = tuple(shape[0]) if isinstance(shape[0], (tuple, list)) else shape
        known = prod(size for size in shape if size != -1)
        shape = tuple(self.size // known if size == -1 else size for size in shape)
        if prod(shape) != self.size:
            raise ValueError(f"cannot reshape array of size {self.size} into shape {shape}")
        if self.strides == strides_of(self.shape):
            return ndarray(self.buffer, shape, self.dtype, None, self.offset)
        return ndarray(self.data, shape, self.dtype)

    def ravel(self):
        return self.reshape(-1)

    def transposed(self, order):
        shape, strides = ([of[axis] for axis in order] for of in (self.shape, self.strides))
        return ndarray(self.buffer, shape, self.dtype, strides, self.offset)

    def swapaxes(self, one, other):
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transposed(order)

    def astype(self, kind):
        kind = dtype_of(kind)
        return ndarray([kind.of(x) for x in self.data], self.shape, kind)

    def copy(self):
        return self.astype(self.dtype)

    def round(self, digits=0):
        return ndarray([round(x, digits) for x in self.data], self.shape, self.dtype)

    def item(self):
        (number,) = self.data
        return number

    def tolist(self):
        return nested(self.data, self.shape)

    def __repr__(self):
        return f"array({self.tolist()})"


def nested(data, shape):
    if shape == ():
        return data[0]
    step = prod(shape[1:])
    return [nested(data[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def selected(x, key):
    """
    What a key selects: its shape, and strides and offset of the window on it, or None and the place
    of each number, where an array of booleans or integers chooses among them.
    """
    shape, strides, offset, groups, axis = [], [], x.offset, [], 0
    for part in completed(x, key):
        if part is None:
            shape.append(1)
            groups.append([0])
            if strides is not None:
                strides.append(0)
            continue
        if isinstance(part, ndarray):
            used = part.ndim if part.dtype == bool else 1
            steps = x.strides[axis : axis + used]
            groups.append(chosen(part, x.shape[axis], steps))
            shape += [len(groups[-1])] if part.dtype == bool else part.shape
            strides, axis = None, axis + used
            continue
        size, stride = x.shape[axis], x.strides[axis]
        axis += 1
        if isinstance(part, slice):
            first, stop, step = part.indices(size)
            numbers = range(first, stop, step)
            shape.append(len(numbers))
            groups.append([(i - first) * stride for i in numbers])
            offset += first * stride if numbers else 0
            if strides is not None:
                strides.append(step * stride)
        else:
            offset += within(part, size, axis - 1) * stride
    if strides is not None:
        return tuple(shape), strides, offset
    at = [offset]
    for group in groups:
        at = [place + step for place in at for step in group]
    return tuple(shape), None, at


def completed(x, key):
    """The key with a part for each axis."""
    key = list(key) if isinstance(key, tuple) else [key]
    key = [array(part) if isinstance(part, list) else part for part in key]
    used = sum(
        part.ndim if isinstance(part, ndarray) and part.dtype == bool else 1
        for part in key
        if part is not None and part is not Ellipsis
    )
    if used > x.ndim:
        raise IndexError(f"too many indices for array: array is {x.ndim}-dimensional")
    middle = next((place for place, part in enumerate(key) if part is Ellipsis), len(key))
    return key[:middle] + [slice(None)] * (x.ndim - used) + key[middle + 1 :]


def chosen(part, size, strides):
    """The steps to the numbers that an array of booleans or of indices chooses."""
    if part.dtype == bool:
        steps = places(part.shape, strides)
        return [step for step, wanted in zip(steps, part.data, strict=True) if wanted]
    return [within(i, size, 0) * strides[0] for i in part.data]


def within(index, size, axis):
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")
    return index % size


def asarray(x):
    return x if isinstance(x, ndarray) else array(x)


def array(x, kind=None):
    """Of a number, of an array, or of nested lists of either."""
    if isinstance(x, ndarray):
        return x.astype(kind or x.dtype)
    if not isinstance(x, (list, tuple)):
        return ndarray([x], (), dtype_of(kind or type(x)))
    parts = [array(part, kind) for part in x]
    shape = (len(parts), *(parts[0].shape if parts else ()))
    kind = widest(*(part.dtype for part in parts)) if parts else float64
    return ndarray([kind.of(number) for part in parts for number in part.data], shape, kind)


def broadcast_to(x, shape):
    """A window on the same numbers, each seen as often as the shape wants it."""
    x = asarray(x)
    lead = len(shape) - x.ndim
    sizes, strides = (1,) * lead + x.shape, (0,) * lead + x.strides
    if lead < 0 or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise ValueError(f"operands could not be broadcast together: {x.shape} and {shape}")
    strides = [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
    return ndarray(x.buffer, shape, x.dtype, strides, x.offset)


def common_shape(*arrays):
    """The shape to which several arrays broadcast."""
    width = max(x.ndim for x in arrays)
    shapes = [(1,) * (width - x.ndim) + x.shape for x in arrays]
    return tuple(next((s for s in sizes if s != 1), 1) for sizes in zip(*shapes, strict=True))
