"""
Bugs of others, each made again in a small file of our own words.

``expected.json`` has an entry for each: ``source``, the public thread; ``file``, the repaired file,
and ``instead``, what stands in the wrong one instead of what (grade.py); ``run``, what a reporter
would add to ``attnverify run FILE``; ``told``, expressions of which one must be found in the cause
that is told of the wrong file, and ``not_told``, expressions that must not be, both by re.search
without regard to case; ``when``, in which calls the file is wrong. Whoever fills this table does
not read the diagnosis. Here its form alone is tested: what ``source`` says of the bug must itself
count as told, and what tells a place, a size or an argument alone must not.
"""

import json
import re
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from attnverify.backends.loader import load
from tests.reports.grade import SPECIFICATIONS, text_of

HERE = Path(__file__).parent
LATER = HERE / "later"
SPECIFIED = HERE / "specified"
REPORTS: dict[str, dict[str, Any]] = {
    slug: entry | {"folder": folder}
    for folder in (HERE, LATER, SPECIFIED)
    for slug, entry in json.loads((folder / "expected.json").read_text()).items()
}
"""
Those of ``later`` were written when the diagnosis had been changed for the first 60, and those that
are ``specified`` are judged by a specification of theirs.
"""
KINDS = {"cuda", "gradient", "kernel", "layer", "mask", "positions", "scale", "triton"}
NO_CAUSE = (
    "the output is wrong",
    "wrong: the weights",
    "the scores, when B > 1",
    "wrong: the weights, in the last head (1) alone",
    "wrong: the output: key 1 alone, in axis 1, index 0 alone",
    "wrong: the output when M > 16 and H > 1",
    "the output when a mask is given",
    "every gradient when p > 0",
    "the gradient by key: head 1, position 3 alone",
    "the gradient by mask: head 1 alone",
    "the gradient by value: columns 3, 4",
    "the gradient by layer_norm.weight: all elements",
    "the gradient by q_proj.bias: index 0, 1, 2",
    "the gradient by hids",
)
"""What tells nothing of a cause: none of it may count as one."""


SAME = (
    {"delta_of_a_packed_gradient", "upstream_gradient_read_as_packed"},
    {"backward_sees_the_future", "backward_forgets_the_mask"},
    {"dropout_left_out_of_the_backward", "dropped_coefficients_in_softmax"},
    {"batch_and_heads_taken_for_each_other", "padding_repeated_for_the_wrong_rows"},
)
"""Reports of one mistake, or of two that one expression names."""


def found(expressions: list[str], text: str) -> bool:
    return any(re.search(one, text, re.IGNORECASE) for one in expressions)


def faults_of(entry: dict[str, Any]) -> list[str]:
    """What is wrong with the form of an entry, in words."""
    told, (_, _, bug) = entry.get("told", []), entry.get("source", "").partition(": ")
    matched = [text for text in NO_CAUSE if found(told, text)]
    complaints = {
        "no thread is named": not re.match(r"[\w.-]+/[\w.-]+#\d+: \S", entry.get("source", "")),
        "no operation is named": "--op" not in entry.get("run", []) and "spec" not in entry,
        "no such kind": entry.get("kind") not in KINDS,
        "nothing need be told": not told,
        f"told by {matched}": bool(matched),
        "its own words are not told": bool(told and bug) and not found(told, bug),
        "its own words are forbidden": found(entry.get("not_told", []), bug),
    }
    return [complaint for complaint, holds in complaints.items() if holds]


def test_every_report_has_a_file_and_every_file_a_report() -> None:
    tests = {"grade.py", "test_reports.py", "test_causes.py", SPECIFICATIONS}
    there = {path for folder in (HERE, LATER, SPECIFIED) for path in folder.glob("*.py")}
    told = {(entry["folder"] / entry["file"]).resolve() for entry in REPORTS.values()}
    assert {path for path in there if path.name not in tests} == told


@pytest.mark.parametrize("slug", REPORTS)
def test_a_report_names_its_thread_and_what_must_be_told(slug: str) -> None:
    entry = REPORTS[slug]
    assert faults_of(entry) == []
    for expression in entry["told"] + entry["not_told"]:
        re.compile(expression)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"source": "somewhere"}, "no thread is named"),
        ({"run": []}, "no operation is named"),
        ({"kind": "other"}, "no such kind"),
        ({"told": []}, "nothing need be told"),
        ({"told": ["hids|.{50}"]}, f"told by {[NO_CAUSE[4], NO_CAUSE[-1]]}"),
        ({"told": ["never said"]}, "its own words are not told"),
        ({"not_told": ["the"]}, "its own words are forbidden"),
    ],
)
def test_a_report_that_lacks_something_is_noticed(changed: dict[str, Any], complaint: str) -> None:
    assert faults_of(REPORTS[min(REPORTS)] | changed) == [complaint]


@pytest.mark.parametrize("slug", REPORTS)
def test_what_another_report_says_of_its_bug_is_not_the_cause_of_this_one(slug: str) -> None:
    bugs = {other: entry["source"].partition(": ")[2] for other, entry in REPORTS.items()}
    told = {other for other, bug in bugs.items() if found(REPORTS[slug]["told"], bug)}
    assert told == {slug} or any(slug in same and told <= same for same in SAME)


@pytest.mark.parametrize("slug", REPORTS)
def test_the_repaired_file_differs_and_both_can_be_imported(slug: str, tmp_path: Path) -> None:
    entry, path, texts = REPORTS[slug], tmp_path / "given.py", set()
    for repaired in (True, False):
        texts.add(text_of(slug, entry, repaired, entry["folder"]))
        path.write_text(text_of(slug, entry, repaired, entry["folder"]))
        if "spec" in entry:
            assert callable(run_path(str(path))[entry["spec"]])
            assert callable(run_path(str(SPECIFIED / SPECIFICATIONS))[entry["spec"]])
            continue
        backend = load(str(path))
        assert backend.broken is None
        asked = entry["run"][entry["run"].index("--op") + 1]
        assert backend.missing or asked in [one.operation.name for one in backend.implementations]
    assert len(texts) == 2
