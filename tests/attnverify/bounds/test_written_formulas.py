"""
The formulas that the bounds' docstrings give, written again in plain numbers, element by element.

In a format of six bits with errors as large as the numbers themselves, where an error of an error
weighs as much as an error: what no implementation can reach is held to what was derived.
"""

from dataclasses import replace
from math import ceil, exp, log, log1p, sqrt

import numpy as np
import pytest
from numpy import ndarray

from attnverify.bounds.error_rules import dot_error, gamma, rounding_error
from attnverify.bounds.feed_forward import feed_forward, relu_gradient
from attnverify.bounds.gradients.feed_forward import feed_forward_gradient
from attnverify.bounds.gradients.layer_norm import layer_norm_gradient
from attnverify.bounds.gradients.scores import inner_error
from attnverify.bounds.gradients.steps import (
    backward,
    mean_gradient_error,
    recomputed_exponent_error,
)
from attnverify.bounds.layer_norm import layer_norm_error, variance_ratio
from attnverify.bounds.scores import additive, tanh_error
from attnverify.bounds.softmax_rows import exponent_error, rescaled_sum_error, rows
from attnverify.bounds.weighted_mean import mean_error, weighted_mean
from attnverify.precision import Format, Precision
from tests.support.roundings import count_roundings

COARSE = Format("p10", 10, -60, 1e30)
P = Precision(*[COARSE] * 6, joined=COARSE, stage=COARSE, exp_ulps=1.0, block=2)
U, ETA = COARSE.u, COARSE.eta
SAME = 64
"""Roundings of float64 between two ways to compute one formula."""


def draw(seed: int, *shapes: tuple[int, ...]) -> list[ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def acc(n: int) -> float:
    """The relative error of a sum of n products."""
    return n * U / (1 - n * U) if n * U < 0.01 else max(n * U, gamma(1, 0.01))


@pytest.mark.parametrize("variance", ["stable", "one_pass"])
@pytest.mark.parametrize("error", [0.003, 0.3])
def test_layer_norm_errs_as_its_formula_says(variance: str, error: float) -> None:
    z, d = draw(1, (5,))[0], 5
    E_z, within = error * np.abs(z[::-1]), replace(P, variance=variance)
    with np.errstate(all="ignore"):  # as all bounds are computed
        found = layer_norm_error(z, E_z, None, None, 0.1, within, COARSE)
    assert count_roundings(found, np.array(normalised_row(z, E_z, 0.1, within, d))) < SAME


def normalised_row(z: ndarray, E_z: ndarray, eps: float, within: Precision, d: int) -> list[float]:
    mu = sum(z) / d
    c = [x - mu for x in z]
    v = sum(x * x for x in c) / d
    bent = (2 * sum(abs(x) * e for x, e in zip(c, E_z, strict=True)) + sum(E_z * E_z)) / d
    low, mean_E, size = max(v - bent, 0.0), sum(E_z) / d, [abs(x) for x in z] + E_z
    off = float(variance_ratio(np.array([low]), size[None], eps, within)[0, 0])
    mean_size = sum(size) / d
    E_mu = acc(d + 1) * mean_size + ETA

    def grown(y: float, E_c: float, most_c: float, variance: float, ratio: float, k: int) -> float:
        rstd = 1 / sqrt(variance + eps)
        r = (1 / sqrt(1 - ratio) - 1 if ratio < 1 else float("inf")) + gamma(6, U)
        last = 4 * U * (size[k] + mean_size + E_mu)
        return float((E_c + E_mu + U * (most_c + E_mu) + last) * rstd * (1 + r) + y * r)

    errors = []
    for k, x in enumerate(c):
        y, most = x / sqrt(v + eps), abs(x) + E_z[k] + mean_E
        ratio = bent / (v + eps) + off * (1 + bent / (v + eps))
        near = grown(abs(y), E_z[k] + mean_E, most, v, ratio, k)
        far = abs(y) + sqrt(d - 1) + grown(sqrt(d - 1), 0.0, most, low, off, k)
        E = min(near, far)
        errors.append(E + gamma(1, U) * (abs(y) + E) + ETA)
    return errors


def drawn_rows(seed: int) -> tuple[ndarray, ndarray]:
    """Scores of one row, and errors of which the largest is that of the largest score."""
    (s,) = draw(seed, (7,))
    return 3 * s, np.abs(s) * (0.1 + (s == s.max()))


@pytest.mark.parametrize("seed", range(4))
def test_exponents_err_as_their_formula_says(seed: int) -> None:
    s, E_s = drawn_rows(seed)
    found = exponent_error(rows(s[None], None), E_s[None], P)[0]
    assert count_roundings(found, np.array(exponents_of_row(s, E_s))) < SAME


def exponents_of_row(s: ndarray, E_s: ndarray) -> list[float]:
    n, m = len(s), max(s)
    E_m = max(max(s + E_s) - m, m - max(s - E_s))  # whichever way the maximum moves
    blocks = (ceil(n / P.block) + 1) * -log1p(-2 * U * P.exp_ulps)
    return [
        e
        + gamma(3, U) * (abs(x - m) + e + E_m + max(abs(x), abs(m)) + max(e, E_m) + log(n))
        + blocks
        for x, e in zip(s, E_s, strict=True)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_exponents_made_again_err_as_their_formula_says(seed: int) -> None:
    s, E_s = drawn_rows(seed)
    at, E = rows(s[None], None), exponents_of_row(s, E_s)
    found = recomputed_exponent_error(at, np.array([E]), E_s[None], P)[0]
    weights = [exp(x - max(s)) for x in s]
    lse, n = max(s) + log(sum(weights)), len(s)
    up, down = (
        sum(w * exp(sign * e) for w, e in zip(weights, E, strict=True)) / sum(weights)
        for sign in (1, -1)
    )
    E_lse = max(log(up), -log(down)) + rescaled_sum_error(n, P)
    E_lse += gamma(4, U) * (1 + abs(lse) + log(n))
    wanted = [
        e + E_lse + gamma(3, U) * (abs(x - lse) + e_s + E_lse)
        for x, e, e_s in zip(s, E, E_s, strict=True)
    ]
    assert count_roundings(found, np.array(wanted)) < SAME


@pytest.mark.parametrize("size", [1.0, 1e-19])
def test_the_gradient_inside_of_tanh_errs_as_its_formula_says(size: float) -> None:
    query, key, w_query, w_key, w = draw(2, (1, 2, 3), (1, 2, 3), (4, 3), (4, 3), (4,))
    at, (dS,) = additive(query, key, w_query, w_key, w), draw(3, (1, 2, 2))
    dS, E_dS = size * dS, 0.5 * size * np.abs(dS)
    found, E_t = inner_error(at, dS, E_dS, P)[1], tanh_error(at, P)
    wanted = np.empty_like(found)
    for b, i, j, a in np.ndindex(found.shape):
        t, e = abs(at.t[b, i, j, a]), E_t[b, i, j, a]
        d, E_d, f = abs(dS[b, i, j]), E_dS[b, i, j], 1 - t * t
        E_f = 2 * t * e + e * e + gamma(2, U) * (1 + (t + e) ** 2)
        E = abs(w[a]) * (E_d * (f + E_f) + d * E_f + ETA)
        wanted[b, i, j, a] = E + gamma(2, U) * (d * abs(w[a]) * f + E) + 2 * ETA
    assert all(
        count_roundings(one, other) < SAME
        for one, other in zip(found.ravel()[:, None], wanted.ravel()[:, None], strict=True)
    )


@pytest.mark.parametrize("E_output", [0.0, 0.7])
def test_the_mean_gradient_of_a_row_errs_as_its_formula_says(E_output: float) -> None:
    s, v, dO = draw(4, (1, 3), (3, 2), (1, 2))
    at = backward(weighted_mean(rows(s, None), v), dO)
    E, E_dO = exponent_error(at.mix.rows, None, P), E_output * np.abs(dO[:, ::-1])
    found = mean_gradient_error(at, E, np.zeros_like(s), P, None, E_dO, COARSE)
    E_o = mean_error(at.mix, E, None, P, COARSE)[0]
    wanted = sum(
        abs(d) * e + e_d * (abs(o) + e) + acc(2) * (abs(d) + e_d) * (abs(o) + e)
        for d, e_d, o, e in zip(dO[0], E_dO[0], at.mix.o[0], E_o, strict=True)
    )
    assert count_roundings(found, np.array([[wanted]])) < SAME


@pytest.mark.parametrize("residual", [1.0, 1e3])
def test_the_gradient_of_a_feed_forward_begins_with_the_residual(residual: float) -> None:
    F, inner = 3, 4
    names = {"ff_in.weight": (inner, F), "ff_in.bias": (inner,), "ff_out.weight": (F, inner)}
    names |= {"ff_out.bias": (F,), "ff_norm.weight": (F,), "ff_norm.bias": (F,)}
    parameters = dict(zip(names, draw(5, *names.values()), strict=True))
    parameters["ff_in.weight"] = parameters["ff_in.weight"] / residual
    x, dy = draw(6, (1, 2, F), (1, 2, F))
    forward = feed_forward(x, 0.01 * np.abs(x), parameters, P)
    (dx, found), _ = feed_forward_gradient(forward, (dy, 0.1 * np.abs(dy)), parameters, 1e-3, P)
    gain, (w_in, _), (w_out, _) = parameters["ff_norm.weight"], *forward.net.values()
    (dz, E_dz), _ = layer_norm_gradient((dy, 0.1 * np.abs(dy)), *forward.z, gain, None, 1e-3, P)
    E_dr = rounding_error(dz @ w_out, dot_error(dz, E_dz, w_out, None, P), P.stage)
    da, E_da = relu_gradient(dz @ w_out, E_dr, *forward.a)
    E = rounding_error(da @ w_in, dot_error(da, E_da, w_in, None, P, inner + 1), P.stage)
    E = E + E_dz + acc(inner + 1) * (np.abs(dz) + E_dz)
    assert count_roundings(dx, dz + da @ w_in) < SAME
    assert count_roundings(found, E + gamma(1, U) * (np.abs(dx) + E) + ETA) < SAME
