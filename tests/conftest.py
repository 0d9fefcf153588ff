"""What holds of every test here: where it runs, what it leaves behind, what it tells at the end."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.left_behind import environment_changes, modules_of_temporary_files

FEW_CALLS = Path(__file__).parent / "support" / "few_calls"


def pytest_configure(config: pytest.Config) -> None:
    """
    What a command prints in a test does not hang on the width that pytest-xdist gives its workers,
    and none of the processes of a test takes every core.
    """
    if hasattr(config, "workerinput"):
        os.environ.pop("COLUMNS", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as a run would, which tests are often one of


@pytest.fixture(autouse=True)
def environment_is_left_as_it_was() -> Iterator[None]:
    """A test that leaves a variable behind fails itself, and not one after it."""
    before = os.environ.copy()
    yield
    if changed := environment_changes(before, os.environ):
        os.environ.clear()
        os.environ.update(before)
        pytest.fail(f"os.environ: wanted it as it was, got other values of {', '.join(changed)}")


@pytest.fixture(autouse=True)
def modules_of_temporary_files_are_forgotten() -> Iterator[None]:
    """A helper.py beside the file of one test is not the helper.py beside that of another."""
    before, path = set(sys.modules), [*sys.path]
    yield
    sys.path[:] = path
    for name in modules_of_temporary_files(sys.modules.keys() - before):
        del sys.modules[name]


@pytest.fixture
def causes_are_not_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What is wrong is told without its likely cause, the search for which takes most of the time of a
    red run: for tests of everything else (causes: diagnosis/, report/test_root_causes.py).
    """
    monkeypatch.setattr("attnverify.verdicts.findings.diagnose", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def mends_are_not_sought(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong file that nothing explains is not changed for seconds, unless a test asks for it."""
    if "mends_are_sought" not in request.fixturenames:
        monkeypatch.setattr("attnverify.options.SEEKING", {})


@pytest.fixture
def mends_are_sought() -> None:
    """A run looks for the change that makes right what nothing explains."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """
    Calls of the sizes that models make are left out, in what a module's tests share and in the
    processes that they start too: their bounds take two thirds of the time of a green run, and what
    hangs on no size is seen by small ones. The main job judges them, and a test that asks for them.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not judges_real_calls(item):
            patch.setattr("attnverify.verdicts.shown.real_recipes", lambda *_: ())
            patch.setenv("PYTHONPATH", str(FEW_CALLS), prepend=os.pathsep)
        return (yield)


def judges_real_calls(item: pytest.Item) -> bool:
    """Tell whether a test is of the main job, or starts it on another machine, or asks for them."""
    asks = "real_calls_are_judged" in getattr(item, "fixturenames", ())
    return asks or any(map(item.get_closest_marker, ("differential", "machines", "gpu")))


@pytest.fixture
def real_calls_are_judged() -> None:
    """A run judges calls of the sizes that models make, too."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist writes groups into names in its own
def pytest_collection_modifyitems(config, items):
    """Tests that share a fixture of their module run in one worker, which makes it once."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def shares_a_fixture(item):
    """Whether a test takes a fixture that is made once for its module."""
    module = item.nodeid.partition("::")[0]
    found = [known[-1] for known in item._fixtureinfo.name2fixturedefs.values()]
    return any(known.baseid == module and known.scope == "module" for known in found)


def pytest_terminal_summary(terminalreporter):
    """Print what tests have told as lines of a table, those of other workers too."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    lines = {
        line
        for report in reports
        for name, line in getattr(report, "user_properties", ())
        if name == "table"
    }
    if lines:
        terminalreporter.section("compiled for GPUs that are not here")
        terminalreporter.write("\n".join(sorted(lines)) + "\n")
