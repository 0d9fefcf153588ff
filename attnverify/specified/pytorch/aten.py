"""
The operations of ATen, as PyTorch calls them below its own interface, in NumPy: what a traced array
knows. Arguments stand in ATen's order (``native_functions.yaml``); what is not here is decomposed
by PyTorch into what is, or refused by name.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy import ndarray

from attnverify.derived.tracing.array import Condition, Traced, move, node_of, numbers_of
from attnverify.derived.tracing.elementwise import elementwise
from attnverify.derived.tracing.moves import argsort
from attnverify.derived.tracing.node import constant, refuse
from attnverify.specified.pytorch.windows import (
    average_pool,
    convolution,
    max_pool,
    padded,
    unfold,
)

Rule = Callable[..., Any]
NARROW = {torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}


def axes_of(dim: Any) -> Any:
    """Return NumPy's axes: none, or an empty list, are all of them."""
    return None if dim is None or dim == [] else tuple(dim) if isinstance(dim, list) else dim


def cast(x: Any, dtype: Any = None, **_: Any) -> Any:
    """Follow a cast: float64 and float32 keep a number, halves round it, integers cut it."""
    if dtype is None:
        return x
    if dtype in NARROW:
        return x.astype(NARROW[dtype])
    kept = dtype in (torch.float32, torch.float64)
    return x.astype(np.float64 if kept else bool if dtype == torch.bool else np.int64)


def divide(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    return getattr(np, rounding_mode)(a / b) if rounding_mode else a / b


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return 0.5 * x * (1.0 + elementwise("erf", x * float(np.sqrt(0.5))))
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return np.where(
        x * beta > threshold, x, np.log1p(np.exp(clamp(x * beta, max=threshold))) / beta
    )


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = alpha * np.expm1(np.minimum(x, 0.0) * input_scale)
    return scale * np.where(x > 0, x, below)


# sums


def total(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.sum(cast(x, dtype), axis=axes_of(dim), keepdims=keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.mean(cast(x, dtype), axis=axes_of(dim), keepdims=keepdim)


def variance(x: Any, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, bool):
        dim, correction = None, int(dim)
    ddof = 1 if correction is None else int(correction)
    return np.var(x, axis=axes_of(dim), ddof=ddof, keepdims=keepdim)


def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    axes = axes_of(dim)
    if ord == 1:
        return np.sum(np.abs(x), axis=axes, keepdims=keepdim)
    if ord == float("inf"):
        return np.max(np.abs(x), axis=axes, keepdims=keepdim)
    if ord != 2:
        raise refuse(f"torch's vector norm with ord={ord}")
    return np.sqrt(np.sum(x * x, axis=axes, keepdims=keepdim))


def softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    e = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return e / np.sum(e, axis=dim, keepdims=True)


def log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    moved = x - np.max(x, axis=dim, keepdims=True)
    return moved - np.log(np.sum(np.exp(moved), axis=dim, keepdims=True))


def largest(x: Any, dim: Any = None, keepdim: bool = False, *, sign: int = 1) -> Any:
    """Return the maximum, with its places where an axis is named; of two arrays, elementwise."""
    if not isinstance(dim, int | None):
        return np.maximum(x, dim) if sign > 0 else np.minimum(x, dim)
    reduce = np.max if sign > 0 else np.min
    if dim is None:
        return reduce(x)
    return reduce(x, axis=dim, keepdims=keepdim), place_of_largest(x, dim, keepdim, sign=sign)


def extreme(x: Any, dim: Any = None, keepdim: bool = False, *, reduce: Rule) -> Any:
    return reduce(x, axis=axes_of(dim), keepdims=keepdim)


def place_of_largest(x: Any, dim: Any = None, keepdim: bool = False, *, sign: int = 1) -> Any:
    place = np.argmax(x if sign > 0 else -x, axis=dim)
    return np.expand_dims(place, dim) if keepdim and dim is not None else np.asarray(place)


def sort(x: Any, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    return ordered(x, dim, descending)


def ordered(x: Any, dim: int, descending: bool, most: int | None = None) -> Any:
    order = argsort(Traced(node_of(-x if descending else x)), dim, most)
    return np.take_along_axis(x, order, dim), order


def top(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return ordered(x, dim, largest, k)


# norms: the answer, the mean, and one over the deviation


def normalised(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    centred = x - np.mean(x, axis=axes, keepdims=True)
    spread = np.mean(centred * centred, axis=axes, keepdims=True)
    return centred / np.sqrt(spread + eps)


def layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    found = normalised(x, tuple(range(-len(shape), 0)), eps)
    return with_gain(found, weight, bias), None, None


def with_gain(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def group_norm(
    x: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    shape = x.shape
    found = np.reshape(normalised(np.reshape(x, (N, group, -1)), (-1,), eps), shape)
    return with_gain(found, *by_channel(len(shape), weight, bias)), None, None


def by_channel(ndim: int, *arrays: Any) -> list[Any]:
    """Return arrays of the channels, of the second of so many axes."""
    shape = (-1, *(1,) * (ndim - 2))
    return [x if x is None else np.reshape(x, shape) for x in arrays]


def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    ndim = len(x.shape)
    weight, bias, mean, var = by_channel(ndim, weight, bias, mean, var)
    axes = (0, *range(2, ndim))
    found = normalised(x, axes, eps) if training else (x - mean) / np.sqrt(var + eps)
    return with_gain(found, weight, bias), None, None


# moves


def index_of(key: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if part is None else part for part in key)


def gather(x: Any, dim: int, index: ndarray, **_: Any) -> Any:
    kept = [slice(n) for n in index.shape]
    kept[dim] = slice(None)
    return np.take_along_axis(x[tuple(kept)], index, dim)


def written(x: Any, at: Callable[[ndarray], ndarray], new: Any) -> Any:
    """Return a copy with new numbers at the places that a function of all places picks."""
    made = Traced(x.node if isinstance(x, Traced) else constant(x))
    places = at(numbers_of(made.node))
    made.write(places, node_of(np.broadcast_to(new, places.shape)))
    return made


def scatter(x: Any, dim: int, index: ndarray, src: Any = None, value: Any = None) -> Any:
    new = value if src is None else src
    if not np.isscalar(new):
        new = new[tuple(slice(n) for n in index.shape)]
    return written(x, lambda places: gather(places, dim, index), new)


def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    if accumulate:
        raise refuse("torch's index_put_ that accumulates")
    return written(x, lambda places: places[index_of(indices)], values)


def pad(x: Any, width: Sequence[int], value: float = 0.0) -> Any:
    """Pad as ATen says it: the last axis first, below and above."""
    return padded(x, width[-2::-2], width[::-2], value)


def repeat(x: Any, counts: Sequence[int]) -> Any:
    lead = (1,) * (len(counts) - len(x.shape))
    return np.tile(np.reshape(x, (*lead, *x.shape)), counts)


def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    return (
        np.roll(x, tuple(shifts), tuple(dims))
        if dims
        else np.reshape(np.roll(np.ravel(x), shifts[0]), x.shape)
    )


def expand(i: ndarray, shape: Sequence[int], implicit: bool = False) -> ndarray:
    own = (*(1,) * (len(shape) - i.ndim), *i.shape)
    return np.broadcast_to(i, [n if n >= 0 else own[k] for k, n in enumerate(shape)])


def squeeze(i: ndarray, dim: Any = None) -> ndarray:
    dims = range(i.ndim) if dim is None else dim if isinstance(dim, (list, tuple)) else (dim,)
    return np.squeeze(i, tuple(d for d in dims if i.ndim and i.shape[d] == 1))


def cut(i: ndarray, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> ndarray:
    key: list[Any] = [slice(None)] * i.ndim
    key[dim] = slice(start, end, step)
    return i[tuple(key)]


def pick(i: ndarray, dim: int, index: int) -> ndarray:
    key: list[Any] = [slice(None)] * i.ndim
    key[dim] = index
    return i[tuple(key)]


MOVES: dict[str, Callable[..., ndarray]] = {
    "view": lambda i, shape: np.reshape(i, shape),
    "expand": expand,
    "permute": lambda i, dims: np.transpose(i, dims),
    "transpose": lambda i, a, b: np.swapaxes(i, a, b),
    "t": lambda i: i.T,
    "unsqueeze": lambda i, dim: np.expand_dims(i, dim),
    "squeeze": squeeze,
    "slice": cut,
    "select": pick,
    "diagonal": lambda i, offset=0, dim1=0, dim2=1: np.diagonal(i, offset, dim1, dim2),
    "unfold": unfold,
    "alias": lambda i: i,
    "detach": lambda i: i,
}
"""What only moves places: functions of an array of numbers, or of any other."""

MOVES["_unsafe_view"] = MOVES["reshape"] = MOVES["view"]


def viewed(change: Callable[..., ndarray]) -> Rule:
    """Follow a view: what is written into it is written into what it is a view of."""

    def view(x: Any, *args: Any, **options: Any) -> Any:
        def function(i: ndarray) -> ndarray:
            return change(i, *args, **options)

        if isinstance(x, Traced):
            return Traced(move(function, [x]).node, x, function(numbers_of(x.node)))
        if isinstance(x, Condition):
            return Condition(
                function(x.value), [move(function, [Traced(n)]).node for n in x.margins]
            )
        return function(x)

    return view


def split(x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    whole = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - k) for k in range(0, whole, sizes)] or [0]
    ends = np.cumsum(sizes)
    return [VIEWS["slice"](x, dim, e - n, e) for n, e in zip(sizes, map(int, ends), strict=True)]


def unbind(x: Any, dim: int = 0) -> list[Any]:
    return [VIEWS["select"](x, dim, k) for k in range(x.shape[dim])]


VIEWS = {name: viewed(change) for name, change in MOVES.items()}
VIEWS |= {"split": split, "split_with_sizes": split, "unbind": unbind}

ATEN: dict[str, Rule] = VIEWS | {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "abs")},
    **{name: getattr(np, name) for name in ("expm1", "log1p", "floor", "ceil", "trunc", "exp2")},
    **{name: getattr(np, name) for name in ("log2", "log10", "maximum", "minimum", "sign")},
    **{name: getattr(np, name) for name in ("isnan", "isinf", "isfinite", "reciprocal")},
    **{name: getattr(np, f"logical_{name[8:]}") for name in ("logical_and", "logical_or")},
    "logical_not": np.logical_not,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_not": lambda a: ~a,
    "erf": partial(elementwise, "erf"),
    "round": lambda x, decimals=0: np.round(x, decimals),
    "add": lambda a, b, alpha=1: a + (b if alpha == 1 else alpha * b),
    "sub": lambda a, b, alpha=1: a - (b if alpha == 1 else alpha * b),
    "rsub": lambda a, b, alpha=1: b - (a if alpha == 1 else alpha * a),
    "mul": lambda a, b: a * b,
    "div": divide,
    "neg": lambda x: -x,
    "pow": lambda x, k: np.power(x, k),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "where": np.where,
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "clamp": clamp,
    "clamp_min": lambda x, low: np.maximum(x, low),
    "clamp_max": lambda x, high: np.minimum(x, high),
    "relu": lambda x: np.maximum(x, 0.0),
    "hardtanh": lambda x, low=-1.0, high=1.0: clamp(x, low, high),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "softplus": softplus,
    "elu": elu,
    "sum": total,
    "mean": mean,
    "var": variance,
    "var_mean": lambda x, dim=None, *, keepdim=False, **options: (
        variance(x, dim, keepdim=keepdim, **options),
        mean(x, dim, keepdim),
    ),
    "linalg_vector_norm": vector_norm,
    "_softmax": softmax,
    "_log_softmax": log_softmax,
    "amax": partial(extreme, reduce=np.max),
    "amin": partial(extreme, reduce=np.min),
    "max": largest,
    "min": partial(largest, sign=-1),
    "argmax": place_of_largest,
    "argmin": partial(place_of_largest, sign=-1),
    "any": lambda x, dim=None, keepdim=False: x.any(axis=axes_of(dim), keepdims=keepdim),
    "all": lambda x, dim=None, keepdim=False: x.all(axis=axes_of(dim), keepdims=keepdim),
    "sort": sort,
    "topk": top,
    "cumsum": lambda x, dim, dtype=None: np.cumsum(x, axis=dim),
    "mm": np.matmul,
    "bmm": np.matmul,
    "mv": np.matmul,
    "dot": np.dot,
    "addmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * (a @ b),
    "convolution": convolution,
    "avg_pool2d": average_pool,
    "avg_pool3d": average_pool,
    "max_pool2d_with_indices": max_pool,
    "max_pool3d_with_indices": max_pool,
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "native_batch_norm": batch_norm,
    "cat": lambda xs, dim=0: np.concatenate(xs, axis=dim),
    "stack": lambda xs, dim=0: np.stack(xs, axis=dim),
    "constant_pad_nd": pad,
    "flip": lambda x, dims: np.flip(x, tuple(dims)),
    "roll": roll,
    "repeat": repeat,
    "tril": lambda x, diagonal=0: np.tril(x, diagonal),
    "triu": lambda x, diagonal=0: np.triu(x, diagonal),
    "gather": gather,
    "index_select": lambda x, dim, index: np.take(x, index, axis=dim),
    "index": lambda x, key: x[index_of(key)],
    "embedding": lambda weight, index, *_: weight[index],
    "scatter": scatter,
    "index_put": index_put,
    "_to_copy": cast,
    "clone": lambda x, **_: x.copy(),
    "copy": lambda x, new, *_: new,
    "fill": lambda x, value: value,
    "zero": lambda x: 0.0,
}
