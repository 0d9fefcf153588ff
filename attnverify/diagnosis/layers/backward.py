"""
Backwards of layers that are wrong in one stage, as forwards that have the wrong derivative: a stage
is replaced by what it is at the inputs and, around them, by a linear map of what has changed.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, layers

Forward = Callable[[Inputs, str], Callable[[Inputs], Any]]
"""Of the inputs at which it is differentiated: the function whose derivative is taken."""
Derivative = Callable[..., ndarray]
"""Of what went into a stage, what came out, how what goes in has changed, and a norm's eps."""


class Linearised:
    """A stage with another derivative; what it was at the inputs is noted by the first calls."""

    def __init__(self, stage: Callable[..., ndarray], derivative: Derivative) -> None:
        self.stage, self.derivative = stage, derivative
        self.noted: list[tuple[ndarray, ndarray]] = []
        self.calls = -1

    def __call__(self, x: ndarray, *others: Any) -> ndarray:
        if self.calls < 0:
            self.noted.append((x, self.stage(x, *others)))
            return self.noted[-1][1]
        own, out = self.noted[self.calls % len(self.noted)]
        self.calls += 1
        return out + self.derivative(own, out, x - own, *others)


def normal(x: ndarray, eps: float) -> ndarray:
    return centred(x) / deviation(x, eps)


def deviation(x: ndarray, eps: float) -> ndarray:
    """By what a norm divides."""
    return np.sqrt(x.var(axis=-1, keepdims=True) + eps)


def centred(d: ndarray) -> ndarray:
    return d - d.mean(axis=-1, keepdims=True)


SOFTMAXES: dict[str, Derivative] = {
    "weights detached from the gradient: a constant, so that nothing reaches the scores": (
        lambda s, p, d: 0 * d
    ),
    "the softmax's gradient by its diagonal alone, p (1 - p)": lambda s, p, d: p * (1 - p) * d,
    "no row mean in the softmax's gradient": lambda s, p, d: p * d,
    "the softmax's gradient passed on as it arrives": lambda s, p, d: d,
}
NORMS: dict[str, Derivative] = {
    "a norm that is a constant for the gradient": lambda x, n, d, eps: 0 * d,
    "a norm's gradient passed on as it arrives": lambda x, n, d, eps: d,
    "a norm whose mean and deviation are constants for the gradient": (
        lambda x, n, d, eps: d / deviation(x, eps)
    ),
    "a norm whose deviation is a constant for the gradient": (
        lambda x, n, d, eps: centred(d) / deviation(x, eps)
    ),
    "a norm whose mean is a constant for the gradient": (
        lambda x, n, d, eps: (d - n * (n * d).mean(axis=-1, keepdims=True)) / deviation(x, eps)
    ),
    "a norm's gradient that subtracts the mean of d_y gamma twice": (
        lambda x, n, d, eps: with_means(2, 1, n, d / deviation(x, eps))
    ),
    "a norm's gradient that subtracts the mean of d_y gamma x_hat twice": (
        lambda x, n, d, eps: with_means(1, 2, n, d / deviation(x, eps))
    ),
    "a norm's gradient that adds the mean of d_y gamma x_hat": (
        lambda x, n, d, eps: with_means(1, -1, n, d / deviation(x, eps))
    ),
    "a norm's gradient that is not divided by the deviation": (
        lambda x, n, d, eps: with_means(1, 1, n, d)
    ),
    "a norm's gradient that is divided by the variance": (
        lambda x, n, d, eps: with_means(1, 1, n, d / deviation(x, eps) ** 2)
    ),
    "a norm's gradient whose means run over all rows together": (
        lambda x, n, d, eps: over_all_rows(n, d / deviation(x, eps), 0)
    ),
    "a norm's gradient whose means run over all rows of a batch entry": (
        lambda x, n, d, eps: over_all_rows(n, d / deviation(x, eps), 1)
    ),
}
SIZES = (4, 8, 16, 32, 64, 128)
PLACES: dict[str, Callable[[ndarray, int], ndarray]] = {
    "the last tile of {size} {places} alone": lambda i, size: i >= i[-1] // size * size,
    "the first tile of {size} {places} alone": lambda i, size: i < size,
}
"""Which places of an axis go into a sum that should run over all of them."""
OVERWRITTEN = (
    "the gradient by a norm's {leaves} from the gradient by its input, which was written over the "
    "one that arrives"
)
UNTRACKED = "a norm's weight and bias that get no gradient"
WHOLE_TILES = "but from whole tiles of {size} rows: the last, incomplete tile of rows left out"
MEANS = {
    "mean of d_y gamma": (True, False),
    "mean of d_y gamma x_hat": (False, True),
    "two means": (True, True),
}
"""Which of the two means of a norm's gradient sum some columns alone."""


def summed(places: str) -> Iterator[tuple[str, Callable[[ndarray], ndarray]]]:
    """Words of each sum over some of the places, and which these are."""
    for words, of in PLACES.items():
        for size in SIZES:
            yield words.format(size=size, places=places), in_tiles_of(size, of)


def in_tiles_of(size: int, of: Callable[[ndarray, int], ndarray]) -> Callable[[ndarray], ndarray]:
    return lambda i: of(i, size)


def with_means_of(
    kept: Callable[[ndarray], ndarray],
    which: tuple[bool, bool],
    x: ndarray,
    n: ndarray,
    d: ndarray,
    eps: float,
) -> ndarray:
    """The adjoint of a norm's gradient whose means sum some columns alone."""
    own = 1.0 * kept(np.arange(d.shape[-1]))
    of_sum, of_product = (own if part else 1.0 for part in which)
    return with_means(of_sum, of_product, n, d / deviation(x, eps))


def with_means(of_sum: Any, of_product: Any, n: ndarray, e: ndarray) -> ndarray:
    """A norm's gradient (or its adjoint) with so much of each of its two means."""
    means = e.mean(axis=-1, keepdims=True), (e * n).mean(axis=-1, keepdims=True)
    return np.asarray(e - of_sum * means[0] - of_product * n * means[1])


ACTIVATIONS: dict[str, Derivative] = {
    "the ReLU left out on the way back": lambda a, out, d: d,
    "no gradient through the feed-forward's first map": lambda a, out, d: 0 * d,
}


def over_all_rows(n: ndarray, e: ndarray, first: int) -> ndarray:
    every = tuple(range(first, n.ndim))
    return e - e.mean(axis=every, keepdims=True) - n * (e * n).mean(axis=every, keepdims=True)


def backward_mistakes(forward: Operation) -> Iterator[tuple[str, Forward]]:
    """Words and forward of each, for a layer or softmax that has the stage."""
    function = getattr(layers, forward.name, None) or getattr(attention, forward.name, None)
    if function is None or (forward.chapter != "layers" and forward.name != "softmax"):
        return
    norms = "norm" in inspect.signature(function).parameters or forward.name == "transformer_xl"
    for of_norm, words, make in ROWS:
        if norms or not of_norm:
            yield words, partial(with_stage, function, make)


def with_stage(
    function: Callable[..., Any],
    make: Callable[[], tuple[list[Linearised], dict[str, Any]]],
    given: Inputs,
    dtype: str,
) -> Callable[[Inputs], Any]:
    """Return the forward with linearised stages, noted at the inputs."""
    stages, hooks = make()
    function(**given, **hooks)

    def moved(inputs: Inputs) -> Any:
        for stage in stages:
            stage.calls = 0
        return function(**inputs, **hooks)

    return moved


def softmax_stage(derivative: Derivative) -> tuple[list[Linearised], dict[str, Any]]:
    stage = Linearised(attention.weigh, lambda s, p, d, _: derivative(s, p, np.nan_to_num(d)))
    return [stage], {"weigh": stage}


def norm_stage(derivative: Derivative) -> tuple[list[Linearised], dict[str, Any]]:
    stage = Linearised(normal, derivative)

    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        y = weight * stage(x, eps)
        return y if bias is None else y + bias

    return [stage], {"norm": norm, "feed": partial(layers.feed_forward, norm=norm)}


def ungained_stage() -> tuple[list[Linearised], dict[str, Any]]:
    """A norm whose weight does not scale what arrives at its input."""

    def derivative(own: ndarray, _: ndarray, d: ndarray, eps: float) -> ndarray:
        return with_means(1, 1, normal(own, eps), d / deviation(own, eps))

    still = Linearised(normal, lambda own, out, d, eps: 0 * d)
    stage = Linearised(lambda x, eps: np.zeros_like(x), derivative)

    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        y = weight * still(x, eps) + stage(x, eps)
        return y if bias is None else y + bias

    return [still, stage], {"norm": norm, "feed": partial(layers.feed_forward, norm=norm)}


def rows_stage(kept: Callable[[ndarray], ndarray]) -> tuple[list[Linearised], dict[str, Any]]:
    """Weight and bias of a norm, which are differentiated in some rows of [B N] alone."""

    def derivative(own: ndarray, out: ndarray, d: ndarray, shape: tuple[int, ...]) -> ndarray:
        rows = kept(np.arange(int(np.prod(shape[:-1])))).reshape(*shape[:-1], 1)
        return rows * d

    stage = Linearised(lambda leaf, shape: np.broadcast_to(leaf, shape), derivative)

    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        y = stage(weight, x.shape) * normal(x, eps)
        return y if bias is None else y + stage(bias, x.shape)

    return [stage], {"norm": norm, "feed": partial(layers.feed_forward, norm=norm)}


def overwritten_stage(has_bias: bool) -> tuple[list[Linearised], dict[str, Any]]:
    """A norm whose weight, and bias, change its output through its input's derivative."""

    def derivative(own: ndarray, _: ndarray, d: ndarray, x: ndarray, eps: float) -> ndarray:
        n = normal(x, eps)
        return own[0] * with_means(1, 1, n, (d[0] * n + has_bias * d[1]) / deviation(x, eps))

    held = Linearised(
        lambda leaves: leaves, lambda own, out, d: np.array([[0], [not has_bias]]) * d
    )
    stage = Linearised(lambda leaves, x, eps: np.zeros_like(x), derivative)

    def norm(x: ndarray, weight: ndarray, bias: Any, eps: float) -> ndarray:
        leaves = np.stack((weight, np.zeros_like(weight) if bias is None else bias))
        kept = held(leaves)
        return kept[0] * normal(x, eps) + kept[1] + stage(leaves, x, eps)

    return [held, stage], {"norm": norm, "feed": partial(layers.feed_forward, norm=norm)}


def activation_stage(derivative: Derivative) -> tuple[list[Linearised], dict[str, Any]]:
    stage = Linearised(lambda a: np.maximum(a, 0), derivative)
    return [stage], {"feed": partial(layers.feed_forward, activation=stage)}


ROWS: tuple[tuple[bool, str, Callable[[], Any]], ...] = (
    *((False, words, partial(softmax_stage, change)) for words, change in SOFTMAXES.items()),
    *((True, words, partial(norm_stage, change)) for words, change in NORMS.items()),
    *(
        (
            True,
            f"a norm's gradient whose {mean} of its columns sum{'' if all(which) else 's'} {said}",
            partial(norm_stage, partial(with_means_of, kept, which)),
        )
        for said, kept in summed("columns")
        for mean, which in MEANS.items()
    ),
    (True, "a norm's gradient without its weight gamma", ungained_stage),
    (True, UNTRACKED, partial(rows_stage, np.zeros_like)),
    *(  # of fewer rows none is summed: these words are dropped where none is
        (
            True,
            f"{UNTRACKED}, {WHOLE_TILES.format(size=size)}",
            partial(rows_stage, in_tiles_of(size, lambda i, W: i < len(i) // W * W)),
        )
        for size in SIZES
    ),
    *(
        (True, f"gradients by a norm's weight and bias that sum {said}", partial(rows_stage, kept))
        for said, kept in summed("rows")
    ),
    *(
        (True, OVERWRITTEN.format(leaves=leaves), partial(overwritten_stage, "bias" in leaves))
        for leaves in ("weight", "weight and bias")
    ),
    *((True, words, partial(activation_stage, change)) for words, change in ACTIVATIONS.items()),
)
"""Whether a layer must have a norm, the words, and what makes its stages."""
