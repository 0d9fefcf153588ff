"""
What no table of mistakes has is told in the words of the specification's own line: kernels with one
slip, written otherwise than the specification.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.pytrees import leaves
from attnverify.diagnosis.candidates import Candidate
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.layers.in_stages import in_stages
from attnverify.diagnosis.matching import by_text
from attnverify.diagnosis.mistakes.specification import text_mistakes, text_of
from attnverify.inputs.sampling import draw_recipes, shrink_key
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import Observation
from attnverify.reference import layers
from tests.attnverify.diagnosis.test_two_mistakes import causes_of, implementation_of


def one_place_on(x: ndarray) -> ndarray:
    """A shift that drops one number too many."""
    *lead, N, M = x.shape
    line = np.concatenate([np.zeros_like(x[..., :1]), x], axis=-1).reshape(*lead, -1)
    longer = np.concatenate([line, np.zeros_like(line)], axis=-1)
    return longer[..., N + 1 : N + 1 + N * M].reshape(x.shape)


def merged(outputs: ndarray, lses: ndarray, log: Callable[[ndarray], ndarray]) -> Any:
    top = np.where(np.isneginf(lses.max(0)), 0, lses.max(0))
    e = np.exp(lses - top)
    there, total = e.sum(0) > 0, np.where(e.sum(0) > 0, e.sum(0), 1)
    shown = np.where(np.isneginf(lses)[..., None], 0, outputs)
    output = np.einsum("cbhn,cbhne->bhne", e / total, shown)
    return output, np.where(there, top + log(total), -np.inf)


def undivided(outputs: ndarray, lses: ndarray) -> Any:
    top = np.where(np.isneginf(lses.max(0)), 0, lses.max(0))
    e = np.exp(lses - top)
    shown = np.where(np.isneginf(lses)[..., None], 0, outputs)
    return np.einsum("cbhn,cbhne->bhne", e, shown), top + np.log(e.sum(0))


def with_memory_of_the_layer_before(**inputs: Any) -> Any:
    """A stack whose first layer reads the last one's memory."""
    return in_stages(CATALOGUE["transformer_xl"])(**inputs, mem_of=lambda layer: layer - 1)


def with_residual_twice(**inputs: Any) -> Any:
    """A layer whose feed-forward adds its input behind its norm too."""

    def feed(x: ndarray, parameters: Any, eps: float) -> ndarray:
        y = layers.feed_forward(x, parameters, eps)
        return x + y if "ff_in.weight" in parameters else y

    return in_stages(CATALOGUE["transformer_xl_layer"])(**inputs, feed=feed)


def with_slope_of_first_power(
    d_output: ndarray,
    query: ndarray,
    key: ndarray,
    w_query: ndarray,
    w_key: ndarray,
    w_score: ndarray,
) -> tuple[ndarray, ...]:
    """The gradients of an additive score through a tanh of the slope 1 - t."""
    t = np.tanh((query @ w_query.T)[..., :, None, :] + (key @ w_key.T)[..., None, :, :])
    slope = (1 - t) * d_output[..., None] * w_score
    d_q, d_k = slope.sum(-2), slope.sum(-3)
    by_query, by_key = (
        np.einsum("ia,if->af", d.reshape(-1, d.shape[-1]), x.reshape(-1, x.shape[-1]))
        for d, x in ((d_q, query), (d_k, key))
    )
    by_score = (t * d_output[..., None]).reshape(-1, len(w_score)).sum(0)
    return d_q @ w_query, d_k @ w_key, by_query, by_key, by_score


SLIPS = {
    "rel_shift": (one_place_on, "`N + i * M + j` as `N + i * M + j + 1`, spec/shifts.py:"),
    "merge_attention": (
        partial(merged, log=lambda x: -np.log(x)),
        "`top + np.log(sum(e))` as `top - np.log(sum(e))`, spec/grouped.py:",
    ),
    "transformer_xl": (
        with_memory_of_the_layer_before,
        "`mems[layer]` as `mems[layer - 1]`, spec/layers.py:",
    ),
    "transformer_xl_layer": (with_residual_twice, "` as `x + layer_norm(y, parameters"),
    "additive_score_grad": (with_slope_of_first_power, "`1 - t ** 2` as `1 - t ** 1`, spec/scores"),
}


LONG = ("transformer_xl",)
"""A stack takes as long as all others, and changes of its text are found as those of its layer."""


@pytest.mark.parametrize(
    "operation",
    [pytest.param(x, marks=[pytest.mark.thorough] * (x in LONG)) for x in SLIPS],
)
def test_a_slip_is_told_in_the_words_of_its_line(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few changes of the text outlive the smallest case."""
    asked, own = Counter[Case](), by_text.is_like

    def counted(candidate: Candidate, seen: Observation, number: int) -> bool:
        asked[seen.case] += 1
        return own(candidate, seen, number)

    monkeypatch.setattr(by_text, "is_like", counted)
    function, words = SLIPS[operation]
    told = [cause.words for cause in causes_of(operation, function)]
    assert told
    assert all(words in each for each in told), told
    first, *others = asked.values()
    assert 0 < first <= by_text.MOST
    assert operation != "transformer_xl_layer" or (first > 100 and sum(others) < first / 2)


def test_what_a_table_has_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("the text was asked")

    monkeypatch.setattr("attnverify.diagnosis.diagnose.match_text", never)
    told = [c.words for c in causes_of("merge_attention", undivided)]
    assert told
    assert all("parts that are not divided by their sum" in each for each in told), told


def test_a_change_that_fits_what_failed_is_not_told_against_a_further_case() -> None:
    """The kernel is right wherever more than one part is merged, and no such change is."""
    law = CATALOGUE["merge_attention"].reference

    def kernel(outputs: ndarray, lses: ndarray) -> Any:
        output, lse = law(outputs, lses)
        return output, -lse if len(lses) == 1 else lse

    recipes = draw_recipes("merge_attention", "any", 300, 0)
    cases = [case_of(r, "float32") for r in recipes if r.sizes["C"] == 1]
    cause = diagnose(implementation_of("merge_attention", kernel), cases)
    assert cause is not None
    assert "spec/" not in cause.words


def small_case(operation: str) -> Case:
    recipes = sorted(draw_recipes(operation, "any", 40, 3), key=shrink_key)
    return case_of(recipes[len(recipes) // 3], "float32")


@pytest.mark.parametrize("operation", CATALOGUE)
def test_a_text_that_is_not_changed_is_the_specification(operation: str) -> None:
    """Twice: what its functions have said is said again."""
    text, case = text_of(operation), small_case(operation)
    text.run(case.inputs)
    _, top = text.linked(text.top)
    law = CATALOGUE[operation].specification(**case.inputs)
    for found in (text.expected, top(**case.inputs)):
        for x, y in zip(leaves(found), leaves(law), strict=True):
            np.testing.assert_array_equal(x, y)


def test_no_change_writes_to_the_inputs() -> None:
    case = small_case("grouped_attention_grad")
    before = [np.copy(x) for x in leaves(case.inputs) if isinstance(x, ndarray)]
    for _, mistake, _ in text_mistakes(case.operation, case.inputs):
        try:
            mistake(case.operation, case.inputs)
        except Exception:  # most changes make no sense
            continue
    after = [x for x in leaves(case.inputs) if isinstance(x, ndarray)]
    assert all(map(np.array_equal, before, after))


def test_of_two_alike_on_a_line_it_is_told_which() -> None:
    """``weights[row]`` stands twice in the line of the scores' gradient."""
    operation = CATALOGUE["scaled_dot_product_attention_grad"]
    inputs = case_of(draw_recipes(operation.name, "any", 1, 0)[0], "float64").inputs
    told = [words for words, *_ in text_mistakes(operation, inputs)]
    assert not any(words.startswith("`weights[row]` as `dropped[row]`") for words in told)
    assert any("@ d_weight` as `" in words and "dropped[row]" in words for words in told)
