"""Findings are data: they survive every boundary, and their text is made of them."""

import json
from dataclasses import fields, replace

import pytest

from attnverify.diagnosis.cause import Cause, Explanation
from attnverify.diagnosis.regions.failing_region import RegionOffer
from attnverify.failures.evidence import DrawnCase, Evidence, Picture
from attnverify.failures.finding import (
    Finding,
    KnownFailureLine,
    Mend,
    format_findings,
    offered_line,
)
from attnverify.failures.record import FailureRecord
from attnverify.inputs.recipe import Recipe
from attnverify.verdicts.tally import CellResult, Tally

RECIPE = json.loads(Recipe("softmax", {"N": 1, "M": 2}, {"family": "normal", "seed": 1}).text)
PICTURE = Picture(
    path="output",
    shape=[1, 2],
    index=[0, 1],
    wrong=1,
    total=2,
    bound="inf",
    axes=["N", "M"],
    origin=[0, 0],
    actual=[[0.0, "nan"]],
    expected=[[0.5, 0.5]],
    ratio=[[0.0, "inf"]],
    within=[[True, False]],
)
FINDING = Finding(
    "NaN",
    share="3 of 20 cases",
    message="output: 1 of 2 elements\ninputs: score (1, 2)",
    condition=("N > M", "a row sees no key"),
    held="3 of 3 failed, 0 of 17 passed; M=3 N=3 passed, M=3 N=4 failed",
    cause=Cause("equals something (0.2x)", (Explanation("something", "something"),)),
    record=FailureRecord("softmax", "float32", "values", RECIPE, "softmax_mine", "my file.py"),
    evidence=Evidence(PICTURE, DrawnCase("softmax: N=9", PICTURE)),
    at=("mine.py:7",),
    notes=("not recorded: Read-only file system: here",),
    mend=Mend("mine.py", 7, "with `a` instead of `b`", "in 3 calls"),
    offer=KnownFailureLine("softmax * values : <reason>", "(covers 3 of 3 failures)"),
    hung=60.0,
)
TEXT = """\
3 of 20 cases: NaN
  output: 1 of 2 elements
  inputs: score (1, 2)
  cause: equals something (0.2x)
  recipe: softmax: layout kind=contiguous seed=0, sizes M=2 N=1, values family=normal seed=1
  larger: softmax: N=9: 1 of 2 elements
  not recorded: Read-only file system: here
  mine.py:7: right with `a` instead of `b` in 3 calls
  known failures: softmax * values : <reason>  (covers 3 of 3 failures)"""


def result(**more: object) -> CellResult:
    cell = dict.fromkeys(("operation", "implementation", "backend", "how", "dtype", "aspect"), "x")
    return CellResult(**cell, **more)  # type: ignore[arg-type]


def test_the_text_has_every_part_in_its_order() -> None:
    assert str(FINDING) == TEXT


def test_what_was_recorded_alone_is_offered_for_a_replay() -> None:
    assert FINDING.record
    line = f"  replay: attnverify replay {FINDING.record.hash} --backend 'my file.py'"
    assert line in replace(FINDING, notes=()).lines()
    assert line not in FINDING.lines()


@pytest.mark.parametrize(
    ("passes", "fresh", "cost"),
    [(4, 1, ""), (18, 1, "those 19 that pass unjudged, too"), (8, 10, "those 18 that pass")],
)
def test_a_line_that_holds_much_of_what_passes_says_what_it_costs(
    passes: int, fresh: int, cost: str
) -> None:
    offer = RegionOffer(("N > M",), (19, 19), (passes, 43), (2, 2), (fresh, 10), "*")
    line = offered_line(offer, "softmax", "values")
    assert line.line == "softmax * values when N > M : <reason>"
    assert line.evidence.startswith(f"(covers 19 of 19 failures, {passes} of 43 passes")
    assert cost in line.evidence if cost else line.evidence.endswith(")")


def test_a_line_that_no_fresh_draw_was_asked_about_says_so() -> None:
    """``on fresh draws 0 of 0 and 0 of 0`` reads as evidence."""
    offer = RegionOffer(("N > M",), (1, 1), (0, 43), (0, 0), (0, 0), "*")
    told = offered_line(offer, "softmax", "values").evidence
    assert told == "(covers 1 of 1 failures, 0 of 43 passes; tried on no fresh draw)"
    told = offered_line(replace(offer, fresh_passes=(0, 2)), "softmax", "values").evidence
    assert "no fresh draw failed, of those that passed it holds in 0 of 2" in told
    tried = replace(offer, fresh_passes=(0, 2), tried={"N > M": "M = 5 passed, M = 4 failed"})
    told = offered_line(tried, "softmax", "values").evidence
    assert told.endswith("in 0 of 2; M = 5 passed, M = 4 failed)")


def test_a_cause_that_several_findings_of_a_cell_have_is_told_once() -> None:
    other = Cause("equals another", (Explanation("another", "another"),))
    several = [
        replace(FINDING, cause=cause) for cause in (FINDING.cause, FINDING.cause, other, None)
    ]
    causes = [line for line in format_findings(several) if line.startswith("  cause: ")]
    assert causes == [f"  cause: {FINDING.cause}", "  cause: as above", "  cause: equals another"]


def test_a_headline_that_names_the_case_needs_no_recipe() -> None:
    assert "recipe:" not in str(replace(FINDING, headline="crashed on softmax: N=1"))


@pytest.mark.parametrize("name", [field.name for field in fields(Finding)])
def test_no_part_is_lost_on_the_way_through_json(name: str) -> None:
    whole = replace(FINDING, headline="NaN in three cases")
    again = Finding.from_dict(json.loads(json.dumps(whole.as_dict(), allow_nan=False)))
    assert getattr(again, name) == getattr(whole, name) != getattr(Finding("x"), name)


def test_a_finding_of_nothing_but_a_kind_survives_too() -> None:
    assert Finding.from_dict(json.loads(json.dumps(Finding("x").as_dict()))) == Finding("x")


def test_a_result_survives_with_its_findings() -> None:
    found = result(cases=3, findings=[FINDING], regions={"a:1": [1, 2]}, reasons={"no": 4})
    assert CellResult.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_tallies_add_up() -> None:
    one = Tally(cases=1, budget=0.5, reasons={"no": 1}, regions={"a": [1, 0]}, findings=[FINDING])
    two = Tally(cases=2, budget=0.25, reasons={"no": 2, "never": 1}, regions={"a": [0, 3]})
    assert one + two == Tally(
        cases=3,
        budget=0.5,
        reasons={"no": 3, "never": 1},
        regions={"a": [1, 3]},
        findings=[FINDING],
    )
    assert one.cases == 1 and one + Tally() == one
