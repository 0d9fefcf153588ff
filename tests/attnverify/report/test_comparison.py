"""Two reports compared: what is new, what is gone, what moved, on the page and in the terminal."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnverify.cli.commands import attnverify
from attnverify.report.comparison import compare_reports, comparison_page, moved
from tests.support import synthetic_reports

OLD = synthetic_reports.large(60)
NAMES = ("new_failures", "gone_failures", "other", "budgets", "times", "added", "removed")


def changed(number: int, **values: object) -> dict:
    """The report with one cell changed."""
    report = deepcopy(OLD)
    report["tallies"][number] |= values
    return report


def counts(old: dict, new: dict) -> dict[str, int]:
    found = compare_reports(old, new)
    return {name: len(getattr(found, name)) for name in NAMES if getattr(found, name)}


def first(verdict: str) -> int:
    return next(n for n, tally in enumerate(OLD["tallies"]) if tally["verdict"] == verdict)


def test_a_report_and_itself_differ_in_nothing():
    assert counts(OLD, deepcopy(OLD)) == {}


@pytest.mark.parametrize(
    ("was", "becomes", "where"),
    [
        ("passed", "failed", "new_failures"),
        ("failed", "passed", "gone_failures"),
        ("passed", "unsupported", "other"),
    ],
)
def test_a_verdict_that_changes_is_told_where_it_belongs(was, becomes, where):
    assert counts(OLD, changed(first(was), verdict=becomes)) == {where: 1}


def test_a_budget_moves_by_more_than_the_factor_and_a_time_too():
    assert counts(changed(0, budget=0.2), changed(0, budget=0.5)) == {"budgets": 1}
    assert counts(changed(0, budget=0.2), changed(0, budget=0.25)) == {}
    seconds = [{"backend": 1.0}, {"backend": 2.0}]
    assert counts(*(changed(0, seconds=each) for each in seconds)) == {"times": 1}


def test_what_is_small_has_not_moved_and_nan_has():
    assert not moved(1e-9, 5e-3, 1.5, 0.01) and moved(0.0, 0.02, 1.5, 0.01)
    assert moved(0.5, float("nan"), 1.5, 0.01) and not moved(float("inf"), float("inf"), 1.5, 0.01)


def test_a_cell_of_one_report_alone_is_named_and_fails_as_a_new_failure():
    fewer = deepcopy(OLD)
    gone = fewer["tallies"].pop(first("passed"))
    assert counts(OLD, fewer) == {"removed": 1} and counts(fewer, OLD) == {"added": 1}
    (change,) = compare_reports(OLD, fewer).removed
    assert gone["dtype"] in change.cell and change.after == "not there"
    fewer = deepcopy(OLD)
    fewer["tallies"].pop(first("failed"))
    assert counts(fewer, OLD) == {"new_failures": 1}


def test_runs_that_were_asked_for_other_things_say_so():
    new = deepcopy(OLD)
    new["options"]["seed"] = 7
    (change,) = compare_reports(OLD, new).unlike
    assert str(change) == "seed: 0 -> 7"


def test_the_command_ends_with_1_where_something_fails_that_did_not(tmp_path: Path):
    paths = [tmp_path / "old.json", tmp_path / "new.json", tmp_path / "moved.html"]
    paths[0].write_text(json.dumps(OLD))
    paths[1].write_text(json.dumps(changed(first("passed"), verdict="failed", reason="hidden NaN")))
    asked = ["compare", *map(str, paths[:2])]
    done = CliRunner().invoke(attnverify, [*asked, "-o", str(paths[2])], standalone_mode=False)
    assert done.return_value == 1 and "passed -> failed (hidden NaN)" in done.output
    assert done.output.startswith("1 new failure, 0 gone failures, 0 budgets that moved")
    assert "New failures" in paths[2].read_text()
    back = CliRunner().invoke(attnverify, [asked[0], *asked[:0:-1]], standalone_mode=False)
    assert back.return_value == 0 and "1 gone failure" in back.output


def test_a_users_words_are_no_script_on_the_page():
    new = synthetic_reports.hostile()
    old = deepcopy(new)
    for tally in old["tallies"]:
        tally["verdict"] = "passed"
    page = comparison_page(compare_reports(old, new))
    assert "<script>window" not in page and "<img" not in page
