"""
Scores: every backend against the specification, and the specification against what its clauses say.
"""

import math

import numpy as np
import pytest

from attnverify.differential import *
from attnverify.spec import additive_score, scaled_dot_product_score
from tests.support.random_arrays import close, normals

CHAPTER = "scores"

N, M, D, Q, K, A = 5, 7, 11, 3, 13, 2


def additive_draw(*lead: int) -> list[np.ndarray]:
    return normals((*lead, N, Q), (*lead, M, K), (A, Q), (A, K), (A,))


def test_the_scaled_score_is_the_inner_product_over_the_root_of_the_width():
    query, key = normals((N, D), (M, D))
    score = scaled_dot_product_score(query, key)
    for i, j in np.ndindex(N, M):
        assert math.isclose(score[i, j], math.fsum(query[i] * key[j]) / math.sqrt(D), rel_tol=1e-12)


def test_query_and_key_can_change_places_in_the_scaled_score():
    query, key = normals((N, D), (M, D))
    assert close(scaled_dot_product_score(query, key).T, scaled_dot_product_score(key, query))


def test_the_additive_score_is_a_hidden_layer_that_looks_at_one_pair():
    query, key, w_query, w_key, w_score = additive_draw()
    score = additive_score(query, key, w_query, w_key, w_score)
    for i, j in np.ndindex(N, M):
        hidden = [
            math.tanh(math.fsum(w_query[a] * query[i]) + math.fsum(w_key[a] * key[j]))
            for a in range(A)
        ]
        assert abs(score[i, j] - math.fsum(w_score * hidden)) < 1e-12


def test_the_additive_score_is_odd_for_it_has_no_bias():
    query, key, *weights = additive_draw()
    assert close(additive_score(-query, -key, *weights), -additive_score(query, key, *weights))


def test_a_hidden_width_of_one_is_a_width_like_any_other():
    query, key, w_query, w_key, w_score = normals((N, Q), (M, K), (1, Q), (1, K), (1,))
    assert close(
        additive_score(query, key, w_query, w_key, w_score),
        w_score * np.tanh(query @ w_query.T + (key @ w_key.T).T),
    )


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
def test_leading_axes_are_scored_each_on_their_own(lead):
    query, key, *weights = additive_draw(*lead)
    additive, scaled = additive_score(query, key, *weights), scaled_dot_product_score(query, query)
    for at in np.ndindex(lead):
        assert close(additive[at], additive_score(query[at], key[at], *weights))
        assert close(scaled[at], scaled_dot_product_score(query[at], query[at]))
