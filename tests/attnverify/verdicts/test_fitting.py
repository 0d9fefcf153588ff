"""
Draws that a file's FEATURES exclude are fitted to what it takes, so that a verdict stands on as
many cases as another's.
"""

from pathlib import Path
from typing import Any

import pytest

from attnverify.catalogue.operation import CATALOGUE
from attnverify.inputs.fixed_cases import fixed_cases, pair_count
from attnverify.inputs.real.calls import everyday_calls
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import refuse_what_is_refused
from attnverify.plugin.closing import describe_unseen
from attnverify.verdicts.fitting import (
    CAUSAL,
    fitted_real,
    fitted_recipes,
    limits_draws,
    untaken_features,
)
from tests.attnverify.verdicts.test_found_out import judge_file

DRAWN = draw_recipes("scaled_dot_product_attention", "any", 60, 0)


@pytest.mark.parametrize(
    ("features", "excludes"),
    [
        ({"dropout": False}, lambda r: r.dropout is not None),
        ({"mask": False}, lambda r: r.mask is not None),
        ({"mask": "causal"}, lambda r: r.mask not in (None, CAUSAL)),
        ({"float mask": False}, lambda r: r.mask is not None and r.mask["form"] != "bool"),
        ({"N != M": False}, lambda r: r.sizes["N"] != r.sizes["M"]),
        ({"E != D": False}, lambda r: r.sizes["E"] != r.sizes["D"]),
        ({"width": (16, 64)}, lambda r: r.sizes["D"] not in (16, 64)),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_is_fitted_is_not_excluded(features: dict[str, Any], excludes: Any) -> None:
    assert limits_draws(features) and any(map(excludes, DRAWN))
    fitted = fitted_recipes(DRAWN, features)
    assert len(fitted) == len(DRAWN) and not any(map(excludes, fitted))


@pytest.mark.parametrize("features", [{}, {"gradient": False}, {"weights": False}, {"mask": True}])
def test_other_features_change_no_draw(features: dict[str, Any]) -> None:
    assert not limits_draws(features)
    assert fitted_recipes(DRAWN, features) == DRAWN


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_is_fitted_is_taken_by_the_specification(name: str) -> None:
    for left_out in ("mask", "float mask", "N != M", "E != D", "dropout", *CATALOGUE[name].domains):
        for recipe in fitted_recipes(fixed_cases(name)[::5], {left_out: False}):
            refuse_what_is_refused(recipe, "float32")


def test_widths_take_turns_and_are_those_of_heads_alone() -> None:
    sizes = {"B": 1, "D": 3, "E": 5, "H": 2, "M": 4, "N": 4}
    recipe = Recipe("scaled_dot_product_attention", sizes, {})
    fitted = fitted_recipes([recipe] * 3, {"width": (16, 64)})
    assert [(r.sizes["D"], r.sizes["E"]) for r in fitted] == [(16, 16), (64, 64), (16, 16)]
    layer = draw_recipes("multi_head_attention", "any", 4, 0)
    assert fitted_recipes(layer, {"width": (16, 64)}) == layer


CAUSAL_KERNEL = """
import numpy as np

FEATURES = {{"mask": "causal", "N != M": False, "E != D": False, "dropout": False, "width": (16,)}}
ARGUMENTS = {{"causal": "causal mask"}}

def scaled_dot_product_attention(query, key, value, causal=False):
    if not causal:
        raise NotImplementedError("causal alone")
    assert query.shape == key.shape == value.shape and query.shape[-1] == 16
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    score = np.where(np.tri(score.shape[-2], k={diagonal}, dtype=bool), score, -np.inf)
    e = np.exp(score - score.max(-1, keepdims=True))
    return e @ value / e.sum(-1, keepdims=True)
"""


@pytest.mark.parametrize(("diagonal", "verdict"), [(0, "passed"), (1, "failed")])
def test_a_kernel_that_knows_the_causal_mask_alone_is_judged_by_it(
    diagonal: int, verdict: str, tmp_path: Path
) -> None:
    result = judge_file(tmp_path, CAUSAL_KERNEL.format(diagonal=diagonal))
    assert result.verdict == verdict
    assert result.cases >= 15 or verdict == "failed"


SIZES, MASK = frozenset({"E != D", "mask"}), frozenset({"mask", "float mask"})


@pytest.mark.parametrize(
    ("judged", "refused", "untaken"),
    [
        ([frozenset()], [SIZES], ["E != D"]),
        ([frozenset({"E != D"})], [SIZES], ["mask"]),
        ([frozenset({"mask"})], [MASK, SIZES], ["E != D", "float mask"]),
        ([SIZES | MASK], [SIZES, MASK], []),
    ],
)
def test_what_refused_calls_have_and_no_judged_one_is_not_taken(
    judged: list[frozenset[str]], refused: list[frozenset[str]], untaken: list[str]
) -> None:
    assert untaken_features(judged, refused) == dict.fromkeys(untaken, False)


def test_few_queries_of_a_long_cache_are_not_made_as_many_as_its_keys() -> None:
    calls = everyday_calls("scaled_dot_product_attention", "quick", 0)
    fitted = fitted_real(calls, {"N != M": False})
    assert len(fitted) < len(calls)
    assert all(pair_count(recipe) <= max(map(pair_count, calls)) for recipe in fitted)


ONE_SHAPE = """
import numpy as np

def alibi_attention(query, key, value):
    if not query.shape == key.shape == value.shape:
        raise NotImplementedError("one shape alone")
    H, N, D = query.shape[1:]
    n = 2 ** (H.bit_length() - 1)
    h = np.arange(H)
    slopes = 2.0 ** (np.where(h < n, h + 1.0, h - n + 0.5) * (-8 / n))
    distance = np.arange(N) - np.arange(N)[:, None]
    score = query @ np.swapaxes(key, -1, -2) / np.sqrt(D) + slopes[:, None, None] * distance
    score = np.where(np.tri(N, dtype=bool), score, -np.inf)
    e = np.exp(score - score.max(-1, keepdims=True))
    return e @ value / e.sum(-1, keepdims=True)
"""


def test_what_no_case_could_show_is_told_and_the_promised_count_is_reached(tmp_path: Path) -> None:
    result = judge_file(tmp_path, ONE_SHAPE)
    assert (result.verdict, result.cases >= 20) == ("passed", True)
    assert result.unseen == {
        "row without keys": "takes no visible",
        "boolean mask": "takes no visible",
    }
    lines = describe_unseen([result.as_dict()])
    left_out = "no row without keys or boolean mask was judged"
    assert lines[0] == f"mine: {left_out} of alibi_attention: it takes no visible"
