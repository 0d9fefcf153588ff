"""Clauses of additive and scaled dot product attention."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.attention import INF, SEEN
from tests.spec.clauses.attention_gradients import NONE_AND_SOME, additive, scaled
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
A, S = "additive_attention", "scaled_dot_product_attention"


def bools(*shape: int) -> ndarray:
    return np.random.default_rng(4).random(shape) < 0.6


def broadcast_as(name: str, change: Function) -> Function:
    """Twin: a mask of fewer numbers than the scores is read in another way."""
    return given(name, lambda mask, **_: {"mask": change(mask)})


def broadcasts(attention: Function, x: Inputs, shape: tuple[int, ...], masks: Any) -> None:
    """Each mask is the mask of all the scores that it stands for."""
    for mask in masks:
        whole = np.broadcast_to(mask, shape).copy()
        assert np.array_equal(attention(**x, mask=mask), attention(**x, mask=whole))


def for_the_first_of_the_batch(mask: ndarray) -> ndarray:
    if mask.ndim < 3:
        return mask
    return np.concatenate([mask[:1], np.ones_like(mask[1:])])


def for_the_first_query(mask: ndarray) -> ndarray:
    """A mask of keys alone hides nothing from later queries."""
    return mask | (np.arange(3) > 0)[:, None] if mask.shape[-2:-1] in ((), (1,)) else mask


def of_one_head(mask: ndarray) -> ndarray:
    return mask[:, 0] if mask.ndim == 4 else mask


@clause(
    A,
    1,
    false=[
        broadcast_as(A, for_the_first_query),
        broadcast_as(A, lambda mask: mask & for_the_first_of_the_batch(bools(*mask.shape))),
        broadcast_as(A, of_one_head),
    ],
)
def the_mask_of_one_head_broadcasts_to_batch_queries_and_keys(attention: Function) -> None:
    named, others = [(3, 4), (2, 3, 4), (2, 1, 4)], [(4,), (3, 1), (1, 3, 4), (1, 1, 1)]
    broadcasts(attention, additive(), (2, 3, 4), [bools(*axes) for axes in named + others])
    assert refuses(attention, "mask: wanted", **additive(mask=bools(2, 1, 3, 4)))


def hidden_as_zero(name: str) -> Function:
    """Twin: a hidden value takes part with its weight of 0, so that NaN stays NaN."""

    def change(found: ndarray, value: ndarray, **_: Any) -> ndarray:
        return found + 0 * value.sum(axis=-2, keepdims=True)

    return answering(name, change)


def hidden_keys_as_zero(name: str) -> Function:
    def change(found: ndarray, key: ndarray, **_: Any) -> ndarray:
        return found + 0 * key.sum()

    return answering(name, change)


def mean_where_none_is_seen(name: str) -> Function:
    """Twin: a row that sees no key attends to all."""

    def change(found: ndarray, value: ndarray, mask: Any, **_: Any) -> ndarray:
        seen = np.array([True]) if mask is None or mask.dtype != bool else mask
        none = ~np.any(seen, axis=-1, keepdims=True)
        return np.where(none, value.mean(axis=-2, keepdims=True), found)

    return answering(name, change)


def hidden_keys_are_absent(attention: Function, x: Inputs) -> None:
    seen = np.array([True, False, True, False])
    cut = x | {"key": x["key"][..., seen, :], "value": x["value"][..., seen, :]}
    for number in (np.nan, 1e300):
        filled = x | {name: np.where(seen[:, None], x[name], number) for name in ("key", "value")}
        assert close(attention(**filled, mask=seen), attention(**cut, mask=None))
        added = np.where(seen, 0.0, -INF)
        assert close(attention(**filled, mask=added), attention(**cut, mask=None))
    found = attention(**x, mask=NONE_AND_SOME)
    assert not found[..., 0, :].any() and found[..., 1:, :].all()


def twins_of_absence(name: str) -> list[Function]:
    return [hidden_as_zero(name), hidden_keys_as_zero(name), mean_where_none_is_seen(name)]


@clause(A, 2, false=twins_of_absence(A))
def hidden_keys_are_absent_from_additive_attention(attention: Function) -> None:
    hidden_keys_are_absent(attention, additive())


@clause(S, 3, false=twins_of_absence(S))
def hidden_keys_are_absent_from_scaled_attention(attention: Function) -> None:
    hidden_keys_are_absent(attention, scaled())


@clause(
    S,
    1,
    false=[
        given(S, lambda mask, query, **_: {"mask": mask / np.sqrt(query.shape[-1])}),
        given(S, lambda mask, query, **_: {"mask": mask * np.sqrt(query.shape[-1])}),
    ],
)
def a_float_mask_is_not_scaled(attention: Function) -> None:
    x, mask = scaled(), normals((3, 4), seed=7)[0]
    score = x["query"] @ x["key"].swapaxes(-1, -2) / 2 + mask
    assert close(attention(**x, mask=mask), spec.softmax(score) @ x["value"])


def batch_read_as_heads(mask: ndarray) -> ndarray:
    """Twin: [B 1 N M] as [1 H N M]."""
    return mask.swapaxes(0, 1) if mask.ndim == 4 and 1 in mask.shape[:2] else mask


@clause(
    S,
    2,
    false=[
        broadcast_as(S, batch_read_as_heads),
        broadcast_as(S, for_the_first_query),
        given(S, lambda value, query, **_: {"value": value[..., : query.shape[-1]]}),
    ],
)
def a_mask_broadcasts_and_values_have_a_width_of_their_own(attention: Function) -> None:
    x = scaled()
    few = [(4,), (1, 4), (3, 4), (3, 1), (2, 1, 4), (1, 3, 4)]
    four = [(2, 1, 1, 4), (2, 1, 3, 4), (1, 2, 3, 1), (2, 2, 3, 4), (1, 1, 1, 1)]
    broadcasts(attention, x, (2, 2, 3, 4), [bools(*each) for each in few + four])
    for width in (1, 3, 4, 6):
        x["value"] = normals((2, 2, 4, width))[0]
        found = attention(**x, mask=SEEN)
        assert found.shape == (2, 2, 3, width)
        alone = [
            attention(**x | {"value": x["value"][..., e : e + 1]}, mask=SEEN) for e in range(width)
        ]
        assert close(found, np.concatenate(alone, axis=-1))


def causal_by_itself(query: ndarray, key: ndarray, mask: Any, **_: Any) -> Inputs:
    return {"mask": spec.causal_mask(query.shape[-2], key.shape[-2]) if mask is None else mask}


@clause(S, 4, false=given(S, causal_by_itself))
def without_a_mask_every_query_sees_every_key(attention: Function) -> None:
    x = scaled() | {"query": np.zeros((2, 2, 3, 4))}
    means = np.broadcast_to(x["value"].mean(axis=-2, keepdims=True), (2, 2, 3, 3))
    assert close(attention(**x, mask=None), means)
    causal = spec.causal_mask(3, 4)
    assert not close(attention(**x, mask=causal), means, within=1e-3)
