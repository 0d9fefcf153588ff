"""
Mistakes inside a layer: what becomes of a row that sees no key, whose padding a head reads, which
residual the feed-forward is added to; and in its parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.operation import Operation
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.diagnosis.layers.parameters import parameter_mistakes
from attnverify.inputs.recipe import Inputs
from attnverify.reference import attention, layers

EMPTY_ROWS: dict[str, Callable[[int], float]] = {
    "NaN in rows that see no key": lambda M: np.nan,
    "rows that see no key averaging all values": lambda M: 1 / M,
}
"""The weight of each of M keys in such a row, by the words for it."""


def layer_mistakes(
    operation: Operation,
) -> Iterator[tuple[str, Callable[[Operation, Inputs], Any]]]:
    """Words and function of each, for a layer whose softmax is a stage of its own."""
    if operation.chapter == "layers" and not operation.is_gradient:
        for words, weight in EMPTY_ROWS.items():
            yield words, partial(with_empty_rows, weight)
        yield from parameter_mistakes(operation)
    if operation.name in ("multi_head_attention", "multi_head_self_attention"):
        for words, places in PADDING_ORDERS.items():
            yield words, partial(with_padding_of, places)
    if operation.name in ("transformer_xl_layer", "transformer_xl"):
        yield "a feed-forward whose residual is taken ahead of the first norm", with_early_residual
    if operation.name == "transformer_xl_layer":
        for words, parts in NORMED.items():
            yield words, partial(with_norm_ahead, parts)
    if operation.name.startswith("multi_head") and not operation.is_gradient:
        yield "weights that are averaged over the heads", with_mean_weights


PADDING_ORDERS: dict[str, Callable[[ndarray, int, int], ndarray]] = {
    "a padding mask repeated head by head where the batch comes first, so that heads read another "
    "batch entry's padding": lambda i, B, H: i % B,
    "a padding mask repeated entry by entry where the heads come first, so that heads read another "
    "batch entry's padding": lambda i, B, H: (i % H * B + i // H) // H,
}
"""Which batch entry's padding each of B times H scores reads, the batch first."""


def with_padding_of(
    places: Callable[[ndarray, int, int], ndarray], operation: Operation, inputs: Inputs
) -> Any:
    """Return the layer with the padding of other batch entries."""
    padding, H = inputs.get("key_padding_mask"), inputs["num_heads"]
    if padding is None:
        return operation.reference(**inputs)
    B, M = padding.shape
    read = padding[places(np.arange(B * H), B, H)].reshape(B, H, 1, M)

    def merge(attn_mask: Any, key_padding_mask: Any, H: int) -> Any:
        return np.where(read, -np.inf, attention.merge_masks(attn_mask, None, H))

    return in_stages(operation)(**inputs, merge_masks=merge)


def with_early_residual(operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with what goes into the first norm beside the feed-forward."""
    before: list[ndarray] = []

    def norm(y: ndarray, *others: Any) -> ndarray:
        before.append(y)
        return layers.layer_norm(y, *others)

    def feed(x: ndarray, parameters: Any, eps: float) -> ndarray:
        return layers.feed_forward(x, parameters, eps, residual=lambda _, y: before[-1] + y)

    return in_stages(operation)(**inputs, norm=norm, feed=feed)


NORMED = {
    "the norm ahead of the attention, x + attention(norm(x))": (0, 1, 2),
    "the norm ahead of the query alone, x + attention(norm(x), x, x)": (0,),
    "the norm ahead of query and key alone, x + attention(norm(x), norm(x), x)": (0, 1),
}
"""Which of query, key and value are projected from what is normed, not behind the attention."""


def with_norm_ahead(parts: Sequence[int], operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with its first norm in front: of the segment, and of its memory too."""
    own, function = inputs["parameters"], in_stages(operation)
    norm = own["layer_norm.weight"], own.get("layer_norm.bias"), inputs.get("eps", 1e-5)
    given = {name: inputs[name] for name in ("x", "mem") if inputs.get(name) is not None}
    normed = {name: layers.layer_norm(each, *norm) for name, each in given.items()}
    noted: list[list[ndarray]] = []

    def split(y: ndarray, H: int) -> list[ndarray]:
        noted.append(layers.three_parts(y, H))
        return [noted[0 if i in parts else -1][i] for i in range(3)]

    function(**inputs | normed, parts=split)
    return function(**inputs, parts=split, norm=lambda y, *_: y)


def with_mean_weights(operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with the mean of its weights in the place of each head's."""
    output, weights = operation.reference(**inputs)
    return output, np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)


def with_empty_rows(weight: Callable[[int], float], operation: Operation, inputs: Inputs) -> Any:
    """Return the layer with another weight in the rows that see no key."""

    def weigh(score: ndarray, visible: ndarray) -> ndarray:
        own = attention.weigh(score, visible)
        sees_some = visible.any(axis=-1, keepdims=True)
        return np.where(sees_some, own, weight(visible.shape[-1]))

    return in_stages(operation)(**inputs, weigh=weigh)
