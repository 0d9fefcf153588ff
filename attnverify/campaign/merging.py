"""
Findings of many work units, merged: one of each, told by its smallest recipe.
"""

import re
from copy import deepcopy
from dataclasses import dataclass, field

from attnverify.campaign.work_units import Outcome
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import shrink_key
from attnverify.report.root_causes import diagnoses
from attnverify.verdicts.tally import CellResult, decide_verdict

# What comes of many


@dataclass
class Finding:
    """One way in which a cell fails, by the smallest case that shows it."""

    symptom: str
    words: str
    record: FailureRecord | None = None
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
        return shrink_key(Recipe(**self.record.recipe))

    def alike(self, other: "Finding") -> bool:
        """
        Whether both tell of one fault, as far as words go: the same kind, and no diagnoses that
        differ.
        """
        return self.kind == other.kind and (
            not self.causes or not other.causes or bool(self.causes & other.causes)
        )


@dataclass
class CellTotal:
    """All that the units of one cell have shown so far."""

    tally: CellResult
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

    def decided(self, known: tuple[KnownFailure, ...]) -> CellResult:
        """The verdict of all units together; this sum is not changed by it."""
        tally = CellResult(**deepcopy(self.tally.as_dict()))
        tally.findings, tally.symptoms = (
            [finding.words for finding in self.findings],
            [finding.symptom for finding in self.findings],
        )
        return decide_verdict(tally, known)

    def write(self, folder: str) -> int:
        """Write down the records of what was found; how many there are."""
        written = [finding for finding in self.findings if finding.record is not None]
        for finding in written:
            assert finding.record is not None
            path = save(finding.record, folder, None)
            if finding.script:
                path.with_suffix(".py").write_text(finding.script)
        return len(written)
