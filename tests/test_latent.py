"""Attention to a latent: every backend against the specification, and laws without one."""

import numpy as np
import pytest

from attnverify import numpy_ref, spec
from attnverify.differential import *

CHAPTER = "latent"


def drawn(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    shapes = {"query": (2, 3, 5, 6), "query_rope": (2, 3, 5, 4)}
    shapes |= {"latent": (2, 7, 6), "key_rope": (2, 7, 4)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_heads_with_their_projections_absorbed_are_the_heads_themselves(column):
    rng, call = np.random.default_rng(3), drawn(1)
    nope = rng.standard_normal((2, 3, 5, 8))
    up_key, up_value = (rng.standard_normal((3, 8, 6)) for _ in range(2))
    absorbed = call | {"query": np.einsum("bhnd,hde->bhne", nope, up_key)}
    output, lse = column.latent_attention(**absorbed, scale=12**-0.5, causal=True)
    key = np.einsum("bme,hde->bhmd", call["latent"], up_key)
    rope = np.repeat(call["key_rope"][:, None], 3, axis=1)
    whole = spec.grouped_attention(
        np.concatenate([nope, call["query_rope"]], -1),
        np.concatenate([key, rope], -1),
        np.einsum("bme,hde->bhmd", call["latent"], up_value),
        causal=True,
    )
    found = np.einsum("bhne,hde->bhnd", output, up_value), lse
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_channels_turned_alike_change_nothing(column):
    call = drawn(2)
    turn, _ = np.linalg.qr(np.random.default_rng(4).standard_normal((4, 4)))
    turned = call | {name: call[name] @ turn for name in ("query_rope", "key_rope")}
    pairs = (column.latent_attention(**x, scale=0.5) for x in (call, turned))
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


@pytest.mark.parametrize("column", [spec, numpy_ref])
def test_parts_of_a_cache_that_are_merged_are_the_whole(column):
    call, edges = drawn(5), [(0, 3), (3, 3), (3, 7)]
    whole = column.latent_attention(**call, scale=0.25)
    parts = []
    for start, end in edges:
        cut = {name: call[name][:, start : end or 1] for name in ("latent", "key_rope")}
        lengths = np.full(2, end - start)
        cut = {name: x if x.shape[1] else call[name][:, :1] for name, x in cut.items()}
        parts.append(column.latent_attention(**call | cut, scale=0.25, lengths=lengths))
    found = spec.merge_attention(*(np.stack(x) for x in zip(*parts, strict=True)))
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)
