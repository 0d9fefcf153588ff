"""Kinds of mistakes that a fourth round of public reports had and no table."""

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.call_budget import outcome_kind
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.reference import layers
from attnverify.specified.mutants.slips import without_brackets
from tests.attnverify.diagnosis.test_two_mistakes import causes_of


def layer_with(residual: Callable[..., ndarray], activation: Any, **inputs: Any) -> Any:
    """A layer whose feed-forward is told its input x."""

    def feed(y: ndarray, parameters: Any, eps: float) -> ndarray:
        inner = activation(layers.linear(y, parameters, "ff_in"))
        z = residual(inputs["x"], y, layers.linear(inner, parameters, "ff_out"))
        bias = parameters.get("ff_norm.bias")
        return layers.layer_norm(z, parameters["ff_norm.weight"], bias, eps)

    return in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, feed=feed)


def relu(x: ndarray) -> ndarray:
    return np.maximum(x, 0)


def rows_of_the_pool(page_table: ndarray, key_pages: ndarray, **inputs: Any) -> Any:
    B, Y = page_table.shape
    flat = page_table.ravel()
    table = [[flat[min(b * len(key_pages) + y, flat.size - 1)] for y in range(Y)] for b in range(B)]
    read = np.clip(np.array(table), 0, len(key_pages) - 1).astype(page_table.dtype)
    return numpy_ref.paged_attention(page_table=read, key_pages=key_pages, **inputs)


def next_heads_overwritten(**inputs: Any) -> Any:
    """A gradient by the values that is stored tile by tile of 8 keys, all heads one tile each."""
    d_query, d_key, d_value, *rest = CATALOGUE["scaled_dot_product_attention_grad"].reference(
        **inputs
    )
    B, H, M, E = d_value.shape
    flat = np.zeros((B * H * M + 8, E))
    for start in range(0, M, 8):
        for head, own in enumerate(d_value.reshape(-1, M, E)):
            tile = np.zeros((8, E))
            tile[: len(own[start : start + 8])] = own[start : start + 8]
            flat[head * M + start : head * M + start + 8] = tile
    return d_query, d_key, flat[: B * H * M].reshape(d_value.shape), *rest


def norms_exchanged(**inputs: Any) -> Any:
    found = CATALOGUE["transformer_xl_layer_grad"].reference(**inputs)
    d_parameters = next(part for part in found if isinstance(part, dict))
    other = dict(d_parameters)
    for name in ("layer_norm", "ff_norm"):
        if d_parameters.get(f"{name}.bias") is not None:
            other[f"{name}.weight"] = d_parameters[f"{name}.bias"]
            other[f"{name}.bias"] = d_parameters[f"{name}.weight"]
    return tuple(other if part is d_parameters else part for part in found)


def a_pair_early(x: Any, positions: Any, pairing: str, base: float = 1e4, **rest: Any) -> Any:
    R = (x.shape[-1] if rest.get("rotary_dim") is None else rest["rotary_dim"]) // 2
    given = rest.pop("frequencies", None)
    f = base ** ((1.0 - np.arange(R)) / R) if given is None else given
    return CATALOGUE["rotary_embedding"].reference(
        x, positions, pairing, base=base, frequencies=f, **rest
    )


FIFTH = Path(__file__).parents[2] / "reports/later/fifth"

KINDS: dict[str, tuple[str, Callable[..., Any]]] = {
    "the ReLU behind the second linear map": (
        "transformer_xl_layer",
        partial(layer_with, lambda x, y, z: y + relu(z), lambda a: a),
    ),
    "the layer's input x added behind the feed-forward": (
        "transformer_xl_layer",
        partial(layer_with, lambda x, y, z: x + z, relu),
    ),
    "a page table read in rows as long as the pool has pages": (
        "paged_attention",
        rows_of_the_pool,
    ),
    "a last tile of 8 rows or keys written whole": (
        "scaled_dot_product_attention_grad",
        next_heads_overwritten,
    ),
    "`np.arange(R)` as `np.arange(R) - 1`, spec/rotary.py": ("rotary_embedding", a_pair_early),
}


@pytest.mark.parametrize("words", KINDS)
def test_a_kind_is_told(words: str) -> None:
    operation, function = KINDS[words]
    told = [cause.words for cause in causes_of(operation, function)]
    assert told
    assert all(words in each for each in told), told


def test_gradients_of_a_norm_that_are_exchanged_are_told() -> None:
    told = [c.words for c in causes_of("transformer_xl_layer_grad", norms_exchanged)]
    assert any("gradients by the norms' weights and biases exchanged" in each for each in told), (
        told
    )


def test_what_escapes_its_brackets_is_a_change() -> None:
    def others(text: str) -> set[str]:
        node = ast.parse(text, mode="eval").body
        return {ast.unparse(new) for _, new in without_brackets(node)}

    assert others("(a | b) & c") == {"a & c | b", "a | b & c"}
    assert others("c * (a + b)") == {"c * a + b", "a + c * b"}
    assert others("(a or b) and c") == {"a or (b and c)", "b or (a and c)"}
    assert others("a * b + c") == set()


LONG = {"H": 4, "N": 20, "M": 20, "T": 20, "U": 2}
OF_TODAY: dict[str, tuple[str, dict[str, Any]]] = {
    "causal_bound_counts_the_tile_of_heads": (
        "later heads see keys of the future",
        {"causal": True},
    ),
    "early_exit_writes_another_rows_lse": (
        "the lse of a sequence without keys stored in other rows",
        {},
    ),
    "ranges_without_the_padding_of_pages": ("without the padding of their last pages", {}),
    "sink_against_a_placeholder": (
        "a sink whose exponential overflows",
        {"causal": True, "sink": "given", "window": [2, None]},
    ),
    "window_on_the_other_side_of_the_diagonal": (
        "left count added to the causal diagonal",
        {"causal": True, "window": [2, None]},
    ),
}
"""Reports of a fifth round on today's attentions: what must be told, and what calls show it."""


@pytest.mark.parametrize("name", OF_TODAY)
def test_what_a_fifth_round_had_of_todays_attentions_is_told(name: str) -> None:
    pytest.importorskip("torch")
    words, options = OF_TODAY[name]
    wrong, right = (
        load(str(FIFTH / name / f"{which}.py")).implementations[0] for which in ("wrong", "right")
    )
    recipes = (fixed_recipe(wrong.operation, LONG, seed=seed) for seed in range(12))
    cases = [case_of(replace(x, options=x.options | options), "float32") for x in recipes]
    failing = [case for case in cases if outcome_kind(wrong, case) != "passed"]
    passing = [case for case in cases if case not in failing]
    cause = diagnose(wrong, failing, passing=passing)
    assert cause and words in cause.words
    assert {outcome_kind(right, case) for case in cases} == {"passed"}
