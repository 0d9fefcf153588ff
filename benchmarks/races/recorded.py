"""
The races of a run of ``tests/bench_*.py``, and what is kept of them.

pytest-benchmark keeps the record. The contestants of a case are sampled in turn before the first of
them is recorded, so each benchmark tells it the seconds that were measured, by the timer that its
marker takes.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from attnverify.bench.measure.cases import Case
from attnverify.bench.measure.clock import event_clock
from attnverify.bench.measure.contestants import Contestant
from attnverify.bench.measure.race import Entry, Race, race, record
from attnverify.bench.measure.summary import summarise
from attnverify.bench.own_kernel import device, two_threads
from attnverify.bench.report.results import Record, write_records

__all__ = ["Races", "replay", "replayed", "signature"]

NOW = [0.0]


def replayed() -> float:
    """Read the clock of the record: it goes forward by what was measured."""
    return NOW[0]


class Races:
    """The races of one run: each is run when the first of its contestants is recorded."""

    def __init__(
        self, measured: bool, path: Path | None = None, seconds: float = 0.0, cases: str = "all"
    ) -> None:
        self.measured, self.device, self.path, self.cases = measured, device(), path, cases
        self.seconds, self.begun = seconds, time.monotonic()
        self.races: dict[str, Race] = {}
        self.records: list[Record] = []
        if self.device == "cuda":
            event_clock("torch")  # what it calls, before any contestant is loaded

    def entry(self, case: Case, label: str) -> tuple[Race, Entry]:
        """Find the entry of a contestant; the case is run when the first of them is asked for."""
        key = signature(case)
        if key not in self.races:
            if self.seconds and time.monotonic() - self.begun > self.seconds:
                pytest.skip(f"not begun: {self.seconds:g} s were given")
            with two_threads(self.measured):
                self.races[key] = race(case, self.device, self.measured)
            self.write()
        found = self.races[key]
        return found, next(entry for entry in found.entries if entry.contestant.label == label)

    def write(self) -> None:
        """Write down what every race came to so far: a run that is cut leaves that."""
        if self.path and self.measured:
            found = [record(race, entry) for race in self.races.values() for entry in race.entries]
            write_records(self.path, found)

    def keep(self, benchmark: Any, case: Case, contestant: Contestant) -> None:
        """
        Record a contestant; what is missing is skipped with its reason, what cannot be believed
        fails.
        """
        found, entry = self.entry(case, contestant.label)
        benchmark.group = case.id
        benchmark.extra_info.update(record(found, entry))
        self.records.append(dict(benchmark.extra_info))
        if not entry.runs:
            pytest.skip(f"{entry.judgement.verdict}: {entry.judgement.reason}")
        replay(benchmark, entry.sampled.seconds)
        if entry.refused:
            benchmark.has_error = True
            pytest.fail(f"refused: {entry.refused}", pytrace=False)
        if entry.contestant.ours and entry.judgement.verdict == "wrong":
            pytest.fail(f"wrong: {entry.judgement.reason}", pytrace=False)

    def note(self, case: str, label: str, **facts: Any) -> Record:
        """Keep a record of something that is no race: of the whole suite, of a view."""
        plain = {
            "case": case,
            "label": label,
            "mode": "forward",
            "operation": case,
            "dtype": "float32",
            "device": self.device,
            "ours": True,
        }
        told = (
            plain
            | {
                "sizes": {},
                "verdict": "correct",
                "reason": "",
                "refused": "",
                "peak_extra_bytes": None,
            }
            | facts
        )
        self.records.append(told | {"seconds": summarise([1.0]), "ratios": {}})
        return told

    def suite(self, shares: dict[str, float], command: str) -> Record:
        """Measure where the time of a differential run went."""
        return self.note(
            "differential suite", "verify", share=shares["elsewhere"], command=command, **shares
        )

    def view(self, shift: str, copied: bool) -> Record:
        """Tell whether a shift of a padded buffer copies anything."""
        return self.note("shift as a view", "torch_impl view", shift=shift, copied=copied)


def signature(case: Case) -> str:
    """Say what tells two cases apart."""
    return json.dumps(
        [case.name, case.operation, case.sizes, case.dtype, case.mode, case.mask, case.device]
    )


def replay(benchmark: Any, seconds: list[float]) -> None:
    """Tell pytest-benchmark what each round took."""
    left = iter(seconds)

    def forward() -> None:
        NOW[0] += next(left)

    benchmark.pedantic(forward, rounds=len(seconds))
