"""
What a report says beside its verdicts: when and at which commit the run was, what went into the
case that is shown, what the specification says of it, and the program that shows it.
"""

import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnverify import ROOT
from attnverify.backends.commit import NO_COMMIT, commit_of_backend, describe_commit
from attnverify.backends.loader import load
from attnverify.catalogue.operation import CATALOGUE
from attnverify.failures.evidence import MOST_NUMBERS, describe_inputs
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import remove, save
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.judge.case import case_of
from attnverify.report.comparison import compare_reports, describe_comparison
from attnverify.report.html import report_page
from attnverify.report.html.origin import describe_run
from attnverify.report.html.reproducers import copy_reproducers
from attnverify.report.json_report import as_json, describe_what_was_violated
from attnverify.session import Verification
from attnverify.verdicts.tally import Options
from tests.support.run_attnverify import judged, load_backends_here, verify
from tests.support.sample_backends import HERE
from tests.support.synthetic_reports import large

DATED = large(20)
CASE = case_of(fixed_cases("softmax")[0], "float32")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "mine.py").write_text("x = 1\n")
    git(tmp_path, "add", "mine.py")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_a_file_is_judged_at_the_commit_of_its_repository(repository: Path) -> None:
    assert describe_commit(repository / "mine.py") == git(repository, "rev-parse", "HEAD")
    (repository / "mine.py").write_text("x = 2\n")
    assert commit_of_backend(f"{repository}/mine.py:x=softmax").endswith(" with changes")


def test_a_file_that_no_repository_holds_is_said_to_have_no_commit(repository: Path) -> None:
    (repository / "new.py").write_text("")
    assert describe_commit(repository / "new.py") == NO_COMMIT == describe_commit(None)
    assert commit_of_backend("no_such_module") == NO_COMMIT


def test_a_report_says_when_the_run_was_and_how_long_it_took() -> None:
    run = Verification([], (), (), Options(), [], began=1_000_000_000.0)
    report = as_json(run, [], clock=lambda: 1_000_000_061.2)
    assert (report["date"], report["seconds"]) == ("2001-09-09T01:46:40+00:00", 61.2)
    assert describe_run(report).startswith("2001-09-09 01:46 UTC, 1 min 1 s, attnverify ")
    assert as_json(run, [], clock=lambda: 0.0)["seconds"] == 0  # a clock that was put back


def test_a_report_of_an_older_version_says_no_date_and_is_compared() -> None:
    old = deepcopy(DATED)
    for name in ("date", "seconds", "commit", "specification", "violated"):
        del old[name]
    for backend in old["backends"]:
        del backend["commit"]
    for tally in old["tallies"]:
        for found in tally["findings"]:
            del found["evidence"]["inputs"]
    assert describe_run(old) == "date not said" and "date not said" in report_page(old)
    lines = [*describe_comparison(compare_reports(old, DATED))]
    assert lines[1:3] == [
        "Old: date not said",
        "New: 2026-01-02 03:04 UTC, 1 min 1 s; its commit: 0123456789ab",
    ]


def test_another_commit_is_told_among_what_the_runs_differ_in() -> None:
    new = deepcopy(DATED)
    new["backends"][0]["commit"] = "f" * 40
    (change,) = compare_reports(DATED, new).unlike
    assert str(change) == f"commit of kernels_0: {NO_COMMIT} -> {'f' * 12}"


def arguments(operation: str, place: int = 0) -> dict[str, Any]:
    case = case_of(fixed_cases(operation)[place], "float32")
    return {found.name: found for found in describe_inputs(case)}


def test_few_numbers_are_written_out_as_they_are() -> None:
    for recipe in fixed_cases("softmax"):
        case = case_of(recipe, "float32")
        found = {each.name: each for each in describe_inputs(case)}["score"]
        assert found.shape == [*case.inputs["score"].shape] and found.kind == "float32"
        assert bool(found.values) == (case.inputs["score"].size <= MOST_NUMBERS)
        if found.values and "nan" not in found.values:
            again = np.array(eval(found.values, {"inf": np.inf}), "float32")
            assert (case.inputs["score"] == again).all()


def test_the_parts_of_an_argument_have_names_of_their_own() -> None:
    named = arguments("multi_head_attention")
    assert len(named) > 6 and all(re.fullmatch(r"\w+(\.\w+|\[\d+\])*", name) for name in named)
    assert any("." in name or "[" in name for name in named)


# A run, its page and what lies beside it


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run with planted faults, and its report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("shown"))
        load_backends_here(patch)
        judged(
            "--backend",
            str(HERE / "two_planted_faults.py"),
            "--op",
            "softmax",
            "--report",
            "out.html",
        )
        return folder, json.loads(Path("report.json").read_text())


def test_the_programs_beside_the_page_show_the_failures(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    folder, report = shown
    links = re.findall(r'href="(reproducers/[^"]*)"', (folder / "out.html").read_text())
    programs = {f["record"]["program"] for t in report["tallies"] for f in t["findings"]}
    assert links and {Path(link).name for link in links} == programs
    done = subprocess.run(
        [sys.executable, links[0], str(HERE / "two_planted_faults.py")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "out of bound" in done.stderr, done.stdout + done.stderr


def test_the_page_leads_to_what_the_specification_says(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    folder, report = shown
    page = (folder / "out.html").read_text()
    assert {*report["specification"]} == {"softmax"}
    for name in report["specification"]:
        assert f'href="#specification-{name}"' in page and f'id="specification-{name}"' in page


def test_the_page_leads_to_the_clause_that_a_mistake_violates() -> None:
    report = large(20)
    tally = next(t for t in report["tallies"] if t["verdict"] == "failed")
    mistake = {"name": "softmax_average_of_empty_rows", "words": "averages"}
    tally["findings"][0]["cause"] = {"words": "averages", "explanations": [mistake]}
    report |= describe_what_was_violated([tally])
    page = report_page(report)
    assert 'What that violates: <a href="#specification-softmax-3">softmax, clause 3</a>' in page
    assert '<li id="specification-softmax-3">A row that sees no key has weights 0' in page


def test_the_clauses_lead_to_the_book_where_it_is_said_where_that_is(
    shown: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shown[0])
    line = ("page", "report.json", "-o", "with_book.html", "--book", "https://example.org/book/")
    assert verify(*line).status == 0
    page = Path("with_book.html").read_text()
    assert 'href="https://example.org/book/operations/softmax.html#softmax-clause-3"' in page
    assert "example.org" not in Path("out.html").read_text()


def test_two_implementations_that_fail_on_one_recipe_have_a_program_each(tmp_path: Path) -> None:
    folder, told = tmp_path / "failures", {}
    for name in ("softmax", "softmax_fused"):
        (tmp_path / f"{name}.py").write_text(f"def {name}(score, mask=None):\n    return score\n")
        function = load(str(tmp_path / f"{name}.py")).implementations[0]
        failure = FailureRecord.of(function, CASE, "values")
        told[name] = save(failure, str(folder), function).with_name(failure.program).read_text()
    assert len([*folder.glob("*.json")]) == 1 and len([*folder.glob("*.py")]) == 2
    assert all(text.startswith(f'"""\n{name} of') for name, text in told.items())
    remove(next(folder.glob("*.json")))
    assert [path for path in folder.iterdir() if path.suffix in (".json", ".py")] == []


def test_a_program_is_copied_once_and_linked_where_it_shows_a_failure(tmp_path: Path) -> None:
    report = large(20) | {"failures": str(tmp_path)}
    records = [f["record"] for t in report["tallies"] for f in t["findings"]]
    (tmp_path / "0123456789ab-0000.py").write_text("")
    assert len(records) > 1 and copy_reproducers(report, tmp_path / "a.html") == {}
    for record in records:
        record["program"] = "0123456789ab-0000.py"
    copied = copy_reproducers(report, tmp_path / "a.html")
    assert copied == {"0123456789ab-0000.py": "reproducers/0123456789ab-0000.py"}


def test_what_is_no_name_of_a_program_is_no_file(tmp_path: Path) -> None:
    report = large(20) | {"failures": str(tmp_path)}
    (tmp_path.parent / "outside-0.py").write_text("")
    for tally in report["tallies"]:
        for found in tally["findings"]:
            found["record"]["program"] = "../outside-0.py"
    assert copy_reproducers(report, tmp_path / "a.html") == {}


def test_every_operation_can_be_told_with_its_clauses() -> None:
    failed = [{"operation": name, "findings": []} for name in CATALOGUE]
    said = describe_what_was_violated(failed)["specification"]
    assert said.keys() == CATALOGUE.keys()
    texts = " ".join(text for each in said.values() for text in each["clauses"].values())
    assert len(texts) > 5000 and not re.search(r":\w+:`|``", texts)
