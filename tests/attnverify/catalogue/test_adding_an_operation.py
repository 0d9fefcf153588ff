"""
What adding an operation takes: the files of a toy operation are counted, its judgement works, and
whichever of the files is forgotten, a test says so.
"""

import json
from pathlib import Path

import pytest

from tests.support.toy_operation import (
    EDITS,
    NAME,
    add_operation,
    changed_files,
    copy_tree,
    run_in,
)

MOST = 10
"""Files that may have to be touched: spec, traits, bound, three columns, the bound's test."""

COMPLETE = (
    "tests/spec/test_catalogue_is_complete.py",
    "tests/attnverify/catalogue/test_traits.py",
    "tests/attnverify/bounds",
    "tests/attnverify/inputs/test_recipes.py",
)
WHOLE = " or ".join(
    ("chapter", "attentions", "gathers", "twin", "parameters", "check_applies", "refused", NAME)
)
"""Those of their tests that ask whether an operation is complete, and all that name the toy."""

FORGOTTEN = [
    file
    if file == "attnverify/bounds/scores.py"
    else pytest.param(file, marks=pytest.mark.thorough)
    for file in EDITS
]


def run_completeness_tests(tree: Path) -> tuple[int, str]:
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not thorough")
    return run_in(tree, "pytest", *options, "-k", WHOLE, *COMPLETE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_tree(tmp_path)


def test_an_operation_takes_at_most_ten_files_and_is_judged(tree: Path) -> None:
    add_operation(tree)
    assert changed_files(tree) == sorted(EDITS) and len(EDITS) <= MOST
    line = ("run", "numpy_ref", "torch_impl", "--op", NAME, "--profile", "quick")
    status, output = run_in(tree, "attnverify", *line, "--report-json", "report.json")
    report = json.loads((tree / "report.json").read_text())
    assert status == 0, output
    assert {tally["verdict"] for tally in report["tallies"]} == {"passed"}
    assert {tally["aspect"] for tally in report["tallies"]} >= {"values", "refusals"}


def test_an_operation_is_complete_with_these_files(tree: Path) -> None:
    add_operation(tree)
    status, output = run_completeness_tests(tree)
    assert status == 0, output


@pytest.mark.parametrize("file", FORGOTTEN)
def test_a_forgotten_file_is_noticed(file: str, tree: Path) -> None:
    add_operation(tree, without=file)
    status, output = run_completeness_tests(tree)
    assert status and NAME in output, output
