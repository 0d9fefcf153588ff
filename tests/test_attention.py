"""
Attention: every backend against the specification, and the specification against what its clauses
say.
"""

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import (
    causal_mask,
    dropout,
    scaled_dot_product_attention,
    softmax,
)
from tests.support.random_arrays import close, normals

CHAPTER = "attention"

B, H, N, M, D, E, Q, K, A = 2, 3, 5, 7, 11, 13, 17, 19, 4


def draw(seed: int = 0) -> list[np.ndarray]:
    return normals((B, H, N, D), (B, H, M, D), (B, H, M, E), seed=seed)


def additive_draw() -> list[np.ndarray]:
    return normals((B, N, Q), (B, M, K), (B, M, E), (A, Q), (A, K), (A,))


def seen(*shape: int) -> np.ndarray:
    """Some keys for every row, none for the first row."""
    visible = np.random.default_rng(1).random(shape) < 0.6
    visible[..., 2] = True
    visible[..., 0, :] = False
    return visible


# softmax


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e300])
def test_weights_of_a_row_are_positive_and_sum_to_one(scale):
    weights = softmax(scale * normals((B, N, M))[0])
    assert (weights >= 0).all() and close(weights.sum(axis=-1), np.ones((B, N)))


def test_a_constant_on_a_whole_row_changes_nothing():
    score, shift = normals((B, N, M), (B, N, 1))
    assert close(softmax(score + 1e2 * shift), softmax(score))


def test_a_float_mask_multiplies_the_weights_by_its_exponential():
    score, mask = normals((N, M), (N, M))
    product = softmax(score) * np.exp(mask)
    assert close(softmax(score, mask), product / product.sum(axis=-1, keepdims=True))


def test_the_order_of_the_keys_does_not_matter():
    score, visible = normals((N, M))[0], seen(N, M)
    order = np.random.default_rng(2).permutation(M)
    assert close(softmax(score[:, order], visible[:, order]), softmax(score, visible)[:, order])


# dropout


def test_the_mean_over_many_draws_is_the_weight():
    keep = np.random.default_rng(3).random((20_000, 7)) < 0.7
    assert np.max(np.abs(dropout(np.ones((20_000, 7)), keep, 0.3).mean(axis=0) - 1)) < 0.03


# scaled dot product attention


def test_attention_is_softmax_of_the_scaled_products_times_the_values():
    query, key, value = draw()
    output = scaled_dot_product_attention(query, key, value, seen(N, M))
    for b, h in np.ndindex(B, H):
        weights = softmax(query[b, h] @ key[b, h].T / np.sqrt(D), seen(N, M))
        assert close(output[b, h], weights @ value[b, h])


def test_a_query_that_sees_one_key_gets_its_value():
    query, key, value = draw()
    output = scaled_dot_product_attention(query, key, value, np.arange(M) == 3)
    assert close(output, np.broadcast_to(value[:, :, 3:4], output.shape))


def test_the_output_lies_between_the_least_and_the_greatest_visible_value():
    query, key, value = draw()
    output = scaled_dot_product_attention(query, key, value)
    assert (output >= value.min(axis=2, keepdims=True) - 1e-12).all()
    assert (output <= value.max(axis=2, keepdims=True) + 1e-12).all()


def test_a_query_in_front_of_the_first_key_gives_zero():
    query, key, value = draw()
    output = scaled_dot_product_attention(key, query, value[:, :, :N], causal_mask(M, N))
    assert not output[:, :, : M - N].any() and output[:, :, M - N :].all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_hidden_keys_and_values_are_absent_as_if_they_had_been_cut_out(poison):
    query, key, value = draw()
    visible = np.array([True, False, True, True, False, False, True])
    key[:, :, ~visible], value[:, :, ~visible] = poison, poison
    wanted = scaled_dot_product_attention(query, key[:, :, visible], value[:, :, visible])
    with np.errstate(invalid="ignore"):  # inf - inf in the score of a key that nobody sees
        assert close(scaled_dot_product_attention(query, key, value, visible), wanted)
        assert close(
            scaled_dot_product_attention(query, key, value, np.where(visible, 0.0, -np.inf)), wanted
        )


AXES = [
    (M,),
    (1, M),
    (N, M),
    (N, 1),
    (H, 1, M),
    (1, N, M),
    (B, 1, 1, M),
    (B, 1, N, M),
    (1, H, N, 1),
    (B, H, N, M),
]


def test_dropout_acts_on_the_weights_after_the_softmax():
    query, key, value = draw()
    keep = np.random.default_rng(5).random((B, H, N, M)) < 0.5
    weights = softmax(query @ key.swapaxes(-1, -2) / np.sqrt(D), seen(N, M))
    wanted = (np.where(keep, weights, 0) / 0.25) @ value
    assert close(scaled_dot_product_attention(query, key, value, seen(N, M), keep, 0.75), wanted)


def test_queries_do_not_know_each_other():
    query, key, value = draw()
    alone = [scaled_dot_product_attention(query[:, :, i : i + 1], key, value) for i in range(N)]
    assert close(scaled_dot_product_attention(query, key, value), np.concatenate(alone, axis=2))


@pytest.mark.parametrize("form", ["none", "bool", "float"])
def test_pytorch_agrees_where_no_row_is_empty(form):
    from torch import from_numpy
    from torch.nn.functional import scaled_dot_product_attention as pytorch

    masks = {"none": None, "bool": causal_mask(N, M), "float": normals((N, M), seed=8)[0]}
    given = None if masks[form] is None else from_numpy(masks[form])
    wanted = pytorch(*map(from_numpy, draw()), attn_mask=given).numpy()
    assert close(scaled_dot_product_attention(*draw(), masks[form]), wanted)
