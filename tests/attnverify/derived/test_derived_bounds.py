"""Derived bounds: no legal evaluation exceeds them, exact arithmetic agrees, and they are tight."""

from collections.abc import Callable
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy import ndarray

from attnverify import bounds
from attnverify.catalogue.pytrees import leaves
from attnverify.derived import derive, derive_gradient
from attnverify.derived.budgets import keeping, sums
from attnverify.derived.legal.evaluations import climb, rounded
from attnverify.derived.sweeping.adjoints import by_slope
from attnverify.inputs.expand import expand
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.comparison import compare
from attnverify.precision import FORMATS, PRESETS, Format, wide
from tests.outside.catalogue import (
    additive_attention,
    additive_score,
    alibi_attention,
    scaled_dot_product_attention,
    scaled_dot_product_score,
    softmax,
    transformer_xl_attention,
    transformer_xl_score,
)
from tests.outside.draws import draw, floats, gradient_of
from tests.outside.specifications import OUTSIDE, layer_norm, rms_norm, rotary_by_position

np.seterr(all="ignore")

every = pytest.mark.parametrize("specification", OUTSIDE, ids=lambda f: f.__name__)


@every
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_legal_evaluation_exceeds_the_bound(
    specification: Callable[..., Any], dtype: str
) -> None:
    for seed, preset in enumerate(("eager", "fused", "sloppy", "stepwise")):
        found = derive(specification, draw(specification, dtype, seed))
        assert climb(found, PRESETS[preset](FORMATS[dtype]), 15, seed) <= 1


@every
def test_no_legal_evaluation_of_a_gradient_exceeds_the_bound(
    specification: Callable[..., Any],
) -> None:
    cases = (("float32", "eager"), ("bfloat16", "eager"), ("bfloat16", "stepwise"))
    for seed, (dtype, preset) in enumerate(cases):
        found, _ = gradient_of(specification, draw(specification, dtype, seed), dtype)
        assert climb(found, PRESETS[preset](FORMATS[dtype]), 10, seed) <= 1


def test_products_of_a_matrix_and_a_vector_may_be_stored_one_by_one() -> None:
    P, n = PRESETS["fused"](FORMATS["bfloat16"]), 14
    x, arriving = np.full((n, 2), 193 / 128), np.full(n, 129 / 128)
    found = derive_gradient(lambda x, w: x @ w, {"x": x, "w": np.ones(2)}, [arriving], ["w"])
    terms = rounded(x * arriving[:, None], P.joined)
    error = rounded(terms.sum(0), P.storage) - found.values[0]
    assert (np.abs(error) <= found.errors(P)[0]).all()


@every
def test_a_gradient_is_the_slope_of_its_specification(specification: Callable[..., Any]) -> None:
    given = draw(specification, "float32", 11)
    found, d_outputs = gradient_of(specification, given, "float32")
    rng = np.random.default_rng(5)
    for name, gradient in zip(floats(given), found.nodes, strict=True):
        step = 1e-6 * rng.standard_normal(given[name].shape)
        ends = [specification(**given | {name: given[name] + s}) for s in (step, -step)]
        rise = sum(
            np.sum(d * (up - down))
            for d, up, down in zip(d_outputs, *map(leaves, ends), strict=True)
        )
        slope = 2 * np.sum(gradient.value * step)
        assert rise == pytest.approx(slope, rel=1e-3, abs=1e-9)


# exact arithmetic: a toy format, each step rounded, against 60 digits

TOY = Format("toy", 6, -40, 1e12)


def rounded_layer_norm(x: ndarray, gain: ndarray, bias: ndarray, eps: float) -> ndarray:
    """Evaluate one row, every operation rounded to the toy format, from the left."""

    def total(terms: ndarray) -> ndarray:
        whole = np.zeros(())
        for term in terms:
            whole = rounded(whole + term, TOY)
        return whole

    n = len(x)
    mean = rounded(total(x) / n, TOY)
    c = rounded(x - mean, TOY)
    variance = rounded(total(rounded(c * c, TOY)) / n, TOY)
    root = rounded(np.sqrt(rounded(variance + eps, TOY)), TOY)
    return rounded(rounded(rounded(c / root, TOY) * gain, TOY) + bias, TOY)


def exact_layer_norm(x: ndarray, gain: ndarray, bias: ndarray, eps: float) -> ndarray:
    with mpmath.workdps(60):
        values = [mpmath.mpf(float(v)) for v in x]
        mean = mpmath.fsum(values) / len(values)
        variance = mpmath.fsum((v - mean) ** 2 for v in values) / len(values)
        root = mpmath.sqrt(variance + mpmath.mpf(eps))
        rows = zip(values, gain, bias, strict=True)
        return np.array([float((v - mean) / root * g + b) for v, g, b in rows])


@pytest.mark.parametrize("seed", range(20))
def test_a_norm_in_a_toy_format_keeps_within_the_bound_against_exact_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, gain, bias = (rounded(rng.standard_normal(n) + seed % 3, TOY) for n in (7, 7, 7))
    P = wide(TOY)
    P = type(P)(**(vars(P) | dict.fromkeys(("acc", "score", "softmax", "prob", "bias"), TOY)))
    P = type(P)(**(vars(P) | dict.fromkeys(("joined", "stage"), TOY)))
    found = derive(layer_norm, {"x": x[None], "gain": gain, "bias": bias, "eps": 2.0**-8})
    limit = found.errors(P)[0]
    row = (x, gain, bias, 2.0**-8)
    assert (np.abs(rounded_layer_norm(*row) - exact_layer_norm(*row)) <= limit).all()


# tightness: beside the bounds that were written by hand


BESIDE: dict[str, Callable[..., Any]] = {
    written.__name__: written
    for written in (
        *(scaled_dot_product_score, additive_score, transformer_xl_score, softmax),
        *(scaled_dot_product_attention, additive_attention, alibi_attention),
        transformer_xl_attention,
    )
}


def plain_inputs(operation: str, dtype: str) -> list[dict[str, Any]]:
    """Inputs of the catalogue's own generator, without masks and draws."""
    recipes = draw_recipes(operation, "any", 60, 1)
    kept = [r for r in recipes if not (r.mask or r.dropout or r.poison)][:10]
    return [{k: v for k, v in expand(r, dtype).items() if isinstance(v, ndarray)} for r in kept]


@pytest.mark.parametrize("operation", BESIDE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_derived_bounds_are_as_tight_as_those_written_by_hand(operation: str, dtype: str) -> None:
    P, ratios = PRESETS["fused"](FORMATS[dtype]), []
    for given in plain_inputs(operation, dtype):
        hand = bounds.error(operation, given, P)
        ratio = derive(BESIDE[operation], given).errors(P) / hand
        ratios.append(ratio[np.isfinite(hand) & (hand > 0)].ravel())
    ratio = np.concatenate(ratios)
    assert 0.5 <= np.median(ratio) <= 1.1
    assert np.percentile(ratio, 99) <= 2.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_large_attention_is_bounded_as_by_hand(dtype: str) -> None:
    P, rng = PRESETS["fused"](FORMATS[dtype]), np.random.default_rng(0)
    given = {name: rng.standard_normal((1, 1, 400, 64)) for name in ("query", "key", "value")}
    given = {name: x.astype("f").astype(float) for name, x in given.items()}
    hand = bounds.error("scaled_dot_product_attention", given, P)
    ratio = derive(scaled_dot_product_attention, given).errors(P) / hand
    assert 0.7 <= ratio.min() <= ratio.max() <= 1.1


def test_the_gradient_of_an_attention_is_bounded_as_by_hand() -> None:
    P, ratios = PRESETS["fused"](FORMATS["float32"]), []
    names = ["query", "key", "value"]
    for given in plain_inputs("scaled_dot_product_attention_grad", "float32"):
        d_output = given.pop("d_output")
        hand = bounds.error("scaled_dot_product_attention_grad", given | {"d_output": d_output}, P)
        found = derive_gradient(scaled_dot_product_attention, given, [d_output], names).errors(P)
        for own, limit in zip(found, hand, strict=False):
            ratios.append((own / limit)[np.isfinite(limit) & (limit > 0)].ravel())
    assert 0.5 <= np.median(np.concatenate(ratios)) <= 1.5


# sabotage: what these tests must notice


def test_a_sum_without_a_budget_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "accumulation_error", lambda n, P: 0.0)
    found = derive(lambda x: x.sum(axis=-1), {"x": np.random.default_rng(0).random((9, 300))})
    assert climb(found, PRESETS["wide"](FORMATS["float32"]), 10) > 1


def test_a_result_that_is_not_rounded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_kept_sum", lambda at, node, E: np.zeros(node.shape))
    found = derive(lambda x: x @ x.T, {"x": draw(rms_norm, "bfloat16", 4)["x"][0]})
    assert climb(found, PRESETS["sloppy"](FORMATS["bfloat16"]), 10) > 1


def with_its_normaliser(score: ndarray, sink: ndarray) -> tuple[ndarray, ndarray]:
    """Weights and the logarithm of their normaliser, which holds a sink."""
    top = np.max(score, -1, keepdims=True)
    e = np.exp(score - top)
    total = np.sum(e, -1, keepdims=True) + np.exp(sink - top)
    return e / total, (top + np.log(total))[..., 0]


def test_the_gradient_through_a_normaliser_that_weights_and_logarithm_share() -> None:
    rng = np.random.default_rng(0)
    score, sink, d_weights, d_lse = (rng.standard_normal(n) for n in ((3, 5), (1,), (3, 5), 3))
    given = {"score": score, "sink": sink}
    arriving = [d_weights, d_lse]
    d_score, d_sink = derive_gradient(with_its_normaliser, given, arriving, [*given]).values
    weights, lse = with_its_normaliser(**given)
    delta = (weights * d_weights).sum(-1)
    np.testing.assert_allclose(
        d_score, weights * (d_weights + (d_lse - delta)[:, None]), rtol=1e-12
    )
    np.testing.assert_allclose(d_sink, (np.exp(sink - lse) * (d_lse - delta)).sum(), rtol=1e-12)


def kept(x: ndarray) -> ndarray:
    top = x.max(-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[:, 0]


def flat(x: ndarray) -> ndarray:
    top = x.max(-1)
    return top + np.log(np.exp(x - top[:, None]).sum(-1))


def test_weights_made_again_by_a_logarithm_are_within_the_bound_whatever_axes_are_kept() -> None:
    """exp(x - lse) in float32, as PyTorch has it, errs by the rounding of lse = 90."""
    x = np.array([[89.0, 90.0, 35.25, -3.5], [90.3, 89.9, 90.1, 0.0]], np.float32)
    lse = flat(x.astype(float)).astype(np.float32)[:, None]
    own = np.exp((x - lse).astype(float))
    precision = PRESETS["stepwise"](FORMATS["float32"])
    limits = []
    for function in (kept, flat):
        derived = derive_gradient(function, {"x": x.astype(float)}, [np.ones(2)], ["x"])
        limits += [derived.errors(precision)[0]]
        *_, right = compare(own, derived.values[0], limits[-1]).arrays
        assert right.all()
    assert np.array_equal(*limits)


@pytest.mark.parametrize("preset", ["eager", "wide"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("N", "H"), [(13, 5), (64, 16), (2048, 4)])
def test_tables_that_a_specification_computes_err_as_those_written_by_hand(
    N: int, H: int, dtype: str, preset: str
) -> None:
    x, P = np.random.default_rng(N).standard_normal((2, N, 2 * H)), PRESETS[preset](FORMATS[dtype])
    found = derive(rotary_by_position, {"x": x}).errors(P)
    hand = bounds.BOUNDS["rotary_embedding"]
    by_hand = hand(x[:, None], np.tile(np.arange(N), (2, 1)), "halves", precision=P)[:, 0]
    ratio = found[:, 1:] / by_hand[:, 1:]
    assert 0.5 <= ratio.min() <= ratio.max() <= 2


def test_whole_numbers_and_halves_cost_nothing() -> None:
    def halved(x: ndarray) -> ndarray:
        return x * (np.arange(x.shape[0]) / 2)

    P, x = PRESETS["wide"](FORMATS["float32"]), np.ones(9)
    assert (derive(halved, {"x": x}).errors(P) <= np.arange(9) * P.acc.u).all()


def test_a_table_that_is_computed_has_the_errors_of_its_steps() -> None:
    """Steps over -1 ... 1 err by what they are added to, not by what is left near 0."""

    def added_steps(x: ndarray) -> ndarray:
        return x + np.linspace(-1.0, 1.0, len(x))

    P = PRESETS["wide"](FORMATS["float32"])
    assert derive(added_steps, {"x": np.zeros(9)}).errors(P)[4] > P.acc.u / 2


@pytest.mark.parametrize(
    "spread", [0.0, np.zeros(40), np.linspace(0, 2, 40)], ids=["0", "0s", "wide"]
)
def test_an_adjoint_times_a_slope_holds_every_product(spread: Any) -> None:
    rng = np.random.default_rng(0)
    gm, gr, middle = rng.normal(size=(3, 40)), abs(rng.normal(size=(3, 40))), rng.normal(size=40)
    gm[:, 0], gr[:, 0] = 0.0, 0.0
    for slope in (middle, np.where(np.arange(40) == 0, np.inf, middle)):
        m, r = by_slope(gm, gr, slope, spread)
        assert not m[:, 0].any() and not r[:, 0].any()
        for by, slope_by in product((-1, 1), repeat=2):
            found = (gm + by * gr)[:, 1:] * (slope + slope_by * spread)[1:]
            assert (np.abs(found - m[:, 1:]) <= r[:, 1:] * (1 + 1e-12)).all()


# a GPU's own quotient, 2 ulps from the rounded one


def off_by_two(x: ndarray) -> ndarray:
    """Numbers of float32, two steps from the rounded ones."""
    single = x.astype(np.float32)
    return np.nextafter(np.nextafter(single, np.float32(-np.inf)), np.float32(-np.inf)).astype(
        float
    )


def test_a_quotient_of_a_gpu_is_within_the_bound() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(1, 2, 4000).astype(np.float32).astype(float) for _ in range(2))
    P = PRESETS["stepwise"](FORMATS["float32"])
    found = derive(lambda a, b: a / b, {"a": a, "b": b})
    limit = found.errors(P)
    assert (np.abs(off_by_two(a / b) - a / b) <= limit).all()
    assert (np.abs((1 + 2.0**-20) * a / b - a / b) > limit).all()


@pytest.mark.parametrize("divisor", [2.0, 2.7])
def test_so_is_one_by_a_constant(divisor: float) -> None:
    x = np.random.default_rng(0).uniform(1, 4, 4000).astype(np.float32).astype(float)
    found = derive(lambda x, t=1.0: x / t, {"x": x, "t": divisor})
    limit = found.errors(PRESETS["stepwise"](FORMATS["float32"]))
    assert (np.abs(off_by_two(x / divisor) - x / divisor) <= limit).all()
    assert ((2.0**-20) * x / divisor > limit).all()


def test_so_is_the_slope_of_a_sigmoid_that_is_made_of_it() -> None:
    """As a x sigmoid(x) has its gradient in kernels: its output s, which is nearly 1, in 1 - s."""
    x = np.linspace(12, 20, 4001).astype(np.float32).astype(float)
    gated = {"x": x, "w": np.ones_like(x)}
    found = derive_gradient(lambda x, w: w * x / (1 + np.exp(-x)), gated, [np.ones_like(x)], ["x"])
    limit = found.errors(PRESETS["stepwise"](FORMATS["float32"]))[0]
    s = off_by_two(1 / (1 + np.exp(-x)).astype(np.float32).astype(float))
    assert (np.abs(x * s * (1 - s) + s - found.values[0]) <= limit).all()
    s = 1 / (1 + np.exp(-x)) - 2.0**-20
    assert (np.abs(x * s * (1 - s) + s - found.values[0]) > limit).all()
