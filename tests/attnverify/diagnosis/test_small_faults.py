"""
Kernels that are right but for one line, and what a run must and must not say of them: a cause
explains every failing element, and where none does, what stands where is told.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from attnverify import numpy_ref as right
from attnverify.backends.implementation import Implementation
from attnverify.catalogue.operation import CATALOGUE
from attnverify.diagnosis.diagnose import MOST_FAILING, choose_failing
from attnverify.failures.finding import Finding
from attnverify.inputs.fixed_cases import fixed_recipe
from attnverify.judge.case import case_of
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.search import Search, describe_found
from attnverify.verdicts.shown import shown_recipes
from attnverify.verdicts.tally import Options
from tests.support.sample_backends import load_sample

SDPA = "scaled_dot_product_attention"


def changed(name: str, change: Callable[[ndarray], Any]) -> Callable[..., Any]:
    """An operation of numpy_ref whose first output is changed in place."""

    def function(**arguments: Any) -> Any:
        found = getattr(right, name)(**arguments)
        first = np.array(found[0] if isinstance(found, tuple) else found)
        change(first)
        return (first, *found[1:]) if isinstance(found, tuple) else first

    return function


def times(factor: float, *place: Any) -> Callable[[ndarray], None]:
    def change(x: ndarray) -> None:
        x[place] *= x.dtype.type(factor)

    return change


def first_two_exchanged(x: ndarray) -> None:
    x[..., :2] = x[..., :2][..., ::-1].copy()


def without_maximum(score: ndarray, mask: ndarray | None = None) -> ndarray:
    """A softmax that guards rows without keys, and nothing else."""
    masked = score if mask is None else np.where(hidden(mask), -np.inf, score + 1.0 * added(mask))
    with np.errstate(all="ignore"):
        weights = np.exp(masked.astype(score.dtype))
        total = weights.sum(axis=-1, keepdims=True)
        return weights / np.where(total == 0, 1, total).astype(score.dtype)


def hidden(mask: ndarray) -> ndarray:
    return ~mask if mask.dtype == bool else np.isneginf(mask)


def added(mask: ndarray) -> Any:
    return 0.0 if mask.dtype == bool else np.where(np.isneginf(mask), 0, mask)


def attention_without_maximum(**given: Any) -> ndarray:
    query, key = given["query"], given["key"]
    score = query @ key.mT / query.dtype.type(query.shape[-1] ** 0.5)
    weights = without_maximum(score, given.get("mask"))
    if given.get("keep") is not None:
        weights = weights * given["keep"] / weights.dtype.type(1 - given["p"])
    return weights @ given["value"]


def nan_with_a_mask(score: ndarray, mask: ndarray | None = None) -> ndarray:
    found = right.softmax(score, mask)
    return found if mask is None else np.full_like(found, np.nan)


ROWS, LAST = np.s_[..., 0, :], np.s_[..., -1]
Said = tuple[str, Callable[..., Any], str, str]


def last_tile_lost(whole_too: bool) -> Callable[..., ndarray]:
    """An attention that forgets the last tile of 32 keys, where it is not full or in any case."""

    def attention(**given: Any) -> ndarray:
        M = given["key"].shape[2]
        end = ((M - 1) // 32 * 32 if whole_too else M // 32 * 32) or M
        cut = {name: given[name][..., :end, :] for name in ("key", "value")}
        cut |= {
            name: given[name][..., :end]
            for name in ("mask", "keep")
            if given.get(name) is not None and given[name].shape[-1] == M
        }
        return np.asarray(right.scaled_dot_product_attention(**given | cut))

    return attention


SAID: dict[str, Said] = {
    "one element": ("softmax", changed("softmax", times(1.001, ..., -1, -1)),
                    r"0\.10% high where it is wrong: the last key", "rounded|equals"),
    "last column": ("softmax", changed("softmax", times(1.01, *LAST)),
                    r"1\.00% high where it is wrong: the last key \(\d+\) alone( \(seen.*)?$",
                    "equals"),
    "first row": ("rel_shift", changed("rel_shift", times(0, *ROWS)),
                  "0 where it is wrong.*row 0 alone", "equals|index of"),
    "one sign": ("softmax", changed("softmax", times(-1, ..., 0, 0)),
                 "with the other sign where it is wrong.*row 0 alone", "equals|factor"),
    "swapped pair": ("softmax", changed("softmax", first_two_exchanged),
                     "first two columns of the output exchanged", "mask"),
    "a mask's last column": ("merge_masks", changed("merge_masks", times(0, *LAST)),
                             "where it is wrong: the last key", "equals"),
    "a layer's last column": ("multi_head_attention",
                              changed("multi_head_attention", times(1.01, *LAST)),
                              "1.00% high where it is wrong: in the last column", "PRECISION|oper"),
    "softmax without maximum": ("softmax", without_maximum,
                                r"without subtracting.*score of 88\.7", "weights are NaN"),
    "attention without maximum": (SDPA, attention_without_maximum,
                                  r"without the maximum.*score of 88\.7|wrong even where all",
                                  "weights are NaN"),
    "NaN against NaN": ("softmax", nan_with_a_mask, "NaN", "equals|NaN in rows"),
    "the last tile where it is not full": (SDPA, last_tile_lost(whole_too=False),
                                           r"not full \(32 keys", "split|full or not"),
    "the last tile in any case": (SDPA, last_tile_lost(whole_too=True),
                                  r"full or not \(32 keys", "split|not full"),
    "a factor smaller than rounding": ("softmax", changed("softmax", times(1 + 3e-6, ...)),
                                       "", "%|factor|equals"),
}  # fmt: skip
"""The operation, a function that is wrong in a line, the words that must be said, and must not."""


def findings(operation: str, function: Callable[..., Any]) -> list[Finding]:
    """What a run of the quick profile finds in a function."""
    backend = load_sample("one_fault_each")
    faulty = Implementation(backend, CATALOGUE[operation], operation, function)
    with TemporaryDirectory() as folder:
        options = Options("quick", failures=folder)
        search = Search(faulty, "float32", options)
        shown = shown_recipes(faulty, "values", options, "any", 20)
        for recipe in shown.at_first + shown.drawn:
            search.judge(recipe)
        return describe_found(search, Cell(faulty, None, "float32", "values"), "any", 20)


@lru_cache
def findings_of(name: str) -> list[Finding]:
    operation, function, *_ = SAID[name]
    return findings(operation, function)


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_a_line_is_true_and_no_guess(name: str) -> None:
    _, _, must, must_not = SAID[name]
    told = [f"{finding.kind}; {finding.cause}" for finding in findings_of(name)]
    assert told and re.search(must, told[0], re.DOTALL), told
    assert not any(re.search(must_not, each) for each in told), told


def test_the_right_function_is_told_nothing() -> None:
    assert findings("softmax", changed("softmax", times(1, ...))) == []


def test_a_failure_shows_the_smallest_case_and_a_large_one_in_two_lines() -> None:
    (found, *_) = findings_of("swapped pair")
    assert found.record is not None and found.record.recipe["sizes"] == {"N": 1, "M": 2}
    lines = [line for line in str(found).splitlines() if re.match("  (recipe|larger): ", line)]
    assert [line[:9] for line in lines] == ["  recipe:", "  larger:"]
    assert re.search(r": \d+ of \d+ elements$", lines[1])


def test_a_cause_is_held_against_the_smallest_case_too_which_is_shown() -> None:
    drawn = [
        case_of(fixed_recipe(CATALOGUE["softmax"], {"N": N, "M": 65}), "float32")
        for N in range(2, 20)
    ]
    smallest = case_of(fixed_recipe(CATALOGUE["softmax"], {"N": 1, "M": 33}), "float32")
    for cases in ([*drawn, smallest], [smallest, *drawn], [smallest], [drawn[0], smallest]):
        assert smallest in choose_failing(cases) and len(choose_failing(cases)) <= MOST_FAILING
        assert len(set(choose_failing(cases))) == len(choose_failing(cases))
