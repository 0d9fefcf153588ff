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
the workers of an existing scheduler are used, and the devices are the business of whoever started
them (:mod:`attnverify.campaign.cluster`).

What came back is kept as it comes: a scheduler that ends costs what was under way, and ``--resume``
goes on, with the same draws.
"""

import argparse
import queue
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from attnverify.backends.source import PROJECT_BACKENDS, parse_source
from attnverify.campaign.cluster import (
    ENGINE,
    Sent,
    Unreachable,
    as_here,
    as_there,
    compare_versions,
    dask_client,
    is_connected,
    send_files,
    take_back,
)
from attnverify.campaign.merging import CellTotal
from attnverify.campaign.state import Campaign
from attnverify.campaign.work_units import (
    Outcome,
    WorkUnit,
    generate_work_units,
    place,
    run_work_unit,
)
from attnverify.catalogue.operation import CATALOGUE
from attnverify.device_assignment import assign_device
from attnverify.failures.record import describe_damaged_records
from attnverify.isolation import supervisor
from attnverify.isolation.readings import installed
from attnverify.isolation.worker_process import Limits, Worker
from attnverify.report.causes.root_causes import triage
from attnverify.report.causes.words import (
    format_root_causes,
    format_weak_cells,
    representative_cells,
)
from attnverify.report.json_report import as_json, write_reports
from attnverify.report.next_steps import Cut, describe_outcomes, next_steps, see_again
from attnverify.report.table import format_table, header, number_of
from attnverify.report.terminal_colours import print_folded, terminal_width, use_colour
from attnverify.session import (
    Verification,
    known_failures,
    unjudged_backends,
    unmatched_known_failures,
)
from attnverify.verdicts.found_out import loaded
from attnverify.verdicts.journal import Journal, fingerprint, journal_of
from attnverify.verdicts.tally import JUDGED, Options


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
            f"attnverify campaign: {ENGINE} is not installed: pip install {ENGINE}",
            file=sys.stderr,
        )
        return 2
    try:
        run, limits = prepare(chosen)
        journal, kept = open_journal(chosen, run)
    except ValueError as error:
        print(f"attnverify campaign: {error}", file=sys.stderr)
        return 4
    print_folded([*header(run), *tell_resumed(chosen, kept)])
    known = {place(cell): run.known(cell) for cell in run.cells(None)}
    state = Campaign(
        run,
        {place(cell): CellTotal(cell.result()) for cell in run.cells(None)},
        generate_work_units(run.cells(None), known, run.options.failures, run.options.seed),
        start + chosen.hours * 3600,
        journal=journal,
    )
    state.resume(kept)
    try:
        if state.sums:
            with dask_client(chosen) as client:
                if chosen.address:
                    meet_workers(state, client)
                schedule(state, client, limits, chosen.isolate, start)
                take_back(client, state.sent)
    except (Unreachable, ValueError) as error:
        print(f"attnverify campaign: {error}", file=sys.stderr)
        return 4 if isinstance(error, ValueError) else 2
    return finish(state, chosen, time.monotonic() - start)


def open_journal(
    chosen: argparse.Namespace, run: Verification
) -> tuple[Journal, dict[str, dict[str, Any]]]:
    """
    Open the journal of a campaign, and read what an earlier one of the same files, options and
    versions has kept, where --resume asks for it. The seed that was drawn then holds on.
    """
    sources = [backend.source for backend in run.backends]
    settings = run.operations, run.dtypes, chosen.seed, run.known_failures, chosen.isolate
    journal = journal_of(f"campaign-{fingerprint(sources, *settings, chosen.case_seconds)}")
    if chosen.resume:
        journal.read()
    else:
        journal.forget()
    kept = dict(journal.kept)
    if first := kept.pop(SEED, None):
        run.options = replace(run.options, seed=first["seed"])
    else:
        journal.add(SEED, {"seed": run.options.seed})
    return journal, kept


SEED = "seed"
"""The line of a journal that tells the seed of its draws."""


def tell_resumed(chosen: argparse.Namespace, kept: dict[str, dict[str, Any]]) -> list[str]:
    """Say what --resume has found."""
    if not chosen.resume:
        return []
    if not kept:
        return ["nothing to resume: no campaign of these files, options and versions is there"]
    return [f"resumed: {number_of(len(kept), 'unit')} judged before"]


def meet_workers(state: Campaign, client: Any) -> None:
    """
    Say which versions differ on the workers of others, and send them the files of the backends.
    Raises Unreachable or ValueError.
    """
    state.met = set(client.ncores())
    for line in compare_versions(client):
        print(line, flush=True)
    state.sent = send_files(client, [backend.source for backend in state.run.backends])


def meet_newcomers(state: Campaign, client: Any) -> None:
    """
    Say which versions differ on workers of others that have joined since; one that cannot judge is
    retired, for it would take the units of those that can.
    """
    joined = sorted(state.workers - state.met) if state.met is not None else []
    for address in joined:
        try:
            lines = compare_versions(client, [address])
        except Unreachable as error:
            client.retire_workers([address])
            lines = [f"warning: {error}; it joined late, and was retired"]
        for line in lines:
            show_progress_line(line)
    if state.met is not None:
        state.met.update(joined)


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
        supervisor.describe_backend(workers[source]) if source in workers else loaded(source)
        for source in sources
    ]
    for worker in workers.values():
        worker.close()
    options = Options("thorough", seed, chosen.failures)
    operations, dtypes = tuple(chosen.op or ()), tuple(chosen.dtype or ())
    run = Verification(backends, operations, dtypes, options, known, began=began)
    run.require, run.allow_weak = chosen.require, chosen.allow_weak
    return run, limits


def schedule(state: Campaign, client: Any, limits: Limits, isolate: str, start: float) -> None:
    """Keep the workers busy until the time is over; units that then still run are given up."""
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told, wide = start, state.look(client)
    try:
        while time.monotonic() < state.end:
            while len(state.under_way) < wide and (unit := state.next_unit()):
                future = client.submit(run_on_worker, unit, limits, isolate, state.sent, pure=False)
                state.under_way[future] = unit
                future.add_done_callback(done.put)
            if not state.under_way:
                break
            if not is_connected(client):
                state.scheduler_ended = True
                return
            with suppress(queue.Empty):
                on_result(
                    state, done.get(timeout=min(0.5, max(state.end - time.monotonic(), 0.01)))
                )
            if time.monotonic() - told > (0.5 if sys.stdout.isatty() else 10):
                show_progress_line(state.progress(start))
                told, wide = time.monotonic(), state.look(client)
                meet_newcomers(state, client)
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
    state.look(client)
    client.cancel(list(state.under_way), force=True)


def run_on_worker(unit: WorkUnit, limits: Limits, isolate: str, sent: Sent) -> Outcome:
    """Take a device before any library is imported, and judge the unit: what a worker does."""
    worker = import_module(ENGINE).get_worker()
    if isinstance(worker.name, int):
        assign_device(worker.name)
    there = as_there(unit, sent, worker.local_directory)
    return as_here(run_work_unit(there, limits, isolate, worker.address), unit, there)


def on_result(state: Campaign, future: Any) -> None:
    """Handle a unit that has come back, or whose workers have not."""
    unit = state.under_way.pop(future)
    try:
        state.take(future.result(timeout=min(max(state.end - time.monotonic(), 1.0), ANSWER)))
    except (TimeoutError, CancelledError):  # its worker took the answer along; or the scheduler has
        state.again.append(unit)
    except Exception as error:
        state.give_up(
            unit,
            f"no worker brought it to an end: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}",
        )


ANSWER = 10
"""Seconds in which an answer that is there must have come; the unit is done once more otherwise."""


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
    for tally in representative_cells(tallies, state.run.is_red):
        print_folded(["", *tally["reason"].splitlines()])
    written = sum(
        sum_.write(state.run.options.failures) for sum_ in state.sums.values() if sum_.failed
    )
    requires = state.run.is_red
    table = format_table(tallies, terminal_width(sys.stdout), use_colour(sys.stdout), requires)
    lines = [*format_root_causes(triage(tallies, requires)), *format_weak_cells(tallies)]
    print("\n" + "\n".join(table))
    print_folded(lines)
    print_folded(describe_end(state, seconds, written, missed))
    numbers = {
        "seconds": seconds,
        "units": len(state.seconds),
        "workers": len(state.workers),
        "lost": state.lost,
    }
    numbers |= {"cut_off": state.cut_off, "not_reached": missed}
    report = as_json(state.run, tallies) | {"campaign": numbers}
    asked = {"--report": chosen.report, "--report-json": chosen.report_json}
    print_folded(write_reports(report, asked))
    print_folded(see_again(state.run, tallies, chosen.report))
    unreached = {at for at, sum_ in state.sums.items() if not sum_.units}
    cut = Cut([cell for cell in state.run.cells(None) if place(cell) in unreached])
    print_folded([*next_steps(state.run, tallies), *describe_outcomes(state.run, tallies, cut)])
    return status(state, tallies, missed)


def describe_end(state: Campaign, seconds: float, written: int, missed: int) -> Iterator[str]:
    """Say how much a campaign has done, and what it left."""
    yield (
        f"campaign: {seconds:.0f} s, {len(state.seconds)} units on {len(state.workers)} workers, "
        f"{state.lost} of them lost, "
        f"{state.cut_off} units cut off at the end; {written} failures in "
        f"{state.run.options.failures}"
    )
    for words in describe_damaged_records(state.run.options.failures):
        yield f"warning: {words}"
    if state.scheduler_ended:
        yield "the scheduler has ended, and what was under way with it"
    if missed or state.scheduler_ended:
        yield "next, to go on where it was broken off: the same line with --resume"
    if missed:
        yield f"{missed} of {len(state.sums)} cells were not reached: the verdict is not complete"


def status(state: Campaign, tallies: list[dict[str, Any]], missed: int) -> int:
    """
    0 everything passed or failed as known, 1 something failed, 2 a backend is broken or missing, or
    something was never judged.
    """
    if any(map(state.run.is_red, tallies)):
        return 1
    judged = {tally["backend"] for tally in tallies if tally["verdict"] in JUDGED}
    asked = {
        backend.name
        for backend in state.run.backends
        if not parse_source(backend.source).is_column or not backend.missing
    }
    if unjudged_backends(state.run) or missed or state.scheduler_ended or not asked <= judged:
        return 2
    return 1 if unmatched_known_failures(state.run) else 0
