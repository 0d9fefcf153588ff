"""
What runs where: the workflows do what .ci/run does, CONTRIBUTING names each of its steps, and the
checkers notice what they are there for.
"""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from attnverify import ROOT, __version__
from tests.support.nightly import SHARES, leave_to_the_night
from tests.support.run_attnverify import in_a_process, report_in

yaml = pytest.importorskip("yaml", reason="the extra test brings it")

WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml")}
SCRIPT = (ROOT / ".ci/run").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps(name: str) -> set[str]:
    """A list of steps in .ci/run."""
    found = re.search(rf"^{name}=\((.*)\)$", SCRIPT, re.MULTILINE)
    assert found is not None
    return set(found[1].split())


EVERY_COMMIT, NIGHTLY = steps("EVERY_COMMIT"), steps("NIGHTLY")


def commands(workflow: str) -> Iterator[str]:
    """The ``run:`` lines of a workflow, one for each combination of its matrix."""
    for job in yaml.safe_load(workflow)["jobs"].values():
        matrix: dict[str, Any] = job.get("strategy", {}).get("matrix", {})
        for step, values in product(job["steps"], product(*matrix.values())):
            if line := step.get("run"):
                for name, value in zip(matrix, values, strict=True):
                    line = line.replace(f"${{{{ matrix.{name} }}}}", value)
                yield line


def foreign(workflow: str) -> list[str]:
    """The ``run:`` lines that are no step of .ci/run."""
    known = {f".ci/run {step}" for step in EVERY_COMMIT | NIGHTLY}
    return [line for line in commands(workflow) if line not in known]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_steps_of_our_own_script_alone(name: str) -> None:
    assert foreign(WORKFLOWS[name]) == []


def test_every_step_has_its_workflow() -> None:
    at_commit = {line for name in ("lint", "tests", "docs") for line in commands(WORKFLOWS[name])}
    assert at_commit == {f".ci/run {step}" for step in EVERY_COMMIT}
    assert {*commands(WORKFLOWS["nightly"])} == {f".ci/run {step}" for step in NIGHTLY}


def test_the_contributing_page_names_every_step_and_when_it_runs() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    when = {step: words.strip() for step, words in rows}
    assert {step for step in when if when[step] == "each commit"} == EVERY_COMMIT
    assert {step for step in when if when[step] == "nightly"} == NIGHTLY


def test_what_is_looked_for_is_no_function_of_the_script() -> None:
    """``command -v`` finds a function of this name too, and nothing would be installed."""
    sought = {name for line in re.findall(r"command -v ([\w -]+)", SCRIPT) for name in line.split()}
    functions = set(re.findall(r"^(\w+)\(\) \{", SCRIPT, re.MULTILINE))
    assert "chromium" in sought and "docs" in functions and not sought & functions


def test_a_step_that_there_is_not_is_refused() -> None:
    done = subprocess.run([ROOT / ".ci/run", "ls"], capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "wanted a step, got ls" in done.stderr


def test_the_tests_run_on_the_pythons_that_the_package_names() -> None:
    matrix = yaml.safe_load(WORKFLOWS["tests"])["jobs"]["tests"]["strategy"]["matrix"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert matrix["python"] == named and PROJECT["requires-python"] == f">={named[0]}"


def test_the_version_stands_once() -> None:
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert in_a_process("--version").output.startswith(f"attnverify {__version__} ")
    for file in ("docs/conf.py", "CITATION.cff", "README.md"):
        assert __version__ not in (ROOT / file).read_text()


@dataclass
class Case:
    """What is asked of a test that pytest has collected."""

    nodeid: str
    marks: set[str] = field(default_factory=set)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def add_marker(self, mark: Any) -> None:
        self.marks.add(mark.name)


def test_of_a_test_with_a_share_one_case_in_so_many_is_left() -> None:
    names = [f"a.py::{name}[{i}]" for name in ("most", "half", "none") for i in range(4)]
    cases: list[Any] = [Case(name) for name in names]
    cases[4].marks.add("thorough")
    leave_to_the_night(cases, {"a.py::half": 2, "a.py::none": 0})
    kept = [case.nodeid.partition("::")[2] for case in cases if not case.marks]
    assert kept == ["most[0]", "most[1]", "most[2]", "most[3]", "half[1]", "half[3]"]


def test_a_share_is_of_a_test_that_there_is() -> None:
    gone = [
        name
        for name, (path, _, function) in {name: name.partition("::") for name in SHARES}.items()
        if f"\ndef {function}(" not in (ROOT / path).read_text() or SHARES[name] == 1
    ]
    assert SHARES and gone == []


PLAIN = ("-p", "no:cacheprovider", "-m", "differential", "tests/test_shifts.py")
SHIFTS = ("backend=numpy_ref", "op=shift_right", "dtype=float32", "profile=quick")


def cases_of(folder: Path, option: str, start: tuple[str, ...], *line: str) -> int:
    """How many calls of one cell are judged by a run in a process of its own."""
    told = *SHIFTS, f"report-json={folder / 'report.json'}", f"failures={folder / 'failures'}"
    done = in_a_process("-k", "values", *(option + each for each in told), *line, start=start)
    assert done.status == 0, done.output
    (cell,) = report_in(folder / "report.json")["tallies"]
    return int(cell["cases"])


@pytest.mark.usefixtures("real_calls_are_judged")
def test_the_main_job_judges_as_many_calls_as_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of the sizes that models make, which other tests leave out, are among them."""
    monkeypatch.chdir(ROOT)
    job = cases_of(tmp_path, "--attn-", ("-m", "pytest"), *PLAIN)
    assert job == cases_of(tmp_path, "--", ("-m", "attnverify", "run"))


def test_a_process_of_another_test_judges_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer = cases_of(tmp_path, "--", ("-m", "attnverify", "run"))
    monkeypatch.delenv("PYTHONPATH")
    assert 0 < fewer < cases_of(tmp_path, "--", ("-m", "attnverify", "run"))


# The checkers, each with something that it must notice

EXTRA = [Path(sys.executable).parent / name for name in ("actionlint", "pre-commit")]
needs_checkers = pytest.mark.skipif(
    not all(path.exists() for path in EXTRA), reason="the extra test brings actionlint, pre-commit"
)


def pre_commit(folder: Path, hook: str) -> subprocess.CompletedProcess[str]:
    """One hook of ours over all files of another repository."""
    shutil.copy(ROOT / ".pre-commit-config.yaml", folder)
    program = (
        f"export PATH={EXTRA[0].parent}:$PATH; git init -q . && git add -A && "
        f"pre-commit run {hook} --all-files"
    )
    return subprocess.run(
        ["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


BAD = {
    "large-files": ("samples.json", "1" * 1_100_000),
    "merge-conflict": ("text.txt", "<<<<<<< ours\n"),
    "whitespace": ("text.txt", "a line \n"),
    "end-of-file": ("text.txt", "a line"),
    "toml": ("a.toml", "a = \n"),
    "yaml": ("a.yaml", "a: [\n"),
    "json": ("a.json", "{\n"),
    "workflows": (".github/workflows/a.yml", WORKFLOWS["lint"].replace("runs-on", "run-on")),
    "issue-forms": (".github/ISSUE_TEMPLATE/a.yml", "name: no body\n"),
    "citation": ("CITATION.cff", "title: nothing else\n"),
}


@needs_checkers
@pytest.mark.parametrize("hook", BAD)
def test_a_checker_notices_what_it_is_there_for(hook: str, tmp_path: Path) -> None:
    name, text = BAD[hook]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    done = pre_commit(tmp_path, hook)
    assert done.returncode == 1 and name in done.stdout, done.stdout + done.stderr


@needs_checkers
@pytest.mark.parametrize("hook", ["workflows", "issue-forms"])
def test_ours_pass(hook: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    done = pre_commit(tmp_path, hook)
    assert done.returncode == 0 and "Passed" in done.stdout, done.stdout + done.stderr


def test_a_line_of_somebody_else_in_a_workflow_is_noticed() -> None:
    other = WORKFLOWS["tests"].replace(".ci/run ${{ matrix.step }}", "pytest")
    assert "pytest" in foreign(other)


def is_of_the_main_job(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    return any(
        isinstance(node, ast.ImportFrom) and node.module == "attnverify.differential"
        for node in ast.walk(tree)
    )


def test_the_main_job_has_no_module_in_the_folders_that_it_does_not_read() -> None:
    """``pytest -m differential`` leaves them unread (conftest.py)."""
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if is_of_the_main_job(path)]
    assert len(found) >= 8
    assert {path.parent for path in found} == {ROOT / "tests"}
