"""
The judging part of the pytest plugin: loads the backends, hands their cells to the differential
tests, and says how the run ends. Loaded by :mod:`attnverify.plugin` where a run uses it.

Under pytest-xdist every worker loads the backends for itself and the controller collects the
tallies.
"""

import gc
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attnverify.backends.loader import PROJECT_BACKENDS
from attnverify.catalogue.traits import CHAPTERS
from attnverify.device_assignment import assign_device, show_device
from attnverify.failures.record import forget_what_was_read
from attnverify.isolation.supervisor import Limits, Worker, runs_in_own_process
from attnverify.machine import count_processors, share_out_processors
from attnverify.plugin import BACKENDS, is_ours
from attnverify.plugin.closing import Collector, print_summary
from attnverify.plugin.journal import Journal, open_journal, tell_cut, tell_resumed
from attnverify.report.json_report import REPORTS
from attnverify.report.junit import WordedProperties
from attnverify.report.progress import Progress, show_progress
from attnverify.report.table import header
from attnverify.session import (
    Verification,
    backends_of,
    check_inputs,
    known_failures,
    unjudged_backends,
    unmatched_known_failures,
)
from attnverify.verdicts.cell import Cell, run_order, telling_order
from attnverify.verdicts.tally import JUDGED, Options

ASPECT_OF = {
    "test_values": "values",
    "test_gradients": "gradients",
    "test_refusals": "refusals",
    "test_side_effects": "side effects",
    "test_hidden_nan": "hidden NaN",
}


@dataclass
class State:
    """
    What a pytest run has to do with us.

    collected  whether differential tests were collected; cells: how many; selected: how many of
               them are left to run
    problem    why they cannot run: an option that is wrong, told once everything is collected
    """

    collector: Collector = field(default_factory=Collector)
    verification: Verification | None = None
    journal: Journal | None = None
    started: float = field(default_factory=time.monotonic)
    collected: bool = False
    cells: int = 0
    selected: int = 0
    problem: str = ""

    def is_over(self, minutes: float | None) -> bool:
        """Tell whether no further cell is to begin."""
        return minutes is not None and time.monotonic() - self.started > 60 * minutes

    @property
    def tallies(self) -> list[dict[str, Any]]:
        return self.collector.tallies

    def counts(self) -> list[Any]:
        """Collect what the controller of pytest-xdist learns from a worker."""
        return [self.collected, self.cells, self.selected, self.problem]

    def learn(self, collected: bool, cells: int, selected: int, problem: str) -> None:
        self.collected, self.problem = self.collected or collected, self.problem or problem
        self.cells, self.selected = max(self.cells, cells), max(self.selected, selected)

    def is_narrowed(self) -> bool:
        """Tell whether somebody chose other tests: the cells were collected and none is left."""
        return self.cells > 0 and self.selected == 0


STATE = pytest.StashKey[State]()


def state_of(config: pytest.Config) -> State:
    return config.stash[STATE]


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def named_on_the_line(config: pytest.Config) -> bool:
    """Tell whether this very command names a backend, and not the configuration of a project."""
    arguments = map(str, config.invocation_params.args)
    return any(argument.startswith("--attn-backend") for argument in arguments)


def is_about_backends(config: pytest.Config) -> bool:
    """Tell whether a run is about backends and nothing else."""
    return named_on_the_line(config) or (
        bool(sources_of(config)) and config.getoption("markexpr").strip() == "differential"
    )


# The options


def sources_of(config: pytest.Config) -> list[str]:
    """List the backends to judge: those of the options, or else those of the configuration."""
    return list(config.getoption("attn_backend") or config.getini(BACKENDS))


def verification_of(config: pytest.Config) -> Verification:
    """Find the run's Verification, made when the first differential test asks for it."""
    state = config.stash[STATE]
    if state.verification is None:
        try:
            state.verification = build_verification(config)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    return state.verification


def build_verification(config: pytest.Config) -> Verification:
    """
    Read the options and load the backends. Raises ValueError for an option that is wrong.
    """
    option, sources = config.getoption, sources_of(config)
    if not sources:
        raise ValueError(
            "differential tests: wanted a backend to judge, got none: name one by "
            f"--attn-backend=FILE, or by {BACKENDS} in pytest's configuration"
        )
    share_out_processors(processes_of(config))
    if (device := option("attn_device")) and not is_worker(config):
        show_device(device)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        assign_device(int(worker.removeprefix("gw")))
    forget_what_was_read()  # in an earlier run of this process, in another directory perhaps
    for name, path in report_paths(config).items():
        if path and not Path(path).absolute().parent.is_dir():
            raise ValueError(f"{name}: wanted a file in a directory that exists, got {path}")
    known = known_failures(option("attn_known_failures"), sources)
    operations, dtypes = (tuple(option(name) or ()) for name in ("attn_op", "attn_dtype"))
    inputs = str(Path(option("attn_inputs")).absolute()) if option("attn_inputs") else ""
    if inputs and (own := check_inputs(inputs, operations, dtypes)):
        dtypes = (own,)
    failures = str(option("attn_failures"))
    options = Options(option("attn_profile"), seed_of(config), failures, inputs=inputs)
    workers = workers_of(config, sources)
    backends = list(backends_of(sources, workers))
    gc.freeze()  # what is loaded by now stays: the collector need not look at it again and again
    run = Verification(backends, operations, dtypes, options, known, workers)
    run.require, run.allow_weak = option("attn_require"), option("attn_allow_weak")
    journal = open_journal(config, sources, settings_of(config, run))
    if journal is not None:
        config.stash[STATE].journal = journal
        run.find_kept, run.keep = journal.find, journal.add
    return run


def settings_of(config: pytest.Config, run: Verification) -> list[Any] | None:
    """
    List what a result depends on beside files and versions; None for a run that does not name its
    backends itself, and has no journal.
    """
    option, inputs = config.getoption, run.options.inputs
    if not named_on_the_line(config) or option("collectonly"):
        return None
    limits = [option(f"attn_{name}") for name in ("case_seconds", "memory", "isolate", "device")]
    return [run.options, limits, run.known_failures, Path(inputs).read_bytes() if inputs else b""]


def processes_of(config: pytest.Config) -> int:
    """
    Count how many processes the processors are shared out among: the workers of pytest-xdist. A
    single process takes one of them: on small cases a library's threads only wait for each other.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0))
    return workers or len(getattr(config.option, "tx", None) or ()) or count_processors()


def report_paths(config: pytest.Config) -> dict[str, str | None]:
    """Tell where each report is to be written."""
    return {
        name: config.getoption(f"attn_{name.removeprefix('--').replace('-', '_')}")
        for name in REPORTS
    }


def workers_of(config: pytest.Config, sources: list[str]) -> dict[str, Worker]:
    """
    Start a process for each backend that gets one. Under pytest-xdist what the controller was told
    does for everyone.
    """
    option = config.getoption
    limits = Limits(option("attn_case_seconds"), option("attn_memory"))
    told = json.loads(getattr(config, "workerinput", {}).get("attn_backends", "{}"))
    return {
        source: Worker(source, limits, told.get(source))
        for source in sources
        if runs_in_own_process(source, option("attn_isolate"))
    }


def seed_of(config: pytest.Config) -> int:
    """Choose the same number in every xdist worker."""
    if is_worker(config):
        return int(config.workerinput["attn_seed"])  # type: ignore[attr-defined]
    asked = config.getoption("attn_seed")
    if asked == "random":
        config.option.attn_seed = asked = str(random.SystemRandom().randrange(2**31))
    return int(asked)


# The hooks


def pytest_configure(config: pytest.Config) -> None:
    """Tell what is wrong with the options of this command before anything runs."""
    config.stash[STATE] = State()
    config.pluginmanager.register(config.stash[STATE].collector)
    if not is_worker(config):
        config.pluginmanager.register(WordedProperties())
    if named_on_the_line(config):
        verification_of(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Called by pytest-xdist before it starts its workers, which inherit the environment."""
    share_out_processors(len(specs))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by pytest-xdist for each worker."""
    node.workerinput["attn_seed"] = seed_of(node.config)
    if run := node.config.stash[STATE].verification:
        node.workerinput["attn_backends"] = json.dumps(
            {source: worker.told for source, worker in run.workers.items()}, default=dict
        )
        if journal := node.config.stash[STATE].journal:
            node.workerinput["attn_journal"] = journal.path.stem
        pytest_unconfigure(node.config)  # they have said what they are, and are judged elsewhere


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the backends' processes with the run."""
    state = config.stash.get(STATE, None)
    run = state and state.verification
    for worker in run.workers.values() if run else ():
        worker.close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """
    Tell who will be judged, where a run asks for that; other runs need not load a backend for it.
    """
    if is_worker(config) or not is_about_backends(config):
        return []
    return header(verification_of(config))


def pytest_sessionstart(session: pytest.Session) -> None:
    manager = session.config.pluginmanager
    reporter = manager.get_plugin("terminalreporter")
    if is_about_backends(session.config) and show_progress(session.config, reporter):
        manager.register(Progress(reporter))


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a differential test its cells."""
    state, chosen = metafunc.config.stash[STATE], list[Cell]()
    state.collected = True
    try:
        chosen = cells_of(metafunc)
    except pytest.UsageError as error:
        state.problem = str(error)
    state.cells += len(chosen)
    metafunc.parametrize("cell", chosen, ids=[cell.id for cell in chosen])


def cells_of(metafunc: pytest.Metafunc) -> list[Cell]:
    """List the cells of a test's aspect, in the chapter of its module where that names one."""
    run = verification_of(metafunc.config)
    chapter = getattr(metafunc.module, "CHAPTER", None)
    if chapter not in (None, *CHAPTERS):
        raise pytest.UsageError(f"CHAPTER: wanted one of {', '.join(CHAPTERS)}, got {chapter}")
    aspect = ASPECT_OF[metafunc.function.__name__]
    return [cell for cell in run.cells(chapter) if cell.aspect == aspect]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Cells of one operation and dtype run together: what the specification says of a recipe is
    computed once for all of them.
    """
    if config.stash[STATE].problem:
        if not is_worker(config):
            raise pytest.UsageError(config.stash[STATE].problem)
        items.clear()  # the controller says why
    items[:] = [item for item in items if not has_no_cell(item)]
    differential = [index for index, item in enumerate(items) if cell_of(item)]
    order: Callable[[Cell], Any] = (
        run_order if config.getoption("attn_minutes") is None else telling_order
    )
    ordered = sorted((items[index] for index in differential), key=lambda i: order(cell_of(i)))
    for index, item in zip(differential, ordered, strict=True):
        items[index] = item
        if config.pluginmanager.hasplugin("xdist"):  # --dist loadgroup keeps them in one worker
            operation, dtype = cell_of(item).implementation.operation.name, cell_of(item).dtype
            item.add_marker(pytest.mark.xdist_group(f"{operation}-{dtype}"))


def cell_of(item: pytest.Item) -> Any:
    """Find the cell that a differential test is about; None for every other test."""
    cell = getattr(getattr(item, "callspec", None), "params", {}).get("cell")
    return cell if isinstance(cell, Cell) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a cell out that would begin after the minutes of this run."""
    minutes, cell = item.config.getoption("attn_minutes"), cell_of(item)
    if cell is not None and item.config.stash[STATE].is_over(minutes):
        item.user_properties.append(("left out", cell.title))
        pytest.skip(f"left out: --minutes {minutes:g} is over")


def has_no_cell(item: pytest.Item) -> bool:
    """
    Recognise a differential test to which nothing of this run applies; pytest gives it this name
    and would show it as skipped.
    """
    return getattr(getattr(item, "callspec", None), "id", "") == "NOTSET" and is_ours(
        getattr(item, "function", None)
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[STATE].selected = sum(cell_of(item) is not None for item in session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    state = config.stash[STATE]
    state.collector.restore(terminalreporter)
    if state.verification is None and state.tallies:
        verification_of(config)  # the controller of xdist has collected nothing itself
    if state.problem and state.verification is None:
        terminalreporter.write_line(f"ERROR: {state.problem}", red=True)
    run = state.verification
    if run is None or config.getoption("collectonly"):
        return
    if state.tallies or (state.collected and not state.is_narrowed()):
        left = state.collector.left_out
        minutes = config.getoption("attn_minutes")
        limits = [
            *tell_cut(left, len(state.tallies), minutes),
            *tell_resumed(config, state.journal),
        ]
        print_summary(terminalreporter, run, state.tallies, report_paths(config), left, limits)
    elif named_on_the_line(config):
        terminalreporter.write_line("attnverify: no differential test was run: nothing was judged")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """
    A broken backend, or a run in which nothing was judged, ends with status 2; a known failure that
    speaks of nothing with 1.
    """
    config = session.config
    state = config.stash[STATE]
    if state.journal and not is_worker(config) and 0 < state.selected <= len(state.tallies):
        state.journal.forget()
    if is_worker(config):
        config.workeroutput["attn_counts"] = state.counts()  # type: ignore[attr-defined]
    elif exitstatus in (0, 5) and not config.getoption("collectonly"):
        session.exitstatus = final_status(config, state, int(exitstatus))


def final_status(config: pytest.Config, state: State, status: int) -> int:
    """Choose the exit status of a run in which no test has failed."""
    run, named = state.verification, named_on_the_line(config)
    if state.problem:
        return int(pytest.ExitCode.USAGE_ERROR)
    if run is None:
        return status
    if not state.collected or (state.is_narrowed() and status == 0):
        return 2 if named else status
    judged = {tally["backend"] for tally in state.tallies if tally["verdict"] in JUDGED}
    asked = {
        backend.name for backend in run.backends if named or backend.source not in PROJECT_BACKENDS
    }
    if unjudged_backends(run) or not asked <= judged:
        return 2
    return 1 if unmatched_known_failures(run) else status
