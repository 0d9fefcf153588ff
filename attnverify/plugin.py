"""
The pytest plugin: the options of :mod:`attnverify.options`, of which ``--backend`` says who is
judged.

It loads the backends, hands their cells to the differential tests, and closes with the table. Under
pytest-xdist every worker loads the backends for itself and the controller collects the tallies.
"""

import gc
import json
import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from attnverify.backends.loader import PROJECT_BACKENDS
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import CHAPTERS
from attnverify.device_assignment import assign_device
from attnverify.failures.record import load_records
from attnverify.fault_score import Scores
from attnverify.isolation.supervisor import Limits, Worker, runs_in_own_process
from attnverify.options import OPTIONS
from attnverify.report.json_report import REPORTS, as_json, write_reports
from attnverify.report.next_steps import next_steps
from attnverify.report.progress import Progress, show_progress
from attnverify.report.root_causes import format_root_causes, representative_cells, triage
from attnverify.report.table import header, table
from attnverify.report.terminal_colours import colourize
from attnverify.session import (
    Verification,
    backends_of,
    known_failures,
    unjudged_backends,
    unmatched_known_failures,
)
from attnverify.timing import time_summary as time_line
from attnverify.verdicts.cell import Cell, run_order
from attnverify.verdicts.tally import Options

ASPECT_OF = {
    "test_values": "values",
    "test_gradients": "gradients",
    "test_refusals": "refusals",
    "test_side_effects": "side effects",
    "test_hidden_nan": "hidden NaN",
}


KEY = pytest.StashKey[Verification | None]()
TALLIES = pytest.StashKey[list[dict[str, Any]]]()
FAILED = pytest.StashKey[list[pytest.TestReport]]()


class Collector:
    """Takes the tallies from the reports of one run; under xdist, those of all workers."""

    def __init__(self, tallies: list[dict[str, Any]]) -> None:
        self.tallies = tallies

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.tallies.extend(tallies_of(report))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: Any, config: pytest.Config
    ) -> Generator[None, Any, Any]:
        """
        Of each root cause pytest shows one cell in full (with -v, every cell); the others are in
        the triage, one line each.
        """
        stats, full = terminalreporter.stats, representative_cells(self.tallies)
        if full and config.getoption("verbose") < 1:
            config.stash[FAILED] = stats.get("failed", [])
            stats["failed"] = [
                report
                for report in config.stash[FAILED]
                if all(tally in full for tally in tallies_of(report))
            ]
        return (yield)


def tallies_of(report: pytest.TestReport) -> list[dict[str, Any]]:
    return [
        cast(dict[str, Any], value) for name, value in report.user_properties if name == "tally"
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnverify", "differential verification of attention kernels")
    for name, words in OPTIONS.items():
        group.addoption(name, **words)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "differential: holds every backend to the law")
    config.addinivalue_line(
        "markers", "thorough: long random campaigns, deselected unless named by -m"
    )
    config.addinivalue_line(
        "markers", "browser: opens a report in Chromium, deselected unless named by -m"
    )
    config.addinivalue_line(
        "markers", "docs: builds the book and reads it in Chromium, deselected unless named by -m"
    )
    config.addinivalue_line(
        "markers", "faults: seeded faults and controls, deselected unless named by -m"
    )
    config.pluginmanager.register(Scores())
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        assign_device(int(worker.removeprefix("gw")))
    config.stash[KEY], config.stash[TALLIES] = None, []
    config.pluginmanager.register(Collector(config.stash[TALLIES]))
    if config.getoption("--backend"):
        verification_of(
            config
            # what is wrong with the options is told before anything runs; also by the controller of
            # xdist
        )


def verification_of(config: pytest.Config) -> Verification:
    """The run's Verification, made when the first differential test asks for it."""
    found = config.stash[KEY]
    if found is None:
        found = config.stash[KEY] = build_verification(config)
    return found


def build_verification(config: pytest.Config) -> Verification:
    """
    Read the options and load the backends; on the many small cases a library's threads only wait
    for each other.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    load_records.cache_clear()  # of an earlier run in this process, in another directory perhaps
    option = config.getoption
    operations = tuple(option("--op") or ())
    for name in operations:
        if name not in CATALOGUE:
            raise pytest.UsageError(f"--op: wanted an operation of the catalogue, got {name}")
    for report in REPORTS:
        if (path := option(report)) and not Path(path).absolute().parent.is_dir():
            raise pytest.UsageError(
                f"{report}: wanted a file in a directory that exists, got {path}"
            )
    sources = option("--backend") or list(PROJECT_BACKENDS)
    known = known_failures(option("--known-failures"), sources)
    options = Options(option("--profile"), seed_of(config), str(option("--failures")))
    workers = workers_of(config, sources)
    backends = list(backends_of(sources, workers))
    gc.freeze()  # what is loaded by now stays: the collector need not look at it again and again
    return Verification(
        backends, operations, tuple(option("--dtype") or ()), options, known, workers
    )


def workers_of(config: pytest.Config, sources: list[str]) -> dict[str, Worker]:
    """
    A process for each backend that gets one. Under pytest-xdist what the controller was told does
    for everyone.
    """
    option = config.getoption
    limits = Limits(option("--case-seconds"), option("--memory"))
    told = json.loads(getattr(config, "workerinput", {}).get("verify_backends", "{}"))
    return {
        source: Worker(source, limits, told.get(source))
        for source in sources
        if runs_in_own_process(source, option("--isolate"))
    }


def seed_of(config: pytest.Config) -> int:
    """The same number in every xdist worker."""
    if hasattr(config, "workerinput"):
        return int(config.workerinput["verify_seed"])
    asked = config.getoption("--seed")
    if asked == "random":
        config.option.seed = asked = str(random.SystemRandom().randrange(2**31))
    return int(asked)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Told by pytest-xdist for each worker."""
    node.workerinput["verify_seed"] = seed_of(node.config)
    if run := node.config.stash[KEY]:
        node.workerinput["verify_backends"] = json.dumps(
            {source: worker.told for source, worker in run.workers.items()}, default=dict
        )
        pytest_unconfigure(node.config)  # they have said what they are, and are judged elsewhere


def pytest_unconfigure(config: pytest.Config) -> None:
    """The backends' processes end with the run."""
    run = config.stash.get(KEY, None)
    for worker in run.workers.values() if run else ():
        worker.close()


@pytest.fixture(scope="session")
def verification(pytestconfig: pytest.Config) -> Verification:
    return verification_of(pytestconfig)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    aspect = ASPECT_OF.get(metafunc.function.__name__)
    if aspect is None or metafunc.function.__module__ != "attnverify.differential":
        return
    run = verification_of(metafunc.config)
    chapter = getattr(metafunc.module, "CHAPTER", None)
    if chapter not in (None, *CHAPTERS):
        raise pytest.UsageError(f"CHAPTER: wanted one of {', '.join(CHAPTERS)}, got {chapter}")
    chosen = [cell for cell in run.cells(chapter) if cell.aspect == aspect]
    metafunc.parametrize("cell", chosen, ids=[cell.id for cell in chosen])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Cells of one operation and dtype run together: what the law says of a recipe is computed once
    for all of them.
    """
    for marker in ("thorough", "faults", "docs", "browser"):
        if marker not in config.getoption("markexpr"):
            kept = [item for item in items if not item.get_closest_marker(marker)]
            config.hook.pytest_deselected(
                items=[item for item in items if item.get_closest_marker(marker)]
            )
            items[:] = kept
    items[:] = [item for item in items if not has_no_cell(item)]
    differential = [index for index, item in enumerate(items) if cell_of(item)]
    ordered = sorted(
        (items[index] for index in differential), key=lambda item: run_order(cell_of(item))
    )
    for index, item in zip(differential, ordered, strict=True):
        items[index] = item
        if config.pluginmanager.hasplugin("xdist"):  # --dist loadgroup keeps them in one worker
            operation, dtype = cell_of(item).implementation.operation.name, cell_of(item).dtype
            item.add_marker(pytest.mark.xdist_group(f"{operation}-{dtype}"))


def cell_of(item: pytest.Item) -> Any:
    """The cell that a differential test is about; None for every other test."""
    cell = getattr(getattr(item, "callspec", None), "params", {}).get("cell")
    return cell if isinstance(cell, Cell) else None


def has_no_cell(item: pytest.Item) -> bool:
    """
    A differential test to which nothing of this run applies; pytest gives it this name and would
    show it as skipped.
    """
    return (
        getattr(getattr(item, "callspec", None), "id", "") == "NOTSET"
        and getattr(item, "originalname", "") in ASPECT_OF
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Who will be judged, where a run asks for that; other runs need not load a backend for it."""
    return (
        header(verification_of(config))
        if differential(config) and not hasattr(config, "workerinput")
        else []
    )


def differential(config: pytest.Config) -> bool:
    """Whether a run is about backends and nothing else."""
    return bool(
        config.getoption("--backend") or config.getoption("markexpr").strip() == "differential"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    manager = session.config.pluginmanager
    reporter = manager.get_plugin("terminalreporter")
    if differential(session.config) and show_progress(session.config, reporter):
        manager.register(Progress(reporter))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run, tallies = config.stash[KEY], config.stash[TALLIES]
    if FAILED in config.stash:  # what was shown is shown; everything is counted
        terminalreporter.stats["failed"] = config.stash[FAILED]
    if run is None and tallies:
        run = verification_of(config)  # the controller of xdist has collected nothing itself
    if run is None or not (
        tallies
        or unjudged_backends(run)
        or (differential(config) and not config.getoption("collectonly"))
    ):
        return
    terminalreporter.section("verification")
    for line in [
        *header(run),
        "",
        *table(tallies),
        *format_root_causes(triage(tallies)),
        time_line(tallies),
    ]:
        terminalreporter.write_line(colourize(line, terminalreporter.hasmarkup))
    for known in unmatched_known_failures(run):
        terminalreporter.write_line(
            f"{known.source}: speaks of no cell of this run: {known.name} {known.dtype} "
            f"{known.aspect}",
            yellow=True,
        )
    write_reports(as_json(run, tallies), {option: config.getoption(option) for option in REPORTS})
    for line in next_steps(run, tallies, config.getoption("--report")):
        terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """
    A broken backend, or a run in which nothing was judged, ends with status 2; a known failure that
    speaks of nothing with 1.
    """
    run = session.config.stash[KEY]
    if hasattr(session.config, "workerinput") or run is None or exitstatus not in (0, 5):
        return
    judged = {
        tally["backend"]
        for tally in session.config.stash[TALLIES]
        if tally["verdict"] in ("passed", "known failure")
    }
    asked = [backend.name for backend in run.backends if session.config.getoption("--backend")]
    if unjudged_backends(run) or not judged.issuperset(asked):
        session.exitstatus = 2
    elif unmatched_known_failures(run):
        session.exitstatus = 1
