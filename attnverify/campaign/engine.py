"""
Campaign: the thorough profile, spread over cores, devices and machines, for as long as one likes.

The engine is dask.distributed (BSD-3): its scheduler runs a unit again when the worker that had it
is gone, a nanny beside each worker replaces a process that was killed, workers of other machines
join by one address, and it is pure Python. Ray offers the same, by a far larger binary with daemons
and an object store of its own, which plain data of a few kilobytes does not need. The engine is
imported by this command alone.

Every backend, ours too, is judged in a process of its own (:mod:`attnverify.isolation.supervisor`),
so that a crash or a hang costs its own unit alone; and beside the engine's threads, which draw
random numbers, a backend could be taken for one that does.

Workers of this machine get a device each (:mod:`attnverify.device_assignment`). With ``--address``
the workers of an existing scheduler are used: this project and the backends must lie at the same
place there, and the devices are the business of whoever started them.
"""

import argparse
import logging
import queue
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from attnverify.backends.loader import load
from attnverify.backends.source import PROJECT_BACKENDS, parse_source
from attnverify.campaign.merging import CellTotal
from attnverify.campaign.work_units import (
    Outcome,
    Place,
    WorkUnit,
    generate_work_units,
    place,
    run_work_unit,
)
from attnverify.catalogue.operation import CATALOGUE
from attnverify.device_assignment import assign_device
from attnverify.failures.finding import Finding
from attnverify.failures.record import describe_damaged_records
from attnverify.isolation import supervisor
from attnverify.isolation.readings import installed
from attnverify.isolation.supervisor import Limits, Worker
from attnverify.report.json_report import as_json, write_reports
from attnverify.report.next_steps import next_steps
from attnverify.report.root_causes import (
    format_root_causes,
    format_weak_cells,
    representative_cells,
    triage,
)
from attnverify.report.table import format_table, header
from attnverify.report.terminal_colours import colourize, terminal_width, use_colour
from attnverify.session import (
    Verification,
    known_failures,
    unjudged_backends,
    unmatched_known_failures,
)
from attnverify.verdicts.tally import JUDGED, Options, Tally

ENGINE = "distributed"
TRIES = 1
"""
So often a unit runs again because its worker is gone, and then once more as often, for it may have
been a neighbour's fault.
"""

ENOUGH = 3
"""A cell that failed in so many units is asked no more: the time is for those that have not."""


@dataclass
class Campaign:
    """The state of a campaign: what each cell has shown, what is under way, who has worked."""

    run: Verification
    sums: dict[Place, CellTotal]
    todo: Iterator[WorkUnit]
    end: float
    under_way: dict[Any, WorkUnit] = field(default_factory=dict)
    again: list[WorkUnit] = field(default_factory=list)
    tried: set[tuple[Place, str, int, str]] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)
    lost: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def reached(self) -> int:
        return sum(sum_.units > 0 for sum_ in self.sums.values())

    def next_unit(self) -> WorkUnit | None:
        """
        Choose the next unit of a cell that is still worth asking; none when what is left of the
        time is too short for one.
        """
        usual = statistics.median(self.seconds) if self.seconds else 0.0
        if time.monotonic() + usual > self.end or all(
            sum_.failed >= ENOUGH for sum_ in self.sums.values()
        ):
            return None
        if self.again:
            return self.again.pop()
        return next((unit for unit in self.todo if self.sums[unit.cell].failed < ENOUGH), None)

    def take(self, outcome: Outcome) -> None:
        """Count what came back."""
        self.sums[outcome.unit.cell].add(outcome)
        self.seconds.append(outcome.seconds)
        self.workers.add(outcome.worker)

    def look(self, client: Any) -> int:
        """
        See who works and who is gone (each process has an address of its own); how many units may
        be under way.
        """
        present = set(client.ncores())
        self.workers |= present
        self.lost = len(self.workers - present)
        return 2 * max(len(present), 1)

    def give_up(self, unit: WorkUnit, words: str) -> None:
        """
        A unit whose workers ended, one after the other: once more, for it may have been another's
        fault; then it is a failure.
        """
        if unit.name not in self.tried:
            self.tried.add(unit.name)
            self.again.append(unit)
            return
        where = ", ".join(
            [f"profile {unit.profile}", f"seed {unit.seed}", *filter(None, [unit.check])]
        )
        empty = self.sums[unit.cell].result.with_tally(
            Tally(findings=[Finding("ended its workers", message=f"{words}\n{where}")])
        )
        self.sums[unit.cell].add(Outcome(empty, {}, "", 0.0, unit))

    def progress(self, start: float) -> str:
        """
        Format ``41:12 left, 812 units, 96/96 cells, 51234 cases (310/s), 3 failures, 1 workers
        lost``
        """
        cases = sum(sum_.result.cases for sum_ in self.sums.values())
        left, rate = (
            max(self.end - time.monotonic(), 0.0),
            cases / max(time.monotonic() - start, 1e-9),
        )
        findings = sum(len(sum_.findings) for sum_ in self.sums.values())
        told = (
            f"{int(left // 60)}:{int(left % 60):02} left, {len(self.seconds)} units, "
            f"{self.reached}/{len(self.sums)} cells, "
        )
        told += f"{cases} cases ({rate:.0f}/s), {findings} failures"
        return told + (f", {self.lost} workers lost" if self.lost else "")

    def tallies(self) -> list[dict[str, Any]]:
        """List the verdicts on the cells that were reached."""
        known = {place(cell): self.run.known(cell) for cell in self.run.cells(None)}
        return [sum_.decided(known[at]).as_dict() for at, sum_ in self.sums.items() if sum_.units]


def campaign(chosen: argparse.Namespace) -> int:
    """
    Run a campaign; the exit status, as of ``attnverify run``, and 2 also where some cells were
    never reached.
    """
    start = time.monotonic()
    try:
        import_module(ENGINE)
    except ImportError:
        print(
            f"attnverify campaign: {ENGINE} is not installed: pip install 'attnverify[campaign]'",
            file=sys.stderr,
        )
        return 2
    try:
        run, limits = prepare(chosen)
    except ValueError as error:
        print(f"attnverify campaign: {error}", file=sys.stderr)
        return 4
    print("\n".join(header(run)), flush=True)
    known = {place(cell): run.known(cell) for cell in run.cells(None)}
    state = Campaign(
        run,
        {place(cell): CellTotal(cell.result()) for cell in run.cells(None)},
        generate_work_units(run.cells(None), known, run.options.failures, run.options.seed),
        start + chosen.hours * 3600,
    )
    if state.sums:
        with dask_client(chosen) as client:
            schedule(state, client, limits, chosen.isolate, start)
    return finish(state, chosen, time.monotonic() - start)


def prepare(chosen: argparse.Namespace) -> tuple[Verification, Limits]:
    """
    Return the backends, loaded as ``attnverify run`` loads them, and what each case may take on
    this machine.
    """
    if not chosen.hours > 0 or chosen.workers < 1:
        raise ValueError(
            f"--hours, --workers: wanted a time and a number above 0, got {chosen.hours} and "
            f"{chosen.workers}"
        )
    if unknown := [name for name in chosen.op or () if name not in CATALOGUE]:
        raise ValueError(f"--op: wanted an operation of the catalogue, got {unknown[0]}")
    sources = chosen.backend or list(PROJECT_BACKENDS)
    seed = random.SystemRandom().randrange(2**31) if chosen.seed == "random" else int(chosen.seed)
    memory = chosen.memory or (
        0 if chosen.address else int(0.75 * min(installed(), 2**30) / chosen.workers)
    )
    limits, began = Limits(chosen.case_seconds, memory), time.time()
    known = known_failures(chosen.known_failures, sources)
    workers = {
        source: Worker(source, limits)
        for source in sources
        if supervisor.runs_in_own_process(source, chosen.isolate)
    }
    backends = [
        supervisor.describe_backend(workers[source]) if source in workers else load(source)
        for source in sources
    ]
    for worker in workers.values():
        worker.close()
    options = Options("thorough", seed, chosen.failures)
    operations, dtypes = tuple(chosen.op or ()), tuple(chosen.dtype or ())
    run = Verification(backends, operations, dtypes, options, known, began=began)
    run.require, run.allow_weak = chosen.require, chosen.allow_weak
    return run, limits


@contextmanager
def dask_client(chosen: argparse.Namespace) -> Iterator[Any]:
    """Start a client of the workers, which are started here unless there is a scheduler already."""
    distributed, dask = import_module(ENGINE), import_module("dask")
    dask.config.set(
        {
            "distributed.scheduler.allowed-failures": TRIES,
            "distributed.comm.timeouts.connect": "60s",
        }
    )
    cluster: Any = chosen.address
    if not cluster:
        cluster = distributed.LocalCluster(
            n_workers=chosen.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
    client = distributed.Client(cluster)
    try:
        yield client
    finally:
        client.close()
        if not chosen.address:
            cluster.close()


def schedule(state: Campaign, client: Any, limits: Limits, isolate: str, start: float) -> None:
    """Keep the workers busy until the time is over; units that then still run are given up."""
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told, wide = start, state.look(client)
    try:
        while time.monotonic() < state.end:
            while len(state.under_way) < wide and (unit := state.next_unit()):
                future = client.submit(run_on_worker, unit, limits, isolate, pure=False)
                state.under_way[future] = unit
                future.add_done_callback(done.put)
            if not state.under_way:
                break
            with suppress(queue.Empty):
                on_result(
                    state, done.get(timeout=min(0.5, max(state.end - time.monotonic(), 0.01)))
                )
            if time.monotonic() - told > (0.5 if sys.stdout.isatty() else 10):
                show_progress_line(state.progress(start))
                told, wide = time.monotonic(), state.look(client)
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
    state.look(client)
    client.cancel(list(state.under_way), force=True)


def run_on_worker(unit: WorkUnit, limits: Limits, isolate: str) -> Outcome:
    """Take a device before any library is imported, and judge the unit: what a worker does."""
    worker = import_module(ENGINE).get_worker()
    if isinstance(worker.name, int):
        assign_device(worker.name)
    return run_work_unit(unit, limits, isolate, worker.address)


def on_result(state: Campaign, future: Any) -> None:
    """Handle a unit that has come back, or whose workers have not."""
    unit = state.under_way.pop(future)
    try:
        state.take(future.result(timeout=max(state.end - time.monotonic(), 1.0)))
    except TimeoutError:  # it is done once more, for its worker took the answer along
        state.under_way[future] = unit
    except Exception as error:
        state.give_up(
            unit,
            f"no worker brought it to an end: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}",
        )


def show_progress_line(line: str) -> None:
    """Show the progress: one line, rewritten on a terminal."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="", flush=True)
    else:
        print(line, flush=True)


def finish(state: Campaign, chosen: argparse.Namespace, seconds: float) -> int:
    """
    Print what was found: each root cause in full, the table, the triage, the numbers of the
    campaign; and the exit status.
    """
    tallies, missed = state.tallies(), len(state.sums) - state.reached
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")
    for tally in representative_cells(tallies):
        print(f"\n{tally['reason']}")
    written = sum(
        sum_.write(state.run.options.failures) for sum_ in state.sums.values() if sum_.failed
    )
    table = format_table(tallies, terminal_width(sys.stdout), use_colour(sys.stdout))
    lines = [*format_root_causes(triage(tallies)), *format_weak_cells(tallies)]
    causes = map(colourize, lines)
    print("\n" + "\n".join([*table, *causes]))
    print(
        f"campaign: {seconds:.0f} s, {len(state.seconds)} units on {len(state.workers)} workers, "
        f"{state.lost} of them lost, "
        f"{len(state.under_way)} units cut off at the end; {written} failures in "
        f"{state.run.options.failures}"
    )
    for words in describe_damaged_records(state.run.options.failures):
        print(f"warning: {words}")
    if missed:
        print(f"{missed} of {len(state.sums)} cells were not reached: the verdict is not complete")
    numbers = {
        "seconds": seconds,
        "units": len(state.seconds),
        "workers": len(state.workers),
        "lost": state.lost,
    }
    numbers |= {"cut_off": len(state.under_way), "not_reached": missed}
    report = as_json(state.run, tallies) | {"campaign": numbers}
    asked = {"--report": chosen.report, "--report-json": chosen.report_json}
    for words in write_reports(report, asked):
        print(words)
    for line in next_steps(state.run, tallies, chosen.report):
        print(line)
    return status(state, tallies, missed)


def status(state: Campaign, tallies: list[dict[str, Any]], missed: int) -> int:
    """
    0 everything passed or failed as known, 1 something failed, 2 a backend is broken or missing, or
    something was never judged.
    """
    if any(map(state.run.is_red, tallies)):
        return 1
    for words in unjudged_backends(state.run):
        print(words)
    judged = {tally["backend"] for tally in tallies if tally["verdict"] in JUDGED}
    asked = {
        backend.name
        for backend in state.run.backends
        if not parse_source(backend.source).is_column or not backend.missing
    }
    if unjudged_backends(state.run) or missed or not asked <= judged:
        return 2
    return 1 if unmatched_known_failures(state.run) else 0
