"""
Units of a campaign: a cell with a block of draws, or one of its checks. They are plain data, and so
is what comes of them.

A unit keeps nothing: its failures come back as records, so that it can run again on another machine
when the first one is lost.
"""

import re
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from attnverify.backends.loader import Backend, Implementation, load
from attnverify.catalogue.operation import CATALOGUE, parse_name
from attnverify.checks.registry import checks
from attnverify.failures import record
from attnverify.failures.evidence import exhibit
from attnverify.failures.record import Failure
from attnverify.inputs.conditions import Known
from attnverify.inputs.expand import Recipe
from attnverify.inputs.sampling import size
from attnverify.isolation import supervisor
from attnverify.isolation.supervisor import Died, Limits, Worker
from attnverify.judge.case import Disagreement, Unsupported
from attnverify.report.root_causes import diagnoses
from attnverify.verdicts.columns import (
    UNEXPECTED,
    Cell,
    Options,
    Tally,
    cells,
    collect,
    decide,
    unsupported,
)

Place = tuple[str, str, str, str]
"""A cell, said in a way that holds in every process: source, implementation, dtype, aspect."""


@dataclass(frozen=True)
class Unit:
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
    known: tuple[Known, ...] = ()
    shown: tuple[Failure, ...] = ()

    @property
    def cell(self) -> Place:
        return self.source, self.implementation, self.dtype, self.aspect

    @property
    def name(self) -> tuple[Place, str, int, str]:
        return self.cell, self.profile, self.seed, self.check


@dataclass
class Outcome:
    """
    What came of it: the tally before any verdict, records with their scripts by hash, the address
    of who did it and how long it took.
    """

    tally: Tally
    records: dict[str, tuple[Failure, str]]
    worker: str
    seconds: float
    unit: Unit = field(repr=False)


def units(
    chosen: list[Cell], known: dict[Place, tuple[Known, ...]], folder: str, seed: int
) -> Iterator[Unit]:
    """
    The thorough profile in small pieces, without end.

    A few cases of every cell come first, so that none is missed; then a block of the default
    profile for each, then the long sequences and relations of the thorough profile one by one, then
    further blocks, each with a seed of its own.
    """
    regions = {
        place(cell): tuple(replace(line) for line in known[place(cell)] if line.when)
        for cell in chosen
    }
    records = {place(cell): shown(regions[place(cell)], folder) for cell in chosen}

    def block(profile: str, own: int) -> Iterator[Unit]:
        return (
            Unit(*at, profile, own, known=regions[at], shown=records[at])
            for at in map(place, chosen)
        )

    yield from block("quick", seed)
    yield from block("default", seed + 1)
    for cell in chosen:
        if cell.aspect == "values":
            for name in checks(cell.implementation.operation.name, "values", "thorough", seed):
                yield Unit(*place(cell), "thorough", seed, name)
    for number in count(2):
        yield from block("default", seed + number)


def place(cell: Cell) -> Place:
    return cell.implementation.backend.source, cell.implementation.name, cell.dtype, cell.aspect


def shown(known: tuple[Known, ...], folder: str) -> tuple[Failure, ...]:
    """The records that known failures name: they fail in every unit, whatever it draws."""
    found = []
    for line in known:
        if line.replay:
            try:
                found.append(record.find(line.replay, folder))
            except ValueError:
                continue
    return tuple(found)


# In the worker


@lru_cache
def backend_of(source: str, limits: Limits, isolate: str) -> tuple[Backend, Worker | None]:
    """The backend, loaded once in each process, and the process of its own where it has one."""
    if not supervisor.isolated(source, isolate):
        return load(source), None
    worker = Worker(source, limits)
    return supervisor.described(worker), worker


def perform(unit: Unit, limits: Limits, isolate: str, worker: str) -> Outcome:
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
            failure.keep(folder, None)
        options = Options(unit.profile, unit.seed, folder)
        if cell is None:
            tally = unloaded(unit, backend)
        elif unit.check:
            tally = checked(unit, cell, own, options)
        else:
            tally = (
                undecided(supervisor.judge(own, cell, options, unit.known))
                if own
                else collect(cell, options, unit.known)
            )
        return Outcome(tally, records(folder), worker, time.monotonic() - start, unit)


def unloaded(unit: Unit, backend: Backend) -> Tally:
    """What is said of a unit whose backend is not there, or is another one, on this worker."""
    operation, how = parse_name(unit.implementation) or (CATALOGUE["softmax"], "")
    tally = Tally(
        operation.forward.name, unit.implementation, backend.name, how, unit.dtype, unit.aspect
    )
    tally.findings.append(
        "cannot be judged on a worker: "
        f"{backend.broken or backend.missing or 'its file holds no such implementation there'}"
    )
    tally.symptoms.append("cannot be judged on a worker")
    return tally


def checked(unit: Unit, cell: Cell, own: Worker | None, options: Options) -> Tally:
    """One check alone, here or in the process of the backend."""
    tally, check = cell.tally(), {"name": unit.check} | options.draws
    failure = Failure.of(cell.implementation, None, cell.dtype, cell.aspect, check)
    try:
        if own:
            supervisor.see_again(own, failure, unit.implementation)
        else:
            record.judge_again(failure, cell.implementation)
    except Unsupported as reason:
        unsupported(tally, str(reason))
        return tally
    except (Disagreement, Died) as error:
        words = kept(cell, None if own else cell.implementation, options, failure)
        tally.exhibits[failure.hash] = exhibit(
            failure, error if isinstance(error, Disagreement) else None
        )
        tally.findings.append(f"{unit.check}\n  {error}{words}")
        tally.symptoms.append(unit.check)
    tally.checks += 1
    return tally


def kept(cell: Cell, callable_: Implementation | None, options: Options, failure: Failure) -> str:
    failure.keep(options.failures, callable_)
    return f"\n  replay: {failure.replay_line}"


def undecided(tally: Tally) -> Tally:
    """
    A tally as it was before its verdict: whether a region passes throughout is for all units
    together to say.
    """
    both = list(zip(tally.symptoms, tally.findings, strict=True))
    tally.symptoms[:], tally.findings[:] = (
        [pair[side] for pair in both if pair[0] != UNEXPECTED] for side in (0, 1)
    )
    tally.verdict, tally.reason, tally.kind = "passed", "", ""
    return tally


def records(folder: str) -> dict[str, tuple[Failure, str]]:
    """The records that a unit wrote, with their scripts ("" where there is none)."""
    paths = sorted(Path(folder).glob("*.json"))
    scripts = {path.stem: path.with_suffix(".py") for path in paths}
    return {
        path.stem: (
            record.read(path),
            scripts[path.stem].read_text() if scripts[path.stem].exists() else "",
        )
        for path in paths
    }


# What comes of many


@dataclass
class Finding:
    """One way in which a cell fails, by the smallest case that shows it."""

    symptom: str
    words: str
    record: Failure | None = None
    script: str = ""

    @property
    def kind(self) -> str:
        return self.symptom.partition(" when ")[0]

    @property
    def causes(self) -> set[str]:
        """What a diagnosis takes it for."""
        return {
            name
            for cause in re.findall(r"^  cause: (.*)$", self.words, re.M)
            for name in diagnoses(cause)
        }

    @property
    def size(self) -> tuple[int, int]:
        if self.record is None or not self.record.recipe:
            return 0, len(self.words)
        return size(Recipe(**self.record.recipe))

    def alike(self, other: "Finding") -> bool:
        """
        Whether both tell of one fault, as far as words go: the same kind, and no diagnoses that
        differ.
        """
        return self.kind == other.kind and (
            not self.causes or not other.causes or bool(self.causes & other.causes)
        )


@dataclass
class Sum:
    """All that the units of one cell have shown so far."""

    tally: Tally
    findings: list[Finding] = field(default_factory=list)
    units: int = 0
    failed: int = 0

    def add(self, outcome: Outcome) -> None:
        """Add up the counts; of findings that are alike the smallest stays."""
        total, part = self.tally, outcome.tally
        self.units, self.failed = self.units + 1, self.failed + bool(part.findings or part.blocked)
        for name in ("cases", "strong", "checks", "known", "unsupported", "outside"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        total.budget, total.blocked = max(total.budget, part.budget), total.blocked or part.blocked
        for reason, times in part.reasons.items():
            total.reasons[reason] = total.reasons.get(reason, 0) + times
        for source, numbers in part.regions.items():
            total.regions[source] = [
                sum(pair) for pair in zip(numbers, total.regions.get(source, [0, 0]), strict=True)
            ]
        for name in ("causes", "offers", "changes"):
            getattr(total, name).extend(
                item for item in getattr(part, name) if item not in getattr(total, name)
            )
        total.exhibits |= part.exhibits
        for symptom, words in zip(part.symptoms, part.findings, strict=True):
            hashes = re.findall(r"attnverify replay ([0-9a-f]{12})", words)
            record, script = outcome.records.get(hashes[0], (None, "")) if hashes else (None, "")
            self.keep(Finding(symptom, words, record, script))

    def keep(self, finding: Finding) -> None:
        same = next(
            (place for place, other in enumerate(self.findings) if finding.alike(other)), None
        )
        if same is None:
            self.findings.append(finding)
        elif finding.size < self.findings[same].size:
            self.findings[same] = finding

    def decided(self, known: tuple[Known, ...]) -> Tally:
        """The verdict of all units together; this sum is not changed by it."""
        tally = Tally(**deepcopy(self.tally.as_dict()))
        tally.findings, tally.symptoms = (
            [finding.words for finding in self.findings],
            [finding.symptom for finding in self.findings],
        )
        return decide(tally, known)

    def write(self, folder: str) -> int:
        """Write down the records of what was found; how many there are."""
        written = [finding for finding in self.findings if finding.record is not None]
        for finding in written:
            assert finding.record is not None
            path = finding.record.keep(folder, None)
            if finding.script:
                path.with_suffix(".py").write_text(finding.script)
        return len(written)
