"""Clauses of the gradients of softmax and of the attentions with a mask."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.spec.clauses.attention import INF, SEEN
from tests.spec.clauses.registry import Function, answering, clause, given
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
NONE_AND_SOME = np.array([[False] * 4, [True, False, True, True], [True, True, False, True]])
FLOAT = np.where(NONE_AND_SOME, normals((3, 4), seed=3)[0], -INF)


def hidden_gets(number: float) -> Function:
    """Twin: a hidden key's score has a gradient."""

    def change(found: Any, mask: ndarray, **_: Any) -> Any:
        return np.where(mask, found[0], number), *found[1:]

    return answering("softmax_grad", change)


@clause("softmax_grad", 1, false=[hidden_gets(1e-30), hidden_gets(np.nan)])
def a_hidden_score_has_a_gradient_of_zero(gradient: Function) -> None:
    d_output, score = normals((3, 4), (3, 4))
    (clean,) = gradient(d_output=d_output, score=score, mask=NONE_AND_SOME)
    score[~NONE_AND_SOME] = np.nan
    (found,) = gradient(d_output=d_output, score=score, mask=NONE_AND_SOME)
    assert np.array_equal(found, clean) and found[NONE_AND_SOME].all()
    assert not found[~NONE_AND_SOME].any()


def with_hidden_weights(found: Any, d_output: ndarray, score: ndarray, mask: ndarray) -> Any:
    """Twin: what arrives at a hidden weight is in the mean of its row."""
    hidden = np.where(mask, 0.0, d_output).sum(axis=-1, keepdims=True)
    return (np.where(mask, found[0] - hidden, 0.0),)


@clause("softmax_grad", 2, false=answering("softmax_grad", with_hidden_weights))
def what_arrives_at_a_hidden_weight_goes_nowhere(gradient: Function) -> None:
    d_output, score = normals((3, 4), (3, 4))
    (clean,) = gradient(d_output=d_output, score=score, mask=SEEN)
    for number in (1e3, np.nan, INF):
        arriving = np.where(SEEN, d_output, number)
        assert np.array_equal(gradient(d_output=arriving, score=score, mask=SEEN)[0], clean)


def shared_masks() -> list[ndarray]:
    """Masks that are broadcast along a leading axis, along one of size 1, along both, along all."""
    return [FLOAT, FLOAT[1], FLOAT[1:2], normals((3, 1), seed=3)[0], np.array(0.5)]


def averaged(name: str) -> Function:
    """Twin: the mean over what the mask is shared by."""

    def change(found: Any, **inputs: Any) -> Any:
        return *found[:-1], found[-1] * inputs["mask"].size / inputs["d_output"].size

    return answering(name, change)


def not_summed(name: str) -> Function:
    """Twin: the gradient of a mask of the score's shape."""

    def change(found: Any, **inputs: Any) -> Any:
        return *found[:-1], np.broadcast_to(found[-1], (2, 2, 3, 4))

    return answering(name, change)


@clause("softmax_grad", 3, false=[averaged("softmax_grad"), not_summed("softmax_grad")])
def the_gradient_of_a_shared_mask_is_the_sum(gradient: Function) -> None:
    d_output, score = normals((2, 3, 4), (2, 3, 4))
    for mask in shared_masks():
        x = {"score": score, "mask": mask}
        d_score, d_mask = gradient(d_output=d_output, **x)
        wanted = d_score.sum(0)
        axes = {(3, 4): (), (4,): (0,), (1, 4): (0,), (3, 1): (1,), (): (0, 1)}[mask.shape]
        assert close(d_mask, wanted.sum(axes).reshape(mask.shape))
        assert close(d_mask, derivative("softmax", x, "mask", d_output))


def additive(**options: Any) -> Inputs:
    names = ("query", "key", "value", "w_query", "w_key", "w_score")
    shapes = ((2, 3, 3), (2, 4, 2), (2, 4, 2), (5, 3), (5, 2), (5,))
    return dict(zip(names, normals(*shapes), strict=True)) | options


def scaled(**options: Any) -> Inputs:
    names = ("query", "key", "value")
    shapes = ((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 3))
    return dict(zip(names, normals(*shapes), strict=True)) | options


PADDED = np.array([True, False, True, False])


def poisoned(x: Inputs) -> Inputs:
    """NaN in the keys and values that no query sees."""
    hidden = ~PADDED[:, None]
    return x | {name: np.where(hidden, np.nan, x[name]) for name in ("key", "value")}


def adding(name: str, places: dict[int, Any]) -> Function:
    """Twin: something more in these outputs, where a key is hidden."""

    def change(found: Any, **_: Any) -> Any:
        return (
            *(
                x + np.where(PADDED[:, None], 0.0, places[at]) if at in places else x
                for at, x in enumerate(found)
            ),
        )

    return answering(name, change)


def leaking(name: str) -> Function:
    """Twin: a key that is no number is in the sums of the queries."""

    def change(found: Any, key: ndarray, **_: Any) -> Any:
        return found[0] + 0 * key.sum(), *found[1:]

    return answering(name, change)


def sums_are_over_visible_pairs(gradient: Function, name: str, x: Inputs) -> None:
    for mask in (NONE_AND_SOME, PADDED):
        call = x | {"mask": mask}
        d_output = normals((*x["query"].shape[:-1], x["value"].shape[-1]), seed=2)[0]
        found = gradient(d_output=d_output, **call)
        for by, argument in zip(found, x, strict=True):
            assert close(by, derivative(name, call, argument, d_output))
    absent = gradient(d_output=d_output, **poisoned(call))
    assert all(np.array_equal(*pair) for pair in zip(absent, found, strict=True))
    assert not absent[1][..., ~PADDED, :].any() and not absent[2][..., ~PADDED, :].any()


@clause(
    "additive_attention_grad",
    1,
    false=[
        adding("additive_attention_grad", {1: 1e-30}),
        adding("additive_attention_grad", {2: 1e-30}),
        leaking("additive_attention_grad"),
        given("additive_attention_grad", lambda **_: {"mask": None}),
    ],
)
def sums_of_the_additive_gradient_are_over_visible_pairs(gradient: Function) -> None:
    sums_are_over_visible_pairs(gradient, "additive_attention", additive())


@clause(
    "scaled_dot_product_attention_grad",
    1,
    false=[
        adding("scaled_dot_product_attention_grad", {1: 1e-30}),
        adding("scaled_dot_product_attention_grad", {2: 1e-30}),
        leaking("scaled_dot_product_attention_grad"),
    ],
)
def hidden_keys_and_values_have_gradients_of_zero(gradient: Function) -> None:
    sums_are_over_visible_pairs(gradient, "scaled_dot_product_attention", scaled())


def something_at_infinity(found: Any, mask: ndarray, **_: Any) -> Any:
    return *found[:-1], np.where(mask == -INF, 1e-30, found[-1])


@clause(
    "scaled_dot_product_attention_grad",
    1,
    false=answering("scaled_dot_product_attention_grad", something_at_infinity),
)
def an_infinite_entry_of_the_mask_has_a_gradient_of_zero(gradient: Function) -> None:
    d_output = normals((2, 2, 3, 3), seed=2)[0]
    d_mask = gradient(d_output=d_output, **scaled(mask=FLOAT))[3]
    assert not d_mask[FLOAT == -INF].any() and d_mask[FLOAT > -INF].all()


def mask_gradient_is_the_derivative(gradient: Function, name: str, x: Inputs) -> None:
    d_output = normals((*x["query"].shape[:-1], x["value"].shape[-1]), seed=2)[0]
    full = normals((*x["query"].shape[:-1], 4), seed=3)[0]
    for mask in (*shared_masks(), full, full[:, :1]):
        call = x | {"mask": mask}
        found = gradient(d_output=d_output, **call)[-1]
        assert close(found, derivative(name, call, "mask", d_output))


ADDITIVE = "additive_attention_grad"
SCALED = "scaled_dot_product_attention_grad"


def constant(name: str) -> Function:
    """Twin: the mask as a constant."""
    return answering(name, lambda found, **_: (*found[:-1], 0 * found[-1]))


@clause(ADDITIVE, 2, false=[averaged(ADDITIVE), not_summed(ADDITIVE), constant(ADDITIVE)])
def the_gradient_of_an_additive_mask_is_summed(gradient: Function) -> None:
    mask_gradient_is_the_derivative(gradient, "additive_attention", additive())


@clause(SCALED, 2, false=[averaged(SCALED), not_summed(SCALED), constant(SCALED)])
def the_gradient_of_a_shared_attention_mask_is_summed(gradient: Function) -> None:
    mask_gradient_is_the_derivative(gradient, "scaled_dot_product_attention", scaled())
