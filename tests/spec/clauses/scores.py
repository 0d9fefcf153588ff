"""Clauses of the scores."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.spec.clauses.registry import Function, answering, clause, given
from tests.spec.derivatives import derivative
from tests.support.random_arrays import close, normals

Inputs = dict[str, Any]
HIDDEN_WEIGHTS = np.array([1.0, -2.0, 3.0])


def additive(*lead: int, N: int = 2, M: int = 3) -> Inputs:
    names = ("query", "key", "w_query", "w_key", "w_score")
    shapes = ((*lead, N, 4), (*lead, M, 2), (3, 4), (3, 2), (3,))
    return dict(zip(names, normals(*shapes), strict=True))


def hidden(query: ndarray, key: ndarray, w_query: ndarray, w_key: ndarray, **_: Any) -> ndarray:
    """What the tanh is given, [N M A]."""
    return (query @ w_query.T)[:, None] + (key @ w_key.T)[None, :]


def without_later_columns(query: ndarray, w_query: ndarray, **_: Any) -> Inputs:
    return {"query": query[..., :2], "w_query": w_query[:, :2]}


@clause(
    "additive_score",
    1,
    false=[
        given("additive_score", without_later_columns),
        given("additive_score", lambda w_key, **_: {"w_key": np.ones_like(w_key)}),
    ],
)
def a_query_of_four_columns_meets_a_key_of_two(score: Function) -> None:
    x = additive()
    assert close(score(**x), np.tanh(hidden(**x)) @ x["w_score"])


def saturated() -> Inputs:
    """Hidden units far from 0, all with the signs of their weights."""
    signs = np.sign(HIDDEN_WEIGHTS)[:, None]
    query = np.full((1, 1), 1e3)
    return {"query": query, "key": query, "w_query": signs, "w_key": signs}


@clause(
    "additive_score",
    2,
    false=[
        lambda w_score, **x: np.tanh(hidden(**x) @ w_score),
        lambda w_score, **x: hidden(**x) @ w_score,
    ],
)
def the_largest_score_is_the_sum_of_the_weights(score: Function) -> None:
    largest = score(**saturated(), w_score=HIDDEN_WEIGHTS)
    assert largest.tolist() == [[np.abs(HIDDEN_WEIGHTS).sum()]]
    wide = {name: 50 * x if name in ("query", "key") else x for name, x in additive().items()}
    assert (np.abs(score(**wide)) <= np.abs(wide["w_score"]).sum() * (1 + 1e-15)).all()


@clause(
    "additive_score",
    3,
    false=[
        answering("additive_score", lambda s, w_score, **_: s / np.sqrt(len(w_score))),
        answering("additive_score", lambda s, **_: s + 0.1),
        given("additive_score", lambda query, **_: {"query": query + 0.1}),
    ],
)
def nothing_is_added_and_nothing_divided(score: Function) -> None:
    x = saturated() | {"w_score": HIDDEN_WEIGHTS}
    assert not score(**x | {"query": 0 * x["query"], "key": 0 * x["key"]}).any()
    assert score(**x).item() == np.abs(HIDDEN_WEIGHTS).sum()


@clause(
    "additive_score",
    4,
    false=[
        answering("additive_score", lambda s, **_: s.squeeze()),
        answering("additive_score", lambda s, **_: s[..., None]),
    ],
)
def an_axis_of_size_one_stays(score: Function) -> None:
    for B, N, M in ((1, 1, 7), (1, 5, 1), (2, 1, 1), (1, 1, 1)):
        assert score(**additive(B, N=N, M=M)).shape == (B, N, M)


def heads() -> Inputs:
    query, key = normals((3, 2, 4), (3, 5, 4))
    return {"query": query, "key": key}


@clause(
    "scaled_dot_product_score",
    1,
    false=answering("scaled_dot_product_score", lambda s, query, **_: s / np.sqrt(len(query))),
)
def three_heads_of_four_columns_are_divided_by_two(score: Function) -> None:
    x = heads()
    assert close(score(**x), x["query"] @ x["key"].swapaxes(-1, -2) / 2)


@clause(
    "scaled_dot_product_score",
    2,
    false=[
        lambda query, key: query @ key.T,
        lambda query, key: query @ key.T / query.shape[-1],
        lambda query, key: query @ key.T / 8,
    ],
)
def scores_have_variance_one_at_every_width(score: Function) -> None:
    for width in (2, 31, 499):
        query, key = normals((211, width), (307, width))
        assert abs(np.var(score(query=query, key=key)) - 1) < 0.15


def averaged(found: Any, d_output: ndarray, **_: Any) -> Any:
    """Twin: means over the leading axes."""
    return *found[:2], *(x / np.prod(d_output.shape[:-2]) for x in found[2:])


@clause(
    "additive_score_grad",
    1,
    false=answering("additive_score_grad", averaged),
)
def gradients_of_the_weights_are_sums_over_all_leading_axes(gradient: Function) -> None:
    x = additive(2, 3)
    d_output = normals((2, 3, 2, 3), seed=1)[0]
    alone = [
        gradient(d_output=d_output[at], **x | {"query": x["query"][at], "key": x["key"][at]})
        for at in np.ndindex(2, 3)
    ]
    whole = gradient(d_output=d_output, **x)
    for place, name in enumerate(x):
        assert close(whole[place], derivative("additive_score", x, name, d_output))
        assert place < 2 or close(whole[place], sum(each[place] for each in alone))


def rescaled(by_query: float, by_key: float) -> Function:
    def change(found: Any, **_: Any) -> Any:
        return by_query * found[0], by_key * found[1]

    return answering("scaled_dot_product_score_grad", change)


@clause(
    "scaled_dot_product_score_grad",
    1,
    false=[rescaled(2.0, 1.0), rescaled(1.0, 2.0), rescaled(0.5, 1.0), rescaled(1.0, 0.5)],
)
def both_gradients_have_the_scale_once(gradient: Function) -> None:
    x, d_output = heads(), normals((3, 2, 5), seed=1)[0]
    found = gradient(d_output=d_output, **x)
    assert close(found[0], d_output @ x["key"] / 2)
    for by, name in zip(found, x, strict=True):
        assert close(by, derivative("scaled_dot_product_score", x, name, d_output))
