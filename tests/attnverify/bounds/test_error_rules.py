"""
The rules behind the bounds against exact arithmetic: toy formats, every order of a sum, every sign,
60 digits.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product
from random import Random
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy import ndarray

from attnverify.bounds import BOUNDS
from attnverify.bounds.alibi import bias_error
from attnverify.bounds.error_rules import accumulation_error, dot_error, rounding_error
from attnverify.bounds.feed_forward import relu_error, relu_gradient
from attnverify.bounds.gradients.layer_norm import saved_norm
from attnverify.bounds.softmax_rows import rows, weight_displacement
from attnverify.catalogue.operation import CATALOGUE
from attnverify.precision import REFERENCE, Format, Precision
from attnverify.spec import get_slopes
from tests.rounding_variants.cases import small_inputs

# the primitives, against exact arithmetic in toy formats

TOYS = (Format("toy2", 2, -3, 60.0), Format("toy3", 3, -4, 240.0), Format("e4m3", 4, -6, 240.0))


SMALL = (Format("p5", 5, -10, 1e4), Format("p6", 6, -10, 1e4), Format("p8", 8, -126, 3e38))


def fl(x: float, fmt: Format) -> float:
    """
    x rounded to the nearest number of a toy format, ties to even; exact, since float64 holds
    everything here.
    """
    if x == 0:
        return 0.0
    step = 2.0 ** (max(np.floor(np.log2(abs(x))), fmt.emin) - fmt.p + 1)
    return float(np.round(x / step) * step)


def toy_numbers(rng: np.random.Generator, fmt: Format, count: int) -> ndarray:
    return np.array(
        [fl(x, fmt) for x in rng.standard_normal(count) * 2.0 ** rng.integers(-4, 3, count)]
    )


def toy_precision(fmt: Format) -> Precision:
    return Precision(*[fmt] * 6, joined=fmt, stage=fmt, exp_ulps=0.5, block=1)


@pytest.mark.parametrize("fmt", TOYS, ids=lambda f: f.name)
def test_a_chain_of_roundings_stays_within_rounded(fmt: Format) -> None:
    x = np.random.default_rng(1).standard_normal(400) * 3
    once = np.array([fl(each, fmt) for each in x])
    third = np.array([fl(each / 3, fmt) for each in once])
    assert (np.abs(once - x) <= rounding_error(x, None, fmt)).all()
    assert (
        np.abs(third - x / 3) <= rounding_error(x / 3, rounding_error(x, None, fmt) / 3, fmt)
    ).all()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("fmt", TOYS, ids=lambda f: f.name)
def test_a_dot_product_in_any_order_stays_within_dot(fmt: Format, fused: bool) -> None:
    rng, P = np.random.default_rng(2), toy_precision(fmt)
    for _ in range(60):
        a, b = toy_numbers(rng, fmt, 4), toy_numbers(rng, fmt, 4)
        E = dot_error(a[None], None, b[:, None], None, P)[0, 0]
        assert all(
            abs(toy_dot(a, b, order, fmt, fused) - a @ b) <= E for order in permutations(range(4))
        )


def toy_dot(a: ndarray, b: ndarray, order: tuple[int, ...], fmt: Format, fused: bool) -> float:
    total = 0.0
    for i in order:
        total = fl(total + (a[i] * b[i] if fused else fl(a[i] * b[i], fmt)), fmt)
    return total


@pytest.mark.parametrize("fmt", SMALL, ids=lambda f: f.name)
def test_an_online_softmax_rounded_at_every_step_stays_within_the_bound(fmt: Format) -> None:
    rng, P = np.random.default_rng(3), toy_precision(fmt)
    for _ in range(100):
        n = int(rng.integers(1, 4))
        q, k, v = toy_numbers(rng, fmt, 1), toy_numbers(rng, fmt, n), toy_numbers(rng, fmt, n)
        arrays = {
            "query": q.reshape(1, 1, 1, 1),
            "key": k.reshape(1, 1, n, 1),
            "value": v.reshape(1, 1, n, 1),
        }
        exact = CATALOGUE["scaled_dot_product_attention"].specification(**arrays)
        E = BOUNDS["scaled_dot_product_attention"](**arrays, precision=P)
        assert (
            abs(toy_attention(float(q[0]), k, v, fmt) - exact[0, 0, 0, 0]) <= E[0, 0, 0, 0] < np.inf
        )


def toy_attention(q: float, k: ndarray, v: ndarray, fmt: Format) -> float:
    m, size, o = -np.inf, 0.0, 0.0
    for key, value in zip(k, v, strict=True):
        s = fl(q * key, fmt)
        new = max(m, s)
        w, decay = (
            fl(np.exp(fl(s - new, fmt)), fmt),
            fl(np.exp(fl(m - new, fmt)), fmt) if m > -np.inf else 0.0,
        )
        size, o, m = (
            fl(fl(size * decay, fmt) + w, fmt),
            fl(fl(o * decay, fmt) + fl(w * value, fmt), fmt),
            new,
        )
    return fl(o / size, fmt)


def test_accumulation_is_gamma_below_a_hundredth_and_n_u_above() -> None:
    P = toy_precision(TOYS[2])
    assert accumulation_error(8, P) == 8 / 16
    assert accumulation_error(3, REFERENCE) == 3 * 2.0**-53 / (1 - 3 * 2.0**-53)
    by_lanes, coarse = replace(REFERENCE, lanes=16), replace(REFERENCE, acc_unit=2.0**-40)
    assert (
        accumulation_error(64, by_lanes)
        < accumulation_error(64, REFERENCE)
        < accumulation_error(64, coarse)
    )


# the closed form of the softmax


def test_the_closed_form_is_the_worst_over_all_signs() -> None:
    rng = np.random.default_rng(4)
    for n, spread, most in product((1, 2, 3, 4, 6), (3, 40), (1e-6, 0.1, 3.0, 30.0, 200.0)):
        s, E = rng.standard_normal(n) * spread, rng.random(n) * most
        at = rows(s[None], None)
        moved = [
            softmax(s + np.array(signs) * E) - softmax(s) for signs in product((-1, 1), repeat=n)
        ]
        found, worst = weight_displacement(at, E[None])[0], np.abs(moved).max(0)
        assert np.all(np.abs(found - worst) <= 1e-8 * worst + 2.0**-53)


def softmax(s: ndarray) -> ndarray:
    w = np.exp(s - s.max())
    return np.asarray(w / w.sum())


# the float64 specification itself, against 60 digits

mpmath.mp.dps = 60
exp, tanh, sqrt = (np.frompyfunc(f, 1, 1) for f in (mpmath.exp, mpmath.tanh, mpmath.sqrt))


def exactly(x: Any) -> Any:
    """The same numbers as 60-digit ones."""
    if isinstance(x, dict):
        return {name: exactly(value) for name, value in x.items()}
    return np.frompyfunc(mpmath.mpf, 1, 1)(x) if isinstance(x, ndarray) and x.dtype == float else x


def T(x: ndarray) -> ndarray:
    return x.swapaxes(-1, -2)


def scaled(products: ndarray, D: int) -> ndarray:
    return products / mpmath.sqrt(D)


def dot_score(query: ndarray, key: ndarray) -> ndarray:
    return scaled(query @ T(key), query.shape[-1])


def additive_score(
    query: ndarray, key: ndarray, w_query: ndarray, w_key: ndarray, w_score: ndarray
) -> ndarray:
    return tanh((query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :]) @ w_score


def txl_score(query: ndarray, key: ndarray, position: ndarray, u: ndarray, v: ndarray) -> ndarray:
    place = (query + v[:, None]) @ T(position)
    N, M = place.shape[-2:]
    padded = np.concatenate([0 * place[..., :1], place], -1).reshape(*place.shape[:-2], -1)
    return scaled(
        (query + u[:, None]) @ T(key) + padded[..., N:].reshape(place.shape), query.shape[-1]
    )


def learned_score(query, key, key_pos_embeddings, key_pos_bias, query_pos_bias, align):  # type: ignore[no-untyped-def]
    N, M = query.shape[-2], key.shape[-2]
    index = (
        len(key_pos_bias) // 2
        + np.arange(M)
        - np.arange(N)[:, None]
        - (M - N if align == "end" else 0)
    )
    a = key_pos_embeddings[index].transpose(2, 0, 1, 3)
    products = (query[..., :, None, :] * (key[..., None, :, :] + a)).sum(-1)
    return scaled(
        products + query_pos_bias[:, None] @ T(key) + key_pos_bias[index].transpose(2, 0, 1),
        query.shape[-1],
    )


def softmax_of(score: ndarray, mask: ndarray | None = None) -> ndarray:
    mask = np.True_ if mask is None else mask
    shown = np.broadcast_to(
        mask if mask.dtype == bool else (mask > -np.inf).astype(bool), score.shape
    )
    shown = shown & (score > -mpmath.inf).astype(bool)
    score = np.where(shown, score, mpmath.mpf(0))
    added = score if mask.dtype == bool else score + np.where(shown, mask, 0)
    w = np.where(shown, exp(added - added.max(-1, keepdims=True)), mpmath.mpf(0))
    total = w.sum(-1, keepdims=True)
    return w / np.where(shown.any(-1, keepdims=True), total, 1)


def causal(visible: ndarray | None, score: ndarray) -> ndarray:
    N, M = score.shape[-2:]
    seen = np.tri(N, M, M - N, dtype=bool)
    return seen if visible is None else seen & visible


def dot_attention(query, key, value, mask=None, keep=None, p=0.0):  # type: ignore[no-untyped-def]
    w = softmax_of(dot_score(query, key), mask)
    return (w if keep is None else w * np.where(keep, 1 / (1 - mpmath.mpf(p)), 0)) @ value


def txl_attention(query, key, position, u, v, value, visible=None):  # type: ignore[no-untyped-def]
    score = txl_score(query, key, position, u, v)
    return softmax_of(score, causal(visible, score)) @ value


def alibi_attention(query, key, value, visible=None):  # type: ignore[no-untyped-def]
    score = dot_score(query, key)
    N, M = score.shape[-2:]
    score = score + exact_slopes(query.shape[1])[:, None, None] * (
        np.arange(M) - np.arange(N)[:, None] - (M - N)
    )
    return softmax_of(score, causal(visible, score)) @ value


def exact_slopes(n_heads: int) -> ndarray:
    n = 1 << (n_heads.bit_length() - 1)
    first = [mpmath.power(2, mpmath.mpf(-8 * h) / n) for h in range(1, n + 1)]
    return np.array(
        first
        + [mpmath.power(2, mpmath.mpf(-4 * h) / n) for h in range(1, 1 + 2 * (n_heads - n), 2)],
        object,
    )


def positions(M: int, F: int) -> ndarray:
    angle = [
        [mpmath.mpf(M - 1 - c) / mpmath.power(10000, mpmath.mpf(2 * f) / F) for f in range(F // 2)]
        for c in range(M)
    ]
    return np.array(
        [[mpmath.sin(x) for x in row] + [mpmath.cos(x) for x in row] for row in angle], object
    )


def dot_gradient(d_output, query, key, value, mask=None, keep=None, p=0.0):  # type: ignore[no-untyped-def]
    w = softmax_of(dot_score(query, key), mask)
    kept = 1 if keep is None else np.where(keep, 1 / (1 - mpmath.mpf(p)), 0)
    dP = d_output @ T(value) * kept
    dS = w * (dP - (w * dP).sum(-1, keepdims=True))
    x = scaled(dS, query.shape[-1])
    return x @ key, T(x) @ query, T(w * kept) @ d_output


EXACTLY: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_score": dot_score,
    "additive_score": additive_score,
    "transformer_xl_score": txl_score,
    "learned_relative_score": learned_score,
    "softmax": softmax_of,
    "scaled_dot_product_attention": dot_attention,
    "transformer_xl_attention": txl_attention,
    "alibi_attention": alibi_attention,
    "get_slopes": exact_slopes,
    "sinusoidal_positions": positions,
    "scaled_dot_product_attention_grad": dot_gradient,
}


@pytest.mark.parametrize("operation", EXACTLY)
def test_the_float64_specification_stays_within_its_own_bound(operation: str) -> None:
    for seed in range(12):
        inputs = small_inputs(Random(60 * seed), operation, "float64", most=120)
        with np.errstate(all="ignore"):
            expected, E = (
                CATALOGUE[operation].specification(**inputs),
                BOUNDS[operation](**inputs, precision=REFERENCE),
            )
        exact = EXACTLY[operation](**exactly(inputs))
        for a, b, limit in zip(
            *(x if isinstance(x, tuple) else (x,) for x in (expected, exact, E)), strict=False
        ):
            assert (np.abs(exactly(a) - b) <= limit).all()


def test_an_error_below_zero_does_not_pass_a_relu_and_one_beside_zero_does() -> None:
    a, E = np.array([-2.0, -0.5, 0.0, 0.5, 2.0]), np.ones(5)
    assert relu_error(a, E).tolist() == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert relu_error(a, 0 * E).tolist() == [0.0] * 5


def test_the_gradient_of_a_relu_has_both_branches_within_the_error_of_zero_alone() -> None:
    a, d = np.array([-2.0, -0.5, 0.0, 0.5, 2.0]), np.full(5, 3.0)
    value, error = relu_gradient(d, np.full(5, 0.25), a, np.ones(5))
    assert value.tolist() == [0.0, 0.0, 0.0, 3.0, 3.0]
    assert error.tolist() == [0.0, 3.25, 3.25, 3.25, 0.25]
    assert relu_gradient(d, 0 * d, a, 0 * a)[1].tolist() == [0.0] * 5


def test_a_distance_that_does_not_fit_the_biases_format_is_rounded_too() -> None:
    small = SMALL[2]
    slopes, distances = get_slopes(12), np.arange(4000.0)[None, None]
    rounded = np.vectorize(lambda x: fl(x, small))
    biases = rounded(rounded(slopes)[:, None, None] * rounded(distances))
    bound = bias_error(slopes, distances, replace(REFERENCE, bias=small))
    share = np.abs(biases - slopes[:, None, None] * distances) / np.where(bound > 0, bound, 1)
    assert 0.5 < share.max() <= 1
    fits = distances <= 2.0**small.p
    once = rounded(rounded(slopes)[:, None, None] * distances)
    assert (np.abs(once - slopes[:, None, None] * distances) <= bound)[..., fits[0, 0]].all()


def test_a_saved_norm_of_almost_exact_sums_is_almost_exact() -> None:
    z = np.random.default_rng(0).standard_normal((20, 16))
    saved = saved_norm(z, 1e-9 * np.abs(z), 1e-5, REFERENCE)
    n, E = saved.n
    assert (E < 1e-7).all() and (saved.rstd[1] < 1e-7 * saved.rstd[0]).all()
    moved = (z * (1 + 1e-9) - (z * (1 + 1e-9)).mean(-1, keepdims=True)) * saved.rstd[0]
    assert (np.abs(moved - n) <= E).all()
