"""The state of a campaign: what was asked, what came back, what is counted."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from attnverify.campaign.cluster import Sent
from attnverify.campaign.merging import CellTotal
from attnverify.campaign.work_units import Outcome, Place, WorkUnit, place
from attnverify.failures.finding import Finding
from attnverify.session import Verification
from attnverify.verdicts.journal import Journal
from attnverify.verdicts.tally import Tally

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
    sent: Sent = field(default_factory=Sent)
    journal: Journal | None = None
    """Where what came back is kept, for a campaign that goes on."""
    done: set[tuple[Place, str, int, str]] = field(default_factory=set)
    """The units that an earlier campaign has brought to an end."""
    scheduler_ended: bool = False
    met: set[str] | None = None
    """The workers of others whose versions were compared; None where the workers are ours."""

    @property
    def reached(self) -> int:
        return sum(sum_.units > 0 for sum_ in self.sums.values())

    @property
    def cut_off(self) -> int:
        return len(self.under_way) + len(self.again)

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
        wanted = (unit for unit in self.todo if unit.name not in self.done)
        return next((unit for unit in wanted if self.sums[unit.cell].failed < ENOUGH), None)

    def take(self, outcome: Outcome) -> None:
        """Count what came back."""
        self.count(outcome)
        self.seconds.append(outcome.seconds)
        self.workers.add(outcome.worker)

    def count(self, outcome: Outcome) -> None:
        """Count it in its cell, and keep it."""
        self.sums[outcome.unit.cell].add(outcome)
        if self.journal is not None:
            self.journal.add(*outcome.as_line())

    def resume(self, kept: dict[str, Any]) -> None:
        """Count what an earlier campaign has kept; those units are asked no more."""
        for line in kept.items():
            outcome = Outcome.from_line(*line)
            if outcome.unit.cell in self.sums:
                self.sums[outcome.unit.cell].add(outcome)
                self.done.add(outcome.unit.name)

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
        self.count(Outcome(empty, {}, "", 0.0, unit))

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
