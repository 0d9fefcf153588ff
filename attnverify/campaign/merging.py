"""
Findings of many work units, merged: one of each, told by its smallest recipe.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace

from attnverify.campaign.work_units import Outcome
from attnverify.failures.finding import Finding
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.store import save, write_atomically
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import shrink_key
from attnverify.verdicts.tally import CellResult, decide_verdict


def are_alike(one: Finding, other: Finding) -> bool:
    """Tell whether both tell of one fault: the same kind, and no diagnoses that differ."""
    if one.kind != other.kind:
        return False
    return not one.causes or not other.causes or bool(one.causes & other.causes)


def size_of(finding: Finding) -> tuple[int, int]:
    """Measure how small the case is that shows it."""
    if finding.record is None or not finding.record.recipe:
        return 0, len(str(finding))
    return shrink_key(Recipe(**finding.record.recipe))


@dataclass
class CellTotal:
    """All that the units of one cell have shown so far."""

    result: CellResult
    scripts: dict[str, str] = field(default_factory=dict)
    units: int = 0
    failed: int = 0

    @property
    def findings(self) -> list[Finding]:
        return self.result.findings

    def add(self, outcome: Outcome) -> None:
        """Add up the counts; of findings that are alike the smallest stays."""
        total, part = self.result, outcome.result
        self.units, self.failed = self.units + 1, self.failed + bool(part.findings or part.blocked)
        self.scripts |= outcome.scripts
        self.result = replace(
            total.with_tally(total + part),
            findings=merge_findings(total.findings, part.findings),
            blocked=total.blocked or part.blocked,
            changes=list(dict.fromkeys([*total.changes, *part.changes])),
        )

    def decided(self, known: tuple[KnownFailure, ...]) -> CellResult:
        """Decide the verdict of all units together."""
        return decide_verdict(self.result, known)

    def write(self, folder: str) -> int:
        """Write down the records of what was found; how many could be written."""
        records = [finding.record for finding in self.findings if finding.record is not None]
        written = 0
        for record in records:
            with suppress(OSError):
                path = save(record, folder, None)
                if script := self.scripts.get(record.program):
                    write_atomically(path.with_name(record.program), script)
                written += 1
        return written


def merge_findings(findings: list[Finding], more: list[Finding]) -> list[Finding]:
    """Keep one of each that are alike, the one with the smallest case."""
    kept = list(findings)
    for finding in more:
        same = next((place for place, other in enumerate(kept) if are_alike(finding, other)), None)
        if same is None:
            kept.append(finding)
        elif size_of(finding) < size_of(kept[same]):
            kept[same] = finding
    return kept
