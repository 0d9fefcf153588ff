"""
Bounds of the catalogue that are derived from the specification's lines: no legal evaluation exceeds
them, and some comes near.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnverify import spec
from attnverify.bounds import error
from attnverify.bounds.error_rules import accumulation_error
from attnverify.catalogue.packing import apart, heads_first
from attnverify.catalogue.pytrees import leaves
from attnverify.derived import Derived, derive, today
from attnverify.derived.budgets import rows
from attnverify.derived.legal.evaluations import climb, rounded
from attnverify.derived.sweeping import products, sweep
from attnverify.precision import FORMATS, PRESETS, TF32, Precision
from tests.rounding_variants.cases import small_inputs

TRACES: dict[str, Callable[[today.Inputs], Derived]] = {
    "grouped_attention": today.attention,
    "grouped_attention_grad": today.attention_grad,
    "latent_attention": lambda inputs: today.attention(heads_first(inputs)),
    "latent_attention_grad": lambda inputs: today.attention_grad(heads_first(inputs)),
    "selected_attention": today.attention,
    "selected_attention_grad": today.attention_grad,
    "packed_attention": lambda inputs: today.attention(heads_first(inputs)),
    "packed_attention_grad": lambda inputs: today.attention_grad(heads_first(inputs)),
    "paged_attention": lambda inputs: today.attention(heads_first(dict(apart(inputs)))),
}
DRAWS = 12
"""Small calls of each operation and dtype, every one with options of its own."""

QKV = ("query", "key", "value")

np.seterr(all="ignore")


def declared(dtype: str, seed: int) -> Precision:
    """One arithmetic after the other; of every second in float32 the operands are TF32."""
    precision = PRESETS[("eager", "fused", "wide")[seed % 3]](FORMATS[dtype])
    return replace(precision, operand=TF32) if dtype == "float32" and seed % 2 else precision


def test_every_bound_that_is_derived_is_searched() -> None:
    assert TRACES.keys() == today.BOUNDS.keys()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operation", TRACES)
def test_no_legal_evaluation_exceeds_a_bound_and_some_uses_a_twentieth(
    operation: str, dtype: str
) -> None:
    rng, found = Random(repr((operation, dtype))), []
    for seed in range(DRAWS):
        derived = TRACES[operation](small_inputs(rng, operation, dtype))
        found.append(climb(derived, declared(dtype, seed), 8, seed))
    assert 0.05 <= max(found) <= 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_no_legal_evaluation_exceeds_a_mean_that_is_bounded_by_products(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in large calls; what the sweep finds term by term is never more."""
    rng, found, looser = Random(dtype), [], []
    for seed in range(DRAWS):
        derived = today.attention(small_inputs(rng, "grouped_attention", dtype))
        precision = declared(dtype, seed)
        one_by_one = derived.errors(precision)[0]
        with monkeypatch.context() as patch:
            patch.setattr(products, "FEW", 0)
            by_products = derived.errors(precision)[0]
            assert (by_products >= one_by_one * (1 - 1e-9)).all()
            looser.append((by_products > 1.01 * one_by_one).any())
            found.append(climb(derived, precision, 8, seed))
    assert 0.05 <= max(found) <= 1 and any(looser)


def test_a_mean_that_forgets_how_far_its_values_are_apart_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "FEW", 0)
    monkeypatch.setattr(products.Mean, "apart", lambda mean, weights, f: 0.0 * mean.target.value)
    rng, precision = np.random.default_rng(3), PRESETS["eager"](FORMATS["bfloat16"])
    call = {
        name: rounded(3 * rng.standard_normal((1, 4, 9, 9)), FORMATS["bfloat16"]) for name in QKV
    }
    assert climb(today.attention(call), precision, 60) > 1


@pytest.mark.parametrize("operation", ["grouped_attention", "grouped_attention_grad"])
def test_weights_times_a_number_are_bounded_as_sharply_without_a_sweep(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sinks, caps and windows too, among them rows of a single key."""
    rng = Random(11)
    for seed in range(DRAWS):
        derived = TRACES[operation](small_inputs(rng, operation, "float32"))
        precision = declared("float32", seed)
        found = [*leaves(derived.errors(precision))]
        with monkeypatch.context() as patch:
            patch.setattr(sweep, "_scales_row", lambda at, node: False)
            for own, swept in zip(found, leaves(derived.errors(precision)), strict=True):
                np.testing.assert_allclose(own, swept, rtol=1e-5)


@pytest.mark.parametrize("sink", [None, -6.0])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_no_legal_evaluation_exceeds_a_bound_far_below_0(dtype: str, sink: float | None) -> None:
    """Where exponents err by more than 1, the logarithm of their sum has a bound as well."""
    rng, fmt = np.random.default_rng(4), FORMATS[dtype]
    size = {"float64": 2e7, "float32": 600.0, "float16": 20.0}[dtype]
    call: dict[str, Any] = {
        name: rounded(sign * size * (1 + rng.random((1, 4, 9, 9))), fmt)
        for name, sign in (("query", 1), ("key", -1), ("value", 1 / size))
    }
    call["sink"] = None if sink is None else rounded(np.full(4, sink * size * size), fmt)
    derived, precision = today.attention(call), PRESETS["fused"](fmt)
    assert all(np.isfinite(each).all() for each in derived.errors(precision))
    assert 0 < climb(derived, precision, 60) <= 1


def test_an_exponential_that_may_underflow_has_no_logarithm() -> None:
    precision = PRESETS["fused"](FORMATS["float32"])
    for x, known in ((-60.0, True), (-200.0, False)):
        derived = derive(lambda x: np.log(np.exp(x).sum(-1)), {"x": np.full((2, 3), x)})
        assert np.isfinite(derived.errors(precision)).all() == known


def weights(query: Any, key: Any) -> Any:
    score = query @ key.T
    e = np.exp(score - score.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_weight_that_no_float64_holds_leaves_the_others_a_bound() -> None:
    """Of scores so far apart, whose errors are tens, the largest has all the weight."""
    call: dict[str, Any] = {
        "query": np.full((1, 1), 100.0),
        "key": -rounded(np.arange(1.0, 4.0).reshape(3, 1) * 80, FORMATS["bfloat16"]),
    }
    precision = PRESETS["eager"](FORMATS["bfloat16"])
    assert derive(weights, call).errors(precision).max() < 0.01
    call = {name: x[None, None] for name, x in call.items()} | {"value": np.ones((1, 1, 3, 2))}
    assert today.attention(call).errors(precision)[0].max() < 0.02


def test_sum_of_products_and_normaliser_may_both_err() -> None:
    """Each by all that their order may cost, where all values are 1 and no weight matters."""
    precision = replace(PRESETS["fused"](FORMATS["float32"]), acc=FORMATS["float16"])
    none, many = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 64, 4))
    call: dict[str, Any] = {"query": none, "key": many, "value": np.ones((1, 1, 64, 2))}
    bound = today.attention(call).errors(precision)[0]
    assert (bound >= 2 * accumulation_error(64, precision)).all()


def test_the_exponentials_of_a_key_and_of_a_sink_may_both_err() -> None:
    precision = replace(PRESETS["fused"](FORMATS["float32"]), exp_ulps=1000.0)
    none = np.zeros((1, 1, 1, 4))
    call = {"query": none, "key": none, "value": np.ones((1, 1, 1, 2)), "sink": np.zeros(1)}
    by_each = 0.25 * 2 * precision.softmax.u * 1000
    assert (today.attention(call).errors(precision)[0] >= 2 * by_each).all()


def test_what_a_sum_loses_beside_a_sink_grows_as_its_weights_may() -> None:
    rng, stored = np.random.default_rng(8), FORMATS["bfloat16"]
    precision = replace(PRESETS["eager"](stored), acc=FORMATS["float16"])
    call: dict[str, Any] = {
        name: rounded(6 * rng.standard_normal((1, 2, n, 9)), stored)
        for name, n in zip(QKV, (9, 64, 64), strict=True)
    }
    at = today.attention(call | {"sink": np.full(2, 100.0)}).enclosed(precision)
    (row,) = at.graph.rows.values()
    reach = rows.Reach.of(row, rows.row_errors(at, row).r)
    own = at.relative[row.total] / row.total.value
    least, most = (x.sum(-1, keepdims=True) for x in (row.quotient.value, reach.up))
    share = most / (most + rows.rest_of(row))
    assert (share > 1.2 * least).any()
    assert (rows.normaliser_loss(at, row, reach) >= own * share * (1 - 1e-9)).all()


@pytest.mark.parametrize("sink", [0.0, 0.4])
def test_weights_lie_where_the_errors_of_their_exponents_may_take_them(sink: float) -> None:
    rng = np.random.default_rng(6)
    (p, *_), r = rng.dirichlet(np.ones(6), 40)[None], 3 * rng.random((40, 6))
    p = p * (1 - sink)
    row: Any = SimpleNamespace(quotient=SimpleNamespace(value=p), axes=(1,))
    reach = rows.Reach.of(row, r)
    for _ in range(200):
        e = p * np.exp(r * rng.choice([-1, 1], r.shape))
        moved = e / (e.sum(-1, keepdims=True) + sink)
        assert (reach.bottom <= moved * (1 + 1e-12)).all()
        assert (moved <= reach.top * (1 + 1e-12)).all()
    lowest = (
        p
        * np.exp(-r)
        / (p * np.exp(-r) + (p * np.exp(r)).sum(-1, keepdims=True) - p * np.exp(r) + sink)
    )
    assert (reach.bottom >= 0.04 * lowest).all()


@pytest.mark.parametrize("operation", TRACES)
def test_what_the_judge_holds_an_output_to_is_what_was_searched(operation: str) -> None:
    inputs = small_inputs(Random(5), operation, "float32")
    precision = PRESETS["eager"](FORMATS["float32"])
    searched = next(leaves(TRACES[operation](inputs).errors(precision)))
    searched = today.by_tokens(searched) if today.is_packed(inputs) else searched
    searched = searched[..., : inputs["query"].shape[-1]]  # of both parts of a latent's queries
    np.testing.assert_array_equal(next(leaves(error(operation, inputs, precision))), searched)


@pytest.mark.parametrize("operation", TRACES)
def test_the_bounds_of_a_call_are_the_same_whenever_they_are_worked_out(operation: str) -> None:
    """Of two formats of one unit, of which one flushes, the one that loses more counts."""
    precision, rng = PRESETS["fused"](FORMATS["float32"]), Random(11)
    for _ in range(DRAWS):
        inputs = small_inputs(rng, operation, "float32")
        several = [TRACES[operation](inputs) for _ in range(4)]
        first, *others = (list(leaves(each.errors(precision))) for each in several)
        for other in others:
            for one, again in zip(first, other, strict=True):
                np.testing.assert_array_equal(one, again)


def test_what_a_latent_receives_twice_may_be_kept_before_it_is_added() -> None:
    """As by a library that collects in half precision; not where all is kept wide."""
    used, kept = dict[str, float](), FORMATS["float16"]
    for seed in range(DRAWS):
        inputs = small_inputs(Random(seed), "latent_attention_grad", "float16")
        _, by_key, by_value, *_ = today.attention_grad(heads_first(inputs)).values
        parts = by_key[:, 0, :, : inputs["latent"].shape[-1]], by_value[:, 0]
        found = rounded(sum(rounded(part, kept) for part in parts), kept)
        off = np.abs(found - sum(parts))
        for name in ("eager", "fused", "wide"):
            E = error("latent_attention_grad", inputs, PRESETS[name](kept))[2]
            largest = float(np.max(off / np.where(E > 0, E, 1)))
            used[name] = max(used.get(name, 0.0), largest)
    assert used["eager"] <= 1 and used["fused"] <= 1 < used["wide"]


def test_a_cap_makes_numbers_of_infinite_keys_in_a_bound_too() -> None:
    rng = np.random.default_rng(4)
    call = {name: rng.standard_normal((1, 1, 5, 3)) for name in QKV} | {"soft_cap": 1.5}
    call["key"][0, 0, 2, :] = -np.inf, 0.0, 1.0
    arriving = {"d_output": rng.standard_normal((1, 1, 5, 3)), "d_lse": np.ones((1, 1, 5))}
    for found, expected in (
        (today.attention(call).values, spec.grouped_attention(**call)),
        (
            today.attention_grad(arriving | call).values[2:],
            spec.grouped_attention_grad(**arriving, **call)[2:],
        ),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_page_that_stands_twice_is_bounded_as_two() -> None:
    """Its slots were one token each, seen as its last place in the row is."""
    rng = np.random.default_rng(0)
    pages = {name: rng.standard_normal((1, 3, 1, 4)) for name in ("key_pages", "value_pages")}
    call: dict[str, Any] = {"query": rng.standard_normal((2, 1, 4)), "lengths": np.array([5])}
    call |= {"query_starts": np.array([0, 2]), "causal": True}
    once = call | pages | {"page_table": np.array([[0, 0]])}
    copied = {name: np.concatenate([x, x]) for name, x in pages.items()}
    twice = call | copied | {"page_table": np.array([[0, 1]])}
    own = (PRESETS["eager"](FORMATS["float32"]),)
    found, wanted = (today.BOUNDS["paged_attention"](own, **x) for x in (once, twice))
    assert all(np.array_equal(a, b) for a, b in zip(leaves(found), leaves(wanted), strict=True))
