"""
Units of a campaign: a cell with a block of draws, or one of its checks. They are plain data, and so
is what comes of them.

A unit keeps nothing: its failures come back as records, so that it can run again on another machine
when the first one is lost.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnverify.backends.implementation import Backend
from attnverify.catalogue.operation import CATALOGUE, parse_name
from attnverify.checks.registry import checks
from attnverify.failures import record
from attnverify.failures.evidence import Evidence, picture_of_error
from attnverify.failures.finding import UNEXPECTED_PASS, Finding
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord
from attnverify.failures.replay import replay
from attnverify.failures.store import save, save_or_say
from attnverify.isolation import supervisor
from attnverify.isolation.worker_process import Limits, Worker, WorkerDied
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.verdicts.cell import Cell, cells
from attnverify.verdicts.columns import collect_evidence
from attnverify.verdicts.found_out import loaded
from attnverify.verdicts.tally import CellResult, Options, Tally, unsupported

Place = tuple[str, str, str, str]
"""A cell, said in a way that holds in every process: source, implementation, dtype, aspect."""


@dataclass(frozen=True)
class WorkUnit:
    """
    What a worker is asked for.

    profile, seed  the block of draws; check: the name of one check of that profile, judged alone
    known          the known failures of regions that speak of the cell, and shown: the records that
                   they name
    """

    source: str
    implementation: str
    dtype: str
    aspect: str
    profile: str
    seed: int
    check: str = ""
    known: tuple[KnownFailure, ...] = ()
    shown: tuple[FailureRecord, ...] = ()

    @property
    def cell(self) -> Place:
        return self.source, self.implementation, self.dtype, self.aspect

    @property
    def name(self) -> tuple[Place, str, int, str]:
        return self.cell, self.profile, self.seed, self.check


@dataclass
class Outcome:
    """
    The result of one work unit: what the cell showed before any verdict, replay scripts by the hash
    of their records, the worker's address, seconds.
    """

    result: CellResult
    scripts: dict[str, str]
    worker: str
    seconds: float
    unit: WorkUnit = field(repr=False)

    def as_line(self) -> tuple[str, dict[str, Any]]:
        """Tell it as plain data, for a journal: which unit it is of, and what it showed."""
        unit = self.unit
        name = [*unit.cell, unit.profile, unit.seed, unit.check]
        return json.dumps(name), {"result": self.result.as_dict(), "scripts": self.scripts}

    @classmethod
    def from_line(cls, name: str, kept: dict[str, Any]) -> "Outcome":
        """Read it from there."""
        result = CellResult.from_dict(kept["result"])
        return cls(result, kept["scripts"], "", 0.0, WorkUnit(*json.loads(name)))


def generate_work_units(
    chosen: list[Cell], known: dict[Place, tuple[KnownFailure, ...]], folder: str, seed: int
) -> Iterator[WorkUnit]:
    """
    Generate the thorough profile in small pieces, without end.

    A few cases of every cell come first, so that none is missed; then a block of the default
    profile for each, then the long sequences and relations of the thorough profile one by one, then
    further blocks, each with a seed of its own.
    """
    regions = {
        place(cell): tuple(replace(line) for line in known[place(cell)] if line.when)
        for cell in chosen
    }
    records = {
        place(cell): records_of_known_failures(regions[place(cell)], folder) for cell in chosen
    }

    def block(profile: str, own: int) -> Iterator[WorkUnit]:
        return (
            WorkUnit(*at, profile, own, known=regions[at], shown=records[at])
            for at in map(place, chosen)
        )

    yield from block("quick", seed)
    yield from block("default", seed + 1)
    for cell in chosen:
        if cell.aspect == "values":
            for name in checks(cell.implementation.operation.name, "values", "thorough", seed):
                yield WorkUnit(*place(cell), "thorough", seed, name)
    for number in count(2):
        yield from block("default", seed + number)


def place(cell: Cell) -> Place:
    return cell.implementation.backend.source, cell.implementation.name, cell.dtype, cell.aspect


def records_of_known_failures(
    known: tuple[KnownFailure, ...], folder: str
) -> tuple[FailureRecord, ...]:
    """List the records that known failures name: they fail in every unit, whatever it draws."""
    found = []
    for line in known:
        if line.replay:
            try:
                found.append(record.find_record(line.replay, folder))
            except ValueError:
                continue
    return tuple(found)


# In the worker


@lru_cache
def backend_of(source: str, limits: Limits, isolate: str) -> tuple[Backend, Worker | None]:
    """
    Return the backend, loaded once in each process, and the process of its own where it has one.
    """
    if not supervisor.runs_in_own_process(source, isolate):
        return loaded(source), None
    worker = Worker(source, limits)
    return supervisor.describe_backend(worker), worker


def run_work_unit(unit: WorkUnit, limits: Limits, isolate: str, worker: str) -> Outcome:
    """
    Judge a unit here. A backend that cannot be loaded here is a failure of the unit, not of the
    campaign.
    """
    start = time.monotonic()
    backend, own = backend_of(unit.source, limits, isolate)
    cell = next(
        (cell for cell in cells([backend], dtypes=(unit.dtype,)) if place(cell) == unit.cell), None
    )
    with TemporaryDirectory(prefix="attnverify-unit-") as folder:
        for failure in unit.shown:
            save(failure, folder, None)
        options = Options(unit.profile, unit.seed, folder)
        if cell is None:
            result = result_without_backend(unit, backend)
        elif unit.check:
            result = cell.result().with_tally(judge_check(unit, cell, own, options))
        elif own:
            result = without_verdict(supervisor.judge_in_worker(own, cell, options, unit.known))
        else:
            result = collect_evidence(cell, options, unit.known)
        return Outcome(result, scripts_in(folder), worker, time.monotonic() - start, unit)


def result_without_backend(unit: WorkUnit, backend: Backend) -> CellResult:
    """Build the result of a unit whose backend is not there, or is another one, on this worker."""
    operation, how = parse_name(unit.implementation) or (CATALOGUE["softmax"], "")
    why = backend.broken or backend.missing or "its file holds no such implementation there"
    return CellResult(
        operation=operation.forward.name,
        implementation=unit.implementation,
        backend=backend.name,
        how=how,
        dtype=unit.dtype,
        aspect=unit.aspect,
        findings=[Finding("cannot be judged on a worker", message=why)],
    )


def judge_check(unit: WorkUnit, cell: Cell, own: Worker | None, options: Options) -> Tally:
    """Judge one check alone, here or in the process of the backend."""
    named = {"name": unit.check} | options.draws
    record = FailureRecord.of_check(cell.implementation, cell.dtype, cell.aspect, named)
    try:
        if own:
            supervisor.replay_in_worker(own, record, unit.implementation)
        else:
            replay(record, cell.implementation)
    except Unsupported as reason:
        return unsupported(str(reason))
    except (Disagreement, WorkerDied) as error:
        compared = error if isinstance(error, Disagreement) else None
        finding = Finding(
            unit.check,
            message=str(error),
            record=record,
            evidence=Evidence(picture_of_error(record.operation, compared)),
            notes=save_or_say(record, options.failures, None if own else cell.implementation),
        )
        return Tally(checks=1, findings=[finding])
    return Tally(checks=1)


def without_verdict(result: CellResult) -> CellResult:
    """
    Copy a result as it was before its verdict: whether a region passes throughout is for all units
    together to say.
    """
    findings = [finding for finding in result.findings if finding.kind != UNEXPECTED_PASS]
    return replace(result, findings=findings, verdict="passed", reason="", kind="")


def scripts_in(folder: str) -> dict[str, str]:
    """Read the scripts of the records that a unit wrote, by the names of their files."""
    return {path.name: path.read_text() for path in sorted(Path(folder).glob("*.py"))}
