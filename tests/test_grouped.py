"""
Attention as it is written today: every backend against the specification, and what holds of it
without one.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from attnverify import spec
from attnverify.differential import *
from attnverify.torch_impl import grouped_attention

CHAPTER = "grouped"


def attended(keys: slice) -> tuple[np.ndarray, np.ndarray]:
    """Plain attention over some of twelve keys, with its log-sum-exp; some rows see none."""
    rng = np.random.default_rng(3)
    score, value = rng.standard_normal((2, 3, 5, 12)), rng.standard_normal((2, 3, 12, 4))
    score[rng.random(score.shape) < 0.5] = -np.inf
    score[0, 0, 1] = -np.inf
    part = score[..., keys]
    with np.errstate(divide="ignore"):
        return spec.softmax(part) @ value[..., keys, :], np.log(np.exp(part).sum(-1))


@pytest.mark.parametrize("cuts", [(4, 8), (1, 2, 11), (6,)])
def test_parts_of_the_keys_merged_are_the_attention_over_all_of_them(cuts):
    edges = (0, *cuts, 12)
    parts = [attended(slice(a, b)) for a, b in pairwise(edges)]
    found = spec.merge_attention(*(np.stack(x) for x in zip(*parts, strict=True)))
    for one, whole in zip(found, attended(slice(None)), strict=True):
        np.testing.assert_allclose(one, whole, rtol=1e-12)


def heads(N: int = 3, M: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"query": (2, 4, N, 3), "key": (2, 2, M, 3), "value": (2, 2, M, 4)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("cuts", [(4, 8), (1, 2, 11)])
def test_shared_heads_over_parts_of_the_keys_merged_are_those_over_all(cuts):
    call, sink = heads(), np.array([0.5, -np.inf, 2.0, -1.0])
    edges = (0, *cuts, 12)
    parts = []
    for a, b in pairwise(edges):
        part = call | {name: call[name][:, :, a:b] for name in ("key", "value")}
        parts.append(spec.grouped_attention(**part, soft_cap=1.5, sink=None if a else sink))
    found = spec.merge_attention(*(np.stack(x) for x in zip(*parts, strict=True)))
    whole = spec.grouped_attention(**call, soft_cap=1.5, sink=sink)
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_an_offset_moved_with_padding_in_front_changes_nothing():
    call = heads()
    options = {"causal": True, "window": (3, None)}
    padded = call | {
        name: np.pad(call[name], ((0, 0), (0, 0), (2, 0), (0, 0)), constant_values=np.nan)
        for name in ("key", "value")
    }
    rows = np.zeros((2, 3), int), np.broadcast_to(np.where(np.arange(14) < 2, 1, 0), (2, 14))
    found = spec.grouped_attention(**padded, **options, segments=rows)
    for one, other in zip(found, spec.grouped_attention(**call, **options), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_hidden_score_of_no_number_has_no_slope_of_its_cap():
    call = heads()
    call["key"][0, 0, 2, :2] = np.inf, -np.inf  # its scores are NaN, or infinite
    seen = np.ones((3, 12), bool)
    seen[1, 2] = False
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in call.items()}
    found = grouped_attention(**tensors, mask=torch.from_numpy(seen), soft_cap=1.5)
    d_query = torch.autograd.grad(found[0].sum(), tensors["query"])[0]
    assert d_query[0, :2, 1].isfinite().all()
