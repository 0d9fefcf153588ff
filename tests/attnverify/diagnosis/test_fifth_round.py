"""Kinds of mistakes that a fifth round of public reports had and no table."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.reference import layers
from tests.attnverify.diagnosis.test_two_mistakes import causes_of


def padded_norm(x: ndarray, weight: ndarray, bias: Any, eps: float, by_padded: bool) -> ndarray:
    """A norm in blocks of a power of two, without a mask behind its mean."""
    F = x.shape[-1]
    block = 1
    while block < F:
        block *= 2
    y = np.concatenate((x, np.zeros((*x.shape[:-1], block - F))), axis=-1)
    centred = y - y.sum(axis=-1, keepdims=True) / F
    variance = (centred**2).sum(axis=-1, keepdims=True) / (block if by_padded else F)
    own = (centred / np.sqrt(variance + eps))[..., :F] * weight
    return own if bias is None else own + bias


def layer_in_blocks(by_padded: bool, **inputs: Any) -> Any:
    norm = partial(padded_norm, by_padded=by_padded)
    feed = partial(layers.feed_forward, norm=norm)
    return in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, norm=norm, feed=feed)


def halves_alike(operation: str, leaves: tuple[str, ...], axis: int, **inputs: Any) -> Any:
    """The second half of the places of an axis is the first again."""
    own = dict(inputs["parameters"])
    for leaf in leaves:
        if own.get(leaf) is not None and own[leaf].shape[axis] % 2 == 0:
            half = own[leaf].shape[axis] // 2
            own[leaf] = np.take(own[leaf], [*range(half), *range(half)], axis=axis)
    return CATALOGUE[operation].reference(**inputs | {"parameters": own})


def through_norm(d_y: ndarray, x: ndarray, weight: ndarray, eps: float) -> tuple[ndarray, ndarray]:
    """The gradient by a norm's input, and what that one gives for its weight."""
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n, g = (x - x.mean(axis=-1, keepdims=True)) / deviation, d_y * weight
    slope = (g * n).mean(axis=-1, keepdims=True)
    d_x = (g - g.mean(axis=-1, keepdims=True) - n * slope) / deviation
    return d_x, (d_x * n).sum(axis=(0, 1))


def weight_gradient_of_a_buffer(d_output: ndarray, **inputs: Any) -> Any:
    """Gradients of a layer whose norms write that by their input over the one that arrives."""
    own, eps, went_in = inputs["parameters"], inputs.get("eps", 1e-5), []

    def norm(x: ndarray, *rest: Any) -> ndarray:
        went_in.append(x)
        return layers.layer_norm(x, *rest)

    feed = partial(layers.feed_forward, norm=norm)
    in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, norm=norm, feed=feed)
    new, d_y = {}, d_output
    if "ff_in.weight" in own:
        weight = own["ff_norm.weight"]
        d_y, new["ff_norm.weight"] = through_norm(d_y, went_in[1], weight, eps)
        first = own["layer_norm.weight"], own.get("layer_norm.bias"), eps
        inner = layers.linear(layers.layer_norm(went_in[0], *first), own, "ff_in")
        d_y = d_y + (d_y @ own["ff_out.weight"] * (inner > 0)) @ own["ff_in.weight"]
    weight = own["layer_norm.weight"]
    _, new["layer_norm.weight"] = through_norm(d_y, went_in[0], weight, eps)
    found = CATALOGUE["transformer_xl_layer_grad"].reference(**inputs, d_output=d_output)
    return tuple(part | new if isinstance(part, dict) else part for part in found)


def value_gradient_in_chunks(**inputs: Any) -> Any:
    """The gradient by value, stored in whole chunks of as many columns as divide 8 and D."""
    found = list(CATALOGUE["scaled_dot_product_attention_grad"].reference(**inputs))
    chunk = np.gcd(8, inputs["query"].shape[-1])
    E = found[2].shape[-1]
    found[2] = np.where(np.arange(E) < E // chunk * chunk, found[2], 0)
    return tuple(found)


KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "two, each minus the mean, summed into the variance": (
        "transformer_xl_layer",
        partial(layer_in_blocks, False),
    ),
    "two, summed into the variance: variance divided by the padded width": (
        "transformer_xl_layer",
        partial(layer_in_blocks, True),
    ),
    "ff_in: the first of 2 shards of its rows": (
        "transformer_xl_layer",
        partial(halves_alike, "transformer_xl_layer", ("ff_in.weight", "ff_in.bias"), 0),
    ),
    "out_proj: the first of 2 shards of its columns": (
        "multi_head_self_attention",
        partial(halves_alike, "multi_head_self_attention", ("out_proj.weight",), 1),
    ),
    "the gradient by a norm's weight from the gradient by its input": (
        "transformer_xl_layer_grad",
        weight_gradient_of_a_buffer,
    ),
    "the gradient by value, whose last columns are left 0 wherever it is wrong": (
        "scaled_dot_product_attention_grad",
        value_gradient_in_chunks,
    ),
}


@pytest.mark.parametrize("words", KINDS)
def test_a_kind_is_told(words: str) -> None:
    operation, function = KINDS[words]
    told = [cause.words for cause in causes_of(operation, function)]
    assert told
    assert all(words in each for each in told), told
