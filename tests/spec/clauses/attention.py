"""Clauses of softmax and dropout."""

from typing import Any

import numpy as np
from numpy import ndarray

from attnverify import spec
from tests.spec.clauses.registry import Function, answering, clause, given, refuses
from tests.support.random_arrays import close, normals

INF = np.inf


def quietly(function: Function) -> Function:
    """The function, where what is no number is meant."""

    def answer(**inputs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(**inputs)

    return answer


def plain_softmax(score: ndarray, mask: ndarray | None = None) -> ndarray:
    """Twin: a sum that hidden keys are in, with the number that hides them."""
    if mask is not None:
        score = score + (np.where(mask, 0.0, -INF) if mask.dtype == bool else mask)
    powers = np.exp(score - score.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def filled(number: float) -> Function:
    """Twin: hidden scores replaced by a number."""

    def softmax(score: ndarray, mask: ndarray | None = None) -> ndarray:
        visible = np.ones(score.shape, bool) if mask is None else np.broadcast_to(mask, score.shape)
        if mask is not None and mask.dtype != bool:
            score, visible = score + mask, visible > -INF
        return plain_softmax(np.where(visible & (score != -INF), score, number))

    return quietly(softmax)


SEEN = np.array([[True, False, True, True], [False, True, True, False], [True, True, True, False]])


@clause(
    "softmax",
    1,
    false=[
        given("softmax", lambda mask, **_: {"mask": ~mask if mask.dtype == bool else mask}),
        given("softmax", lambda mask, **_: {"mask": mask if mask.dtype == bool else -mask}),
        given("softmax", lambda mask, **_: {"mask": mask if mask.dtype == bool else None}),
        answering(
            "softmax", lambda w, score, mask: np.where(mask.ndim < 3, spec.softmax(score), w)
        ),
    ],
)
def a_boolean_mask_shows_and_a_float_one_is_added(softmax: Function) -> None:
    score, added = normals((2, 3, 4), (3, 4))
    powers = np.exp(score)
    for visible in (SEEN, SEEN[0], SEEN[:, 2:3], SEEN[None, :1]):
        shown = powers * visible
        total = shown.sum(axis=-1, keepdims=True)
        assert close(softmax(score=score, mask=visible), shown / np.where(total, total, 1))
    for mask in (added, added[0], added[:, :1], added[None]):
        shown = powers * np.exp(mask)
        assert close(softmax(score=score, mask=mask), shown / shown.sum(axis=-1, keepdims=True))


def no_lower_than(number: float, mask: Any) -> Any:
    """A float mask whose infinities are finite."""
    return mask if mask is None or mask.dtype == bool else np.maximum(mask, number)


@clause(
    "softmax",
    2,
    false=[
        quietly(plain_softmax),
        filled(-1e9),
        filled(0.0),
        filled(np.finfo(float).min),
        given("softmax", lambda score, **_: {"score": np.where(score < -1e8, -INF, score)}),
        given("softmax", lambda score, **_: {"score": np.maximum(score, -10.0)}),
        given("softmax", lambda mask=None, **_: {"mask": no_lower_than(-10.0, mask)}),
        given(
            "softmax",
            lambda mask=None, **_: {
                "mask": None if mask is None else np.where(mask < -1e8, -INF, mask)
            },
        ),
    ],
)
def a_hidden_key_weighs_nothing_and_no_finite_number_hides(softmax: Function) -> None:
    score = normals((3, 4))[0]
    weights = softmax(score=score, mask=SEEN)
    assert np.array_equal(weights > 0, SEEN) and not weights[~SEEN].any()
    assert np.array_equal(softmax(score=score, mask=np.where(SEEN, 0.0, -INF)), weights)
    assert np.array_equal(softmax(score=np.where(SEEN, score, -INF)), weights)
    for number in (np.nan, INF, -INF, 1e300):
        assert np.array_equal(softmax(score=np.where(SEEN, score, number), mask=SEEN), weights)
    even, last = np.full((1, 4), 0.25), np.arange(4) == 3
    for low in (-1e9, -1e300, np.finfo(float).min):
        assert np.array_equal(softmax(score=np.full((1, 4), low), mask=last), last[None])
        assert np.array_equal(softmax(score=np.full((1, 4), low)), even)
        assert np.array_equal(softmax(score=np.zeros((1, 4)), mask=np.full((1, 4), low)), even)


@clause("softmax", 3, false=[quietly(plain_softmax), filled(-1e9), filled(0.0)])
def a_row_without_keys_has_weights_of_zero(softmax: Function) -> None:
    score, none = normals((2, 4))[0], np.array([[False], [True]])
    for call in (
        {"score": score, "mask": none},
        {"score": score, "mask": np.where(none, 0.0, -INF)},
        {"score": np.where(none, score, -INF)},
    ):
        assert softmax(**call)[0].tolist() == [0.0] * 4
        assert close(softmax(**call)[1].sum(), 1.0)


def without_the_maximum(score: ndarray, mask: Any = None) -> ndarray:
    powers = np.exp(score)
    return powers / powers.sum(axis=-1, keepdims=True)


def beside_one(score: ndarray, mask: Any = None) -> ndarray:
    """Twin: a key more, of score 0 and without a value."""
    powers = np.exp(score)
    return powers / (1 + powers.sum(axis=-1, keepdims=True))


def all_for_infinity(score: ndarray, mask: Any = None) -> ndarray:
    """Twin: infinite scores share the weight."""
    top = np.any(score == INF, axis=-1, keepdims=True)
    return spec.softmax(np.where(top, np.where(score == INF, 0.0, -INF), score))


@clause(
    "softmax",
    4,
    false=[
        quietly(without_the_maximum),
        beside_one,
        quietly(plain_softmax),
        all_for_infinity,
    ],
)
def a_constant_changes_nothing_but_infinities_do(softmax: Function) -> None:
    score = np.array([[0.0, 3.0, 1.0], [2.0, -5.0, 0.0]])
    for constant in (-1000.0, 7.0, 1000.0):
        assert np.array_equal(softmax(score=score + constant), softmax(score=score))
    assert not softmax(score=score - INF).any()
    score[0, 1] = INF
    weights = quietly(softmax)(score=score)
    assert np.isnan(weights[0]).all() and close(weights[1].sum(), 1.0)


WEIGHTS = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]])
KEEP = np.array([[True, False, True], [False, True, True]])


def drawing_itself(weights: ndarray, keep: Any, p: float) -> ndarray:
    return spec.dropout(weights, np.random.default_rng(0).random(weights.shape) < 0.5, p)


@clause(
    "dropout",
    1,
    false=[
        drawing_itself,
        given("dropout", lambda keep, **_: {"keep": ~keep}),
        given("dropout", lambda keep, **_: {"keep": np.atleast_2d(keep)[:1]}),
    ],
)
def the_draw_is_an_argument_that_broadcasts(dropout: Function) -> None:
    for keep in (KEEP, KEEP[0], KEEP[:, :1], KEEP[:, 1:2]):
        found = dropout(weights=WEIGHTS, keep=keep, p=0.5)
        assert np.array_equal(found, np.where(keep, 2 * WEIGHTS, 0))


def as_share_that_is_kept(weights: ndarray, keep: Any, p: float) -> ndarray:
    return np.where(keep, weights / p, 0.0)


def summing_to_one(found: ndarray, **_: Any) -> ndarray:
    return found / found.sum(axis=-1, keepdims=True)


@clause(
    "dropout",
    2,
    false=[
        as_share_that_is_kept,
        answering("dropout", summing_to_one),
        given("dropout", lambda p, **_: {"p": float(np.fmin(float(p), 0.75))}),
        given("dropout", lambda p, **_: {"p": float(np.fmax(float(p), 0.0))}),
        given("dropout", lambda p, **_: {"p": float(p)}),
    ],
)
def p_is_the_share_that_is_dropped(dropout: Function) -> None:
    found = dropout(weights=WEIGHTS, keep=KEEP, p=0.75)
    assert found.tolist() == [[2.0, 0.0, 1.0], [0.0, 3.0, 0.5]]  # sums 3 and 3.5
    for p in (1.0, -0.1, 1.5, np.nan, INF, "0.5"):
        assert refuses(dropout, "p: wanted", weights=WEIGHTS, keep=KEEP, p=p)


@clause(
    "dropout",
    3,
    false=[
        given("dropout", lambda keep, p, **_: {"p": 0.0 if keep is None else p}),
        answering("dropout", lambda found, keep, **_: 0 * found if keep is None else found),
    ],
)
def without_a_draw_p_is_zero(dropout: Function) -> None:
    assert np.array_equal(dropout(weights=WEIGHTS, keep=None, p=0.0), WEIGHTS)
    assert refuses(dropout, "keep: wanted", weights=WEIGHTS, keep=None, p=0.25)


@clause(
    "dropout_grad",
    1,
    false=[
        answering("dropout_grad", lambda found, weights, **_: (found[0] * weights,)),
        answering("dropout_grad", lambda found, weights, **_: (np.where(weights > 0, *found, 0),)),
        given("dropout_grad", lambda keep, **_: {"keep": ~keep}),
    ],
)
def the_weights_play_no_part_in_the_gradient(gradient: Function) -> None:
    d_output = normals((2, 3))[0]
    for weights in (WEIGHTS, 0 * WEIGHTS, np.full((2, 3), np.nan), -WEIGHTS):
        (found,) = gradient(d_output=d_output, weights=weights, keep=KEEP, p=0.75)
        assert np.array_equal(found, np.where(KEEP, 4 * d_output, 0.0))


@clause(
    "dropout_grad",
    2,
    false=[
        quietly(lambda d_output, weights, keep, p: (d_output / (1 - p) * keep,)),
        answering("dropout_grad", lambda found, keep, **_: (np.where(keep, *found, INF),)),
    ],
)
def what_is_dropped_is_left_out_of_the_gradient(gradient: Function) -> None:
    d_output = np.where(KEEP, 1.0, 1e308)
    with np.errstate(over="ignore"):
        (found,) = gradient(d_output=d_output, weights=WEIGHTS, keep=KEEP, p=0.75)
    assert np.array_equal(found, np.where(KEEP, 4.0, 0.0))
