"""
Two mistakes at once: each is told with the part that it explains; what explains a part by chance is
not told.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnverify.diagnosis.candidates import Candidate, candidates, pairs
from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.diagnose import match_candidates
from attnverify.diagnosis.matching.best import best_matches
from attnverify.diagnosis.matching.parts import SEVERAL, explain_in_parts, is_chance
from attnverify.inputs.sampling import draw_recipes
from attnverify.judge.case import Case, case_of
from attnverify.judge.observation import Observation, arrays
from tests.attnverify.diagnosis.test_reasons import ROWS, findings, grade, reason

SDPA = "scaled_dot_product_attention"
OPERATION = case_of(draw_recipes(SDPA, "any", 1, 0)[0], "float32").operation
TWO = ("unscaled_and_zero_times_nan", "unscaled_when_masked")
"""The others are asked with the whole table of test_reasons.py."""


@pytest.mark.parametrize("name", TWO)
def test_two_mistakes_are_told_each_with_its_part(name: str) -> None:
    told = findings(f"{SDPA}_{name}")
    assert grade(ROWS[f"{SDPA}_{name}"], told) == "right", [reason(finding) for finding in told]


def mask_ignored() -> Candidate:
    return next(c for c in candidates(SDPA) if c.words == "boolean masks ignored")


def answered(seen: Observation, answer: np.ndarray) -> Observation:
    """The same case with an answer, wrong where that is clearly another than the expected one."""
    given = replace(seen, actual=(answer,))
    return replace(given, ratio=9.0 if given.distance(seen.expected) > 9 else 0.0)


def observations() -> list[Observation]:
    """Answers without the mask in the cases that have a boolean one; in the others, noise."""
    found = list[Observation]()
    for case in (case_of(recipe, "float32") for recipe in draw_recipes(SDPA, "any", 60, 3)):
        expected = tuple(arrays(case.expected))
        seen = Observation(case, expected, expected, (np.full(expected[0].shape, 1e-5),), 0.0)
        if case.recipe.mask is not None and case.recipe.mask["form"] == "bool":
            found.append(answered(seen, arrays(mask_ignored().answer(seen))[0]))
        elif len(found) % 3 == 0:
            waves = np.cos(np.arange(expected[0].size)).reshape(expected[0].shape)
            found.append(answered(seen, expected[0] + waves))
    return found


def test_how_far_the_specification_is_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was measured anew for each of hundreds of candidates: an eighth of a diagnosis."""
    seen, asked, measure = (
        [o for o in observations() if o.wrong][:2],
        list[bool](),
        Observation.distance,
    )

    def distance(o: Observation, answer: Any) -> float:
        asked.append(answer is o.expected)
        return measure(o, answer)

    monkeypatch.setattr(Observation, "distance", distance)
    assert best_matches(candidates(SDPA), seen)
    assert len(asked) > 100 and sum(asked) == len(seen) == 2


PAIRS = (
    ("scores that are not scaled", "a mask of which True means hidden"),
    ("scores scaled by 1/D", "boolean masks added as ones and zeros"),
    ("scores that are not scaled", "kept weights that are not scaled"),
)


def answers_of(candidate: Candidate) -> list[Observation]:
    """What a kernel that is this candidate says to a few small cases, a dozen of them wrong."""
    cases = [case_of(recipe, "float32") for recipe in draw_recipes(SDPA, "any", 60, 3)]
    return [seen for case in cases if (seen := seen_as(case, candidate.answer)).size < 2000]


def seen_as(case: Case, answer: Callable[[Observation], Any] | None) -> Observation:
    """A case and the answer to it, by default the right one."""
    expected = tuple(arrays(case.expected))
    seen = Observation(case, expected, expected, (np.full(expected[0].shape, 1e-5),), 0.0)
    return answered(seen, arrays(answer(seen))[0] if answer else expected[0])


def matched(seen: list[Observation]) -> list[str]:
    failing, passed = ([o for o in seen if o.wrong is wrong] for wrong in (True, False))
    return [found.words for found, _ in match_candidates(OPERATION, failing, (), passed, None)]


@pytest.mark.parametrize("one, other", PAIRS)
def test_two_conventions_at_once_are_told_together(one: str, other: str) -> None:
    (pair,) = (c for c in pairs(SDPA) if c.words == f"{one} and with {other}")
    assert matched(answers_of(pair)) == [pair.words]


def test_a_cause_explains_every_element_and_predicts_no_other_failure() -> None:
    told = mask_ignored().words
    one, *others = (o for o in answers_of(mask_ignored()) if o.wrong)
    assert told in matched([one, *others])
    beside = one.actual[0].copy()
    beside.flat[0] = 2 * beside.flat[0] + 1
    assert told not in matched([replace(one, actual=(beside,)), *others])
    assert told not in matched([replace(one, actual=one.expected, ratio=0.0), *others])


def test_one_convention_is_not_told_as_two() -> None:
    alone, *_ = (c for c in candidates(SDPA) if c.words == PAIRS[0][0])
    assert matched(answers_of(alone))[0] == alone.words


def told(seen: list[Observation]) -> Cause | None:
    failing, passed = ([o for o in seen if o.wrong is wrong] for wrong in (True, False))
    return explain_in_parts([mask_ignored()], failing, passed)


def test_the_part_is_told_with_what_is_left() -> None:
    cause = told(observations())
    assert cause is not None and ", when a key is hidden from every row: " in cause.words, cause
    assert cause.words.endswith("failing cases; the others are unexplained")
    assert len(cause.explanations) == 1


def padding_unless_guarded() -> tuple[Candidate, list[Observation]]:
    """Padding that a boolean mask hides, and that counts without one and beside a mask to add."""
    padded = "the padding of the last tile seen as keys of score 0 (32 keys a tile)"
    candidate = next(c for c in candidates(SDPA) if c.words == padded)
    seen = answers_of(candidate)
    guarded = {o.case for o in seen if o.recipe.mask and o.recipe.mask["form"] == "bool"}
    return candidate, [answered(o, o.expected[0]) if o.case in guarded else o for o in seen]


@pytest.mark.parametrize(("off", "is_told"), [(0.0, True), (1.5, True), (9.0, False)])
def test_what_a_boolean_mask_alone_guards_against_is_told(off: float, is_told: bool) -> None:
    """Also where one case is off by less than two errors, which speaks neither for nor against."""
    candidate, seen = padding_unless_guarded()
    failing, passed = ([o for o in seen if o.wrong is wrong] for wrong in (True, False))
    one = failing[0]
    failing[0] = answered(one, one.actual[0] + off * one.bounds[0])
    cause = explain_in_parts([candidate], failing, passed)
    told_of_all = cause is not None and cause.words.endswith(", when no boolean mask is given")
    if cause is not None:  # the last line of a run has the condition too
        assert cause.explanations[0].words == f"{candidate.words}, when no boolean mask is given"
    assert told_of_all is is_told


def test_how_a_mask_was_drawn_is_no_branch_of_a_kernel() -> None:
    """Rows of which the first half is hidden were told as keys behind the first 8 left out."""
    drawn = (o.case for o in answers_of(mask_ignored()) if o.recipe.mask)
    masks = {"form": "bool", "pattern": "first_block"}
    failing, passed = list[Observation](), list[Observation]()
    for case in drawn:
        blocked = replace(case.recipe, mask=case.recipe.mask | masks)
        other = replace(case.recipe, mask=case.recipe.mask | masks | {"pattern": "random"})
        for recipe, answer in ((blocked, mask_ignored().answer), (other, None)):
            seen = seen_as(case_of(recipe, "float32"), answer)
            (failing if seen.wrong else passed).append(seen)
    assert len(failing) >= SEVERAL
    assert explain_in_parts([mask_ignored()], failing, passed) is None


def test_few_cases_are_explained_by_chance() -> None:
    seen = [o for o in observations() if o.ratio]
    masked = [o for o in seen if o.recipe.mask and o.recipe.mask["form"] == "bool"]
    others = [o for o in seen if not (o.recipe.mask and o.recipe.mask["form"] == "bool")]
    assert told([*masked[: SEVERAL - 1], *others]) is None
    assert is_chance(3, 3) and is_chance(2, 20) and not is_chance(15, 7)


def test_less_than_the_larger_part_is_not_told_where_the_rest_is_unexplained() -> None:
    seen = observations()
    masked = [o for o in seen if o.wrong and o.recipe.mask and o.recipe.mask["form"] == "bool"]
    rest = [o for o in seen if o.case not in {m.case for m in masked}]
    few = 2 * len([o for o in rest if o.wrong]) - 1
    assert few >= SEVERAL and told([*masked[:few], *rest]) is None


def test_a_part_that_no_condition_tells_from_the_rest_is_not_told() -> None:
    """The same recipes, some of them answered right."""
    seen = observations()
    again = [replace(o, actual=o.expected, ratio=0.0) for o in seen if o.wrong]
    assert told(seen) is not None and told([*seen, *again]) is None
