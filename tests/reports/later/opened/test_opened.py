"""The form of the reports, opened and closed; nothing here judges or runs them."""

import ast
import json
from pathlib import Path

import pytest

from tests.reports.test_reports import faults_of, found

FOLDERS = sorted(path.parent for path in Path(__file__).parents[1].glob("*/*/expected.json"))
ENTRIES = {folder.name: json.loads((folder / "expected.json").read_text()) for folder in FOLDERS}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_report_names_its_thread_and_what_must_be_told(name: str) -> None:
    entry = ENTRIES[name]
    assert faults_of(entry) == []
    assert entry["thread"].startswith("https://github.com/" + entry["source"].split("#")[0])


@pytest.mark.parametrize("name", ENTRIES)
def test_what_another_report_says_of_its_bug_is_not_the_cause_of_this_one(name: str) -> None:
    where = {folder.name: folder.parent for folder in FOLDERS}
    beside = {other for other in ENTRIES if where[other] == where[name]}
    bugs = {other: ENTRIES[other]["source"].partition(": ")[2] for other in beside}
    assert {other for other, bug in bugs.items() if found(ENTRIES[name]["told"], bug)} == {name}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_both_files_differ_and_define_the_operation(folder: Path) -> None:
    wrong, right = folder / "wrong.py", folder / "right.py"
    assert wrong.read_text() != right.read_text()
    for path in (wrong, right):
        defined = [
            one.name for one in ast.walk(ast.parse(path.read_text())) if hasattr(one, "name")
        ]
        assert ENTRIES[folder.name]["run"][1] in defined
