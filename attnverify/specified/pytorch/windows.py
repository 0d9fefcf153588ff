"""Convolutions and pools: windows are moves, the rest are products, sums and maxima."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.lib.stride_tricks import sliding_window_view

from attnverify.derived.tracing.array import move
from attnverify.derived.tracing.node import refuse

SPACE, WINDOW = "xyz", "uvw"


def unfold(i: ndarray, dim: int, size: int, step: int) -> ndarray:
    """Move the windows of one axis to an axis of their own at the end."""
    if i.ndim == 0:
        return i[None]
    every: list[Any] = [slice(None)] * (i.ndim + 1)
    every[dim % i.ndim] = slice(None, None, step)
    return sliding_window_view(i, size, axis=dim)[tuple(every)]


def windows(x: Any, size: Sequence[int], step: Sequence[int], apart: Sequence[int]) -> Any:
    """Return the windows over the last axes, each window's axes behind all others."""
    ndim = len(size)

    def at(i: ndarray) -> ndarray:
        whole = [(n - 1) * d + 1 for n, d in zip(size, apart, strict=True)]
        found = sliding_window_view(i, whole, axis=tuple(range(-ndim, 0)))
        steps: Any = [slice(None, None, s) for s in step] + [slice(None, None, d) for d in apart]
        return np.asarray(found[(..., *steps)])

    return move(at, [x])


def padded(x: Any, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> Any:
    """Pad the last axes on both sides; by less than nothing, cut them."""
    pairs = list(zip(low, high, strict=True))
    lead = [(0, 0)] * (len(x.shape) - len(pairs))
    sizes = x.shape[len(lead) :]
    kept = [slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, sizes, strict=True)]
    wide = [(max(a, 0), max(b, 0)) for a, b in pairs]
    return np.pad(x[(..., *kept)], [*lead, *wide], constant_values=value)


def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Convolve x [B C ...] with weight [O C/groups ...], or its transpose [C O/groups ...]."""
    size = weight.shape[2:]
    if transposed:
        x = spread_out(x, stride)
        whole = [d * (n - 1) - p for d, n, p in zip(dilation, size, padding, strict=True)]
        x = padded(x, whole, [w + o for w, o in zip(whole, output_padding, strict=True)])
        weight, stride = turned(weight, groups), [1] * len(size)
    else:
        x = padded(x, padding, padding)
    B, C = x.shape[:2]
    x = np.reshape(x, (B, groups, C // groups, *x.shape[2:]))
    weight = np.reshape(weight, (groups, weight.shape[0] // groups, *weight.shape[1:]))
    space, window = SPACE[: len(size)], WINDOW[: len(size)]
    parts = windows(x, size, stride, dilation)
    found = np.einsum(f"bgc{space}{window},goc{window}->bgo{space}", parts, weight)
    found = np.reshape(found, (B, -1, *found.shape[3:]))
    return found if bias is None else found + np.reshape(bias, (-1, *(1,) * len(size)))


def spread_out(x: Any, stride: Sequence[int]) -> Any:
    """Put zeros between the elements of the last axes."""
    sizes = x.shape[-len(stride) :]
    wide = [(n - 1) * s + 1 for n, s in zip(sizes, stride, strict=True)]

    def at(i: ndarray) -> ndarray:
        places = np.full((*i.shape[: -len(stride)], *wide), -1)
        apart: Any = (..., *(slice(None, None, s) for s in stride))
        places[apart] = i
        return places

    return move(at, [x])


def turned(weight: Any, groups: int) -> Any:
    """Turn a window [C O/groups ...] round and exchange its channels: [O C/groups ...]."""
    C, each, *size = weight.shape
    parts = np.reshape(
        np.flip(weight, tuple(range(2, 2 + len(size)))), (groups, C // groups, each, *size)
    )
    return np.reshape(np.swapaxes(parts, 1, 2), (groups * each, C // groups, *size))


def _each(value: Any, ndim: int) -> list[int]:
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    return given * ndim if len(given) == 1 else given


def max_pool(
    x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    """Take the maximum of each window; where it stood is not followed."""
    if ceil:
        raise refuse("a pool with ceil_mode")
    ndim = len(size)
    low = _each(padding, ndim)
    parts = windows(
        padded(x, low, low, -np.inf), size, _each(stride or size, ndim), _each(dilation, ndim)
    )
    return np.max(parts, axis=tuple(range(-ndim, 0))), None


def average_pool(
    x: Any,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    with_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    """Take the mean of each window; the padding counts unless it is told not to."""
    ndim = len(size)
    low = _each(padding, ndim)
    if ceil:
        raise refuse("a pool with ceil_mode")
    step, one = _each(stride or size, ndim), [1] * ndim
    axes = tuple(range(-ndim, 0))
    parts = np.sum(windows(padded(x, low, low), size, step, one), axis=axes)
    if divisor or with_padding:
        return parts / float(divisor or prod(size))
    ones = np.pad(
        np.ones(x.shape), [*[(0, 0)] * (len(x.shape) - ndim), *zip(low, low, strict=True)]
    )
    every: Any = (..., *(slice(None, None, s) for s in step), *[slice(None)] * ndim)
    return parts / sliding_window_view(ones, size, axis=axes)[every].sum(axes)
