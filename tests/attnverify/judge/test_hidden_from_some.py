"""
What only some rows see may be NaN or infinity: it is planted there, every column keeps it from the
other rows, and what does not keep it is noticed.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnverify.backends.implementation import Implementation
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.inputs.expand import expand
from attnverify.inputs.masks import visible_pairs
from attnverify.inputs.poison import FOR_SOME
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import FROM_SOME, draw_recipes
from attnverify.judge.case import case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import judge
from attnverify.precision import resolve
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.columns import judge_cell
from attnverify.verdicts.tally import Options

HIDING = sorted(name for name, operation in CATALOGUE.items() if operation.can_hide_from_some)
SDPA = "scaled_dot_product_attention"


def planted(recipe: Recipe) -> dict[str, np.ndarray]:
    """Where the recipe's arguments differ from the same ones without poison."""
    inputs = expand(recipe, "float64")
    return {
        name: ~np.isfinite(x)
        for name, x in inputs.items()
        if isinstance(x, np.ndarray) and name not in ("mask", "visible", "attn_mask")
        if x.dtype.kind == "f" and not np.isfinite(x).all()
    }


@pytest.mark.parametrize("operation", HIDING)
def test_most_draws_plant_something_in_keys_values_or_tables(operation: str) -> None:
    recipes = draw_recipes(operation, FROM_SOME, 40, 0)
    assert {recipe.poison for recipe in recipes} == set(FOR_SOME)
    found = [planted(recipe) for recipe in recipes]
    by_options_alone = operation == "latent_attention"  # no mask hides a latent
    assert sum(map(bool, found)) >= (10 if by_options_alone else 15)
    names = {name for each in found for name in each}
    keys = ({"x"}, {"key_pages", "value_pages"}, {"latent", "key_rope"}, {"key", "value"})
    allowed = next(each for each in keys if each <= {*CATALOGUE[operation].arguments})
    tables = {"position", "key_pos_embeddings", "key_pos_bias"}
    assert allowed <= names <= allowed | tables
    if CATALOGUE[operation].is_attention:
        assert names >= tables & set(CATALOGUE[operation].arguments)


def test_a_planted_key_is_seen_by_a_row_and_hidden_from_another_that_sees_a_key() -> None:
    some = 0
    for recipe in draw_recipes(SDPA, FROM_SOME, 60, 1):
        inputs = expand(recipe, "float64")
        visible = visible_pairs(CATALOGUE[SDPA], inputs)
        assert visible is not None
        for bad in planted(recipe).values():
            for b, h, j in np.argwhere(bad.any(-1)):
                sees = visible[b, h, :, j]
                assert sees.any() and (~sees & visible[b, h].any(-1)).any()
                some += 1
    assert some > 60


@pytest.mark.parametrize("operation", HIDING)
def test_all_that_is_a_number_is_judged_where_rows_beside_it_are_none(operation: str) -> None:
    precision, numbers = resolve("wide", operation, operation, "float32"), 0
    for recipe in draw_recipes(operation, FROM_SOME, 30, 0):
        if recipe.poison != "nan for some" or recipe.dropout:
            continue  # what is dropped may have been NaN
        case = case_of(recipe, "float32")
        pairs = zip(leaves(case.expected), leaves(case.bounds(precision)), strict=True)
        given = [(x, E) for x, E in pairs if x is not None]
        assert not any((np.isinf(E) & np.isfinite(x)).any() for x, E in given), recipe
        if any(np.isnan(x).any() for x, _ in given):
            numbers += sum(int(np.isfinite(x).sum()) for x, _ in given)
    assert numbers > 100


def outcomes(implementation: Implementation, count: int, plant: bool = True) -> Counter[str]:
    """How many draws pass, fail, or are not supported; ``plant``: with what is planted there."""
    found = Counter[str]()
    for recipe in draw_recipes(implementation.operation.name, FROM_SOME, count, 0):
        case = case_of(recipe if plant else replace(recipe, poison=None), "float32")
        try:
            judge(implementation, case)
            found["passed"] += 1
        except Unsupported:
            found["unsupported"] += 1
        except Disagreement:
            found["failed"] += 1
    return found


@pytest.mark.parametrize("column", ["numpy_ref", "torch_impl", "cupy_impl"])
def test_every_column_keeps_it_from_the_rows_that_do_not_see_it(column: str) -> None:
    found = {
        implementation.name: outcomes(implementation, 6)
        for implementation in load(column).implementations
        if implementation.operation.can_hide_from_some
    }
    assert {name for name, counts in found.items() if counts["failed"]} == set()
    assert sum(counts["passed"] > 0 for counts in found.values()) >= len(HIDING)


@pytest.mark.parametrize("operation", ["transformer_xl_attention", "learned_relative_attention"])
def test_rows_that_a_kernel_computes_again_are_as_exact_as_others(operation: str) -> None:
    (cuda,) = (i for i in load("cupy_impl").implementations if i.name == f"{operation}_cuda")
    for seed in (1, 2, 3):
        for recipe in draw_recipes(operation, FROM_SOME, 12, seed):
            if recipe.sizes["N"] * recipe.sizes["M"] <= 300:
                judge(cuda, case_of(recipe, "float32"))


@pytest.mark.parametrize("column", ["numpy_ref", "torch_impl", "cupy_impl"])
def test_what_arrives_at_a_row_of_nan_reaches_no_value_that_it_does_not_see(column: str) -> None:
    """The gradient of a layer norm on a row that is no number is none either, in every head."""
    name = "transformer_xl_layer_grad"
    (layer,) = (i for i in load(column).implementations if i.name == name)
    for recipe in draw_recipes(name, FROM_SOME, 10, 2):
        judge(layer, case_of(recipe, "float32"))


LEAKY = """\
import numpy as np

def scaled_dot_product_attention(query, key, value, mask=None, keep=None, p=0.0):
    with np.errstate(all="ignore"):
        clean = {key}
        score = query @ np.swapaxes(clean, -1, -2) / query.shape[-1] ** 0.5
        seen = np.ones(score.shape, bool)
        if mask is not None:
            seen = np.broadcast_to(mask if mask.dtype == bool else mask > -np.inf, score.shape)
            score = score if mask.dtype == bool else score + np.where(seen, mask, 0)
        score = {score}
        top = score.max(-1, keepdims=True)
        e = np.exp(score - np.where(top == -np.inf, 0, top))
        total = e.sum(-1, keepdims=True)
        weights = np.where(seen, e / np.where(total == 0, 1, total), 0)
        if keep is not None:
            weights = np.where(keep, weights / (1 - p), 0)
        return {output}
"""

HIDDEN = "np.where(seen, score, -np.inf)"
SEEN = "np.where(seen.any(-2)[..., None], value, 0)"
PAIRS = "np.where(seen[..., None], value[..., None, :, :], 0)"
RIGHT = {
    "key": "key",
    "score": HIDDEN,
    "output": f"np.where(seen[..., None], weights[..., None] * {PAIRS}, 0).sum(-2)",
}
FAULTS = {
    "a weight of 0 times a value": {"output": "weights @ value"},
    "values that nobody sees are cleared, and no others": {"output": f"weights @ {SEEN}"},
    "minus infinity is added to the score of a hidden key": {
        "score": "score + np.where(seen, 0, -np.inf).astype(score.dtype)"
    },
    "the score is multiplied by the mask": {
        "score": "np.where(seen, 0, -np.inf).astype(score.dtype) + score * seen"
    },
    "the largest score is taken of all keys": {
        "score": "np.where(seen, score, -np.inf) - 0 * score.max(-1, keepdims=True)"
    },
    "infinity is taken for the end of the format": {"output": "weights @ np.nan_to_num(value)"},
    "all that is no number is 0": {"output": "weights @ np.where(np.isfinite(value), value, 0)"},
    "keys that are no numbers are 0": {"key": "np.where(np.isfinite(key), key, 0)"},
}


LAYER = """

def self_attention(x, parameters, mask=None, keep=None, p=0.0):
    with np.errstate(all="ignore"):
        heard = [x @ parameters[f"w_{name}"].T for name in ("query", "key", "value")]
    return scaled_dot_product_attention(*heard, mask, keep, p)
"""


def written(folder: Path, text: str) -> Implementation:
    """The last implementation that a file of this text holds."""
    path = folder / "mine.py"
    path.write_text(text)
    return {mine.name: mine for mine in load(str(path)).implementations}[last_function(text)]


def last_function(text: str) -> str:
    return text.rpartition("def ")[2].partition("(")[0]


def test_who_sums_over_what_each_row_sees_passes(tmp_path: Path) -> None:
    assert outcomes(written(tmp_path, LEAKY.format(**RIGHT)), 30) == {"passed": 30}


@pytest.mark.parametrize("fault", FAULTS)
def test_who_does_not_is_noticed_by_what_is_planted_alone(fault: str, tmp_path: Path) -> None:
    mine = written(tmp_path, LEAKY.format(**RIGHT | FAULTS[fault]))
    assert outcomes(mine, 30)["failed"] >= 3
    assert outcomes(mine, 10, plant=False) == {"passed": 10}


def test_a_layer_that_leaks_between_its_projections_is_noticed(tmp_path: Path) -> None:
    right = written(tmp_path, LEAKY.format(**RIGHT) + LAYER)
    assert outcomes(right, 30) == {"passed": 30}
    for change in ("a weight of 0 times a value", "the score is multiplied by the mask"):
        mine = written(tmp_path, LEAKY.format(**RIGHT | FAULTS[change]) + LAYER)
        assert outcomes(mine, 30)["failed"] >= 3, change
        assert outcomes(mine, 10, plant=False) == {"passed": 10}


def test_a_leak_to_some_rows_fails_the_column_isolation_and_no_other(tmp_path: Path) -> None:
    fault = FAULTS["values that nobody sees are cleared, and no others"]
    mine = written(tmp_path, LEAKY.format(**RIGHT | fault))
    options = Options("quick", failures=str(tmp_path / "failures"))
    verdicts = {
        aspect: judge_cell(Cell(mine, None, "float32", aspect), options).verdict
        for aspect in ("values", "side effects", "hidden NaN", "isolation")
    }
    assert verdicts == dict.fromkeys(verdicts, "passed") | {"isolation": "failed"}


LEAKY_GRADIENT = """\
import numpy as np

def finite(x):
    return np.where(np.isfinite(x), x, 0)

def scaled_dot_product_attention_grad(d_output, query, key, value, mask=None, keep=None, p=0.0):
    with np.errstate(all="ignore"):
        root = query.shape[-1] ** 0.5
        score = query @ np.swapaxes(key, -1, -2) / root
        seen, added = np.ones(score.shape, bool), mask is not None and mask.dtype != bool
        if mask is not None:
            seen = np.broadcast_to(mask > -np.inf if added else mask, score.shape)
            score = score + np.where(seen, mask, 0) if added else score
        score = np.where(seen, score, -np.inf)
        top = score.max(-1, keepdims=True)
        e = np.exp(score - np.where(top == -np.inf, 0, top))
        total = e.sum(-1, keepdims=True)
        weights = {weights}
        d_weights = {d_weights}
        mean = (weights * d_weights).sum(-1, keepdims=True)
        d_score = {d_score}
        d_mask = []
        if added:
            front = d_score.ndim - mask.ndim
            axes = tuple(front + a for a, size in enumerate(mask.shape) if size == 1)
            d_mask = [d_score.sum((*range(front), *axes), keepdims=True).reshape(mask.shape)]
        g = d_score / root
        seen_by = np.swapaxes(weights, -1, -2)
        return (g @ {key}, np.swapaxes(g, -1, -2) @ query, seen_by @ d_output, *d_mask)
"""

RIGHT_GRADIENT = {
    "weights": "np.where(seen, e / np.where(total == 0, 1, total), 0)",
    "d_weights": "np.where(seen, d_output @ np.swapaxes(value, -1, -2), 0)",
    "d_score": "np.where(seen, weights * (d_weights - mean), 0)",
    "key": "finite(key)",
}
GRADIENT_FAULTS = {
    "dV: weights of hidden keys in a row that is no number": {
        "weights": "e / np.where(total == 0, 1, total)"
    },
    "dQ: a score gradient of 0 times a key": {"key": "key"},
    "dS: a weight of 0 times the gradient of a weight": {
        "d_weights": "d_output @ np.swapaxes(value, -1, -2)"
    },
    "dK: hidden pairs of a row that is no number": {"d_score": "weights * (d_weights - mean)"},
    "dS: the mean of a row is left out where it is no number": {
        "d_score": "np.where(seen, weights * (d_weights - finite(mean)), 0)"
    },
}


def test_a_gradient_over_the_pairs_that_see_each_other_passes(tmp_path: Path) -> None:
    mine = written(tmp_path, LEAKY_GRADIENT.format(**RIGHT_GRADIENT))
    assert outcomes(mine, 30) == {"passed": 30}


@pytest.mark.parametrize("fault", GRADIENT_FAULTS)
def test_a_gradient_that_leaks_is_noticed_by_what_is_planted_alone(
    fault: str, tmp_path: Path
) -> None:
    mine = written(tmp_path, LEAKY_GRADIENT.format(**RIGHT_GRADIENT | GRADIENT_FAULTS[fault]))
    assert outcomes(mine, 30)["failed"] >= 3
    assert outcomes(mine, 10, plant=False) == {"passed": 10}
