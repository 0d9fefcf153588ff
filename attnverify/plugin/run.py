"""
The judging part of the pytest plugin: loads the backends, hands their cells to the differential
tests, and says how the run ends. Loaded by :mod:`attnverify.plugin` where a run uses it.

Under pytest-xdist every worker loads the backends for itself and the controller collects the
tallies.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from attnverify.backends.source import parse_source
from attnverify.catalogue.traits import ASPECTS, CHAPTERS
from attnverify.machine import share_out_processors
from attnverify.plugin import is_ours
from attnverify.plugin.closing import is_brief, print_summary, seeks_mends
from attnverify.plugin.journal import tell_cut, tell_interrupted, tell_resumed
from attnverify.plugin.mending import note_mends
from attnverify.plugin.setup import report_paths, seed_of, verification_of
from attnverify.plugin.state import (
    STATE,
    State,
    is_about_backends,
    is_worker,
    named_on_the_line,
    sources_of,
)
from attnverify.report.junit import WordedProperties
from attnverify.report.live.progress import progress_of
from attnverify.report.table import header
from attnverify.session import unjudged_backends, unmatched_known_failures
from attnverify.verdicts.cell import Cell, run_order, telling_order
from attnverify.verdicts.tally import JUDGED

__all__ = ["STATE", "verification_of"]

ASPECT_OF = {f"test_{aspect.lower().replace(' ', '_')}": aspect for aspect in ASPECTS}


def pytest_configure(config: pytest.Config) -> None:
    """Tell what is wrong with the options of this command before anything runs."""
    config.stash[STATE] = State()
    config.pluginmanager.register(config.stash[STATE].collector)
    if not is_worker(config):
        config.pluginmanager.register(WordedProperties(config.stash[STATE].never_reported))
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
    config, manager = session.config, session.config.pluginmanager
    reporter = manager.get_plugin("terminalreporter")
    progress = is_about_backends(config) and progress_of(config, reporter, not is_brief(config))
    if progress:
        manager.register(progress, PROGRESS)


PROGRESS = "attnverify-progress"
"""The name of the plugin that counts the cases."""


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
            item.add_marker(pytest.mark.xdist_group(group_of(cell_of(item))))


def group_of(cell: Cell) -> str:
    """Name what runs in one worker: there the specification answers once, or a kernel compiles."""
    own = cell.implementation
    where = f"-{own.backend.name.replace('@', '-')}" if own.backend.sampled else ""  # xdist's mark
    return f"{own.operation.name}-{cell.dtype}{where}"


def cell_of(item: pytest.Item) -> Any:
    """Find the cell that a differential test is about; None for every other test."""
    cell = getattr(getattr(item, "callspec", None), "params", {}).get("cell")
    return cell if isinstance(cell, Cell) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a cell out that would begin after the minutes of this run."""
    minutes, cell = item.config.getoption("attn_minutes"), cell_of(item)
    if cell is not None and item.config.stash[STATE].is_over(minutes):
        pytest.skip(f"not judged: --minutes {minutes:g} is over")


def has_no_cell(item: pytest.Item) -> bool:
    """
    Recognise a differential test to which nothing of this run applies; pytest gives it this name
    and would show it as skipped.
    """
    return getattr(getattr(item, "callspec", None), "id", "") == "NOTSET" and is_ours(
        getattr(item, "function", None)
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    state = session.config.stash[STATE]
    state.chosen = {item.nodeid: None for item in session.items if cell_of(item)}
    state.selected = len(state.chosen)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Learn in the controller of pytest-xdist, which collects nothing, what its workers run."""
    node.config.stash[STATE].chosen |= dict.fromkeys(ids)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    state = config.stash[STATE]
    state.collector.restore(terminalreporter)
    if state.verification is None and state.tallies:
        verification_of(config)  # the controller of xdist has collected nothing itself
    if state.problem and state.verification is None:
        terminalreporter.write_line(f"ERROR: {state.problem}", red=True)
    run = state.verification
    is_broken_off = exitstatus == pytest.ExitCode.INTERRUPTED and not terminalreporter.stats.get(
        "error"
    )
    if run is None and is_broken_off and named_on_the_line(config):
        terminalreporter.write_line("attnverify: interrupted before anything was judged")
    if run is None or config.getoption("collectonly"):
        return
    minutes, cut = config.getoption("attn_minutes"), state.cut(run)
    is_judged = state.collected and not state.is_narrowed()
    if state.tallies or is_judged:
        is_over = state.is_over(minutes)
        limits = tell_resumed(config, state.journal)
        if not is_broken_off:
            limits = tell_cut(cut, len(state.tallies), minutes if is_over else None) + limits
        else:
            progress = config.pluginmanager.get_plugin(PROGRESS)
            under_way = progress.under_way() if progress else ""
            limits += tell_interrupted(cut, len(state.tallies), under_way, run.options)
        if seeks_mends(config) and not (is_broken_off or is_over):
            note_mends(run, state.tallies)
        print_summary(terminalreporter, run, state.tallies, report_paths(config), cut, limits)
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
    sources = sources_of(config)
    asked = {
        backend.name
        for backend in run.backends
        if (named and backend.source in sources) or not parse_source(backend.source).is_column
    }
    if unjudged_backends(run) or not asked <= judged or state.cut(run).required(run):
        return 2
    return 1 if unmatched_known_failures(run) else status
