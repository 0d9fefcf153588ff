"""
Findings: one way in which a cell fails, as data, from the judge to the terminal, to JSON, to the
page, to the root causes and to a campaign. The text is made of it here and read by nobody.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnverify.diagnosis.cause import Cause
from attnverify.diagnosis.regions.failing_region import RegionOffer
from attnverify.failures.evidence import Evidence
from attnverify.failures.plain_data import from_plain, to_plain
from attnverify.failures.record import FailureRecord

UNEXPECTED_PASS = "a known failure passes"
NOT_REFUSED = "invalid calls are not refused with ValueError"


@dataclass(frozen=True)
class KnownFailureLine:
    """A line that the file of known failures would need, and what speaks for it."""

    line: str
    evidence: str


@dataclass(frozen=True)
class Mend:
    """The change of a line of a file that makes right what failed, and on how many calls."""

    file: str
    line: int
    change: str
    seen: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: right {self.change} {self.seen}"

    @property
    def brief(self) -> str:
        return f"line {self.line}: right {self.change}"


@dataclass(frozen=True)
class Finding:
    """
    One way in which a cell fails.

    kind       what goes wrong, so that failures of different kinds are told apart
    headline   the same with the case that shows it, where one line can say both
    share      how many cases or calls show it, in words
    message    what was seen, in full
    condition  the conditions that together tell the failing cases from the others
    held       of how many of both they hold, and which sizes were tried
    cause      what a diagnosis makes of it
    record     what replays it; evidence: what a report shows of it
    at         the lines of the file at which the PTX machine saw it
    notes      what else its reader should know
    mend       the change of the file that makes it right, where nothing else explains it
    offer      the line that would declare it as known
    hung       the seconds after which a call was ended that had no answer; 0 for another failure
    """

    kind: str
    headline: str = ""
    share: str = ""
    message: str = ""
    condition: tuple[str, ...] = ()
    held: str = ""
    cause: Cause | None = None
    record: FailureRecord | None = None
    evidence: Evidence = field(default_factory=Evidence)
    at: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    mend: Mend | None = None
    offer: KnownFailureLine | None = None
    hung: float = 0.0

    @property
    def symptom(self) -> str:
        """Its kind and where it shows: ``NaN when a row sees no key``."""
        where = f" when {' and '.join(self.condition)}" if self.condition else ""
        return f"{self.kind}{where}"

    @property
    def causes(self) -> frozenset[str]:
        """The names of the mistakes that a diagnosis takes it for."""
        return self.cause.names if self.cause else frozenset()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, is_cause_told: bool = False) -> Iterator[str]:
        """Format the finding as the terminal shows it, after others of the same cause or not."""
        title = self.headline or self.kind
        yield f"{self.share}: {title}" if self.share else title
        yield from (f"  {line}" for line in self.message.splitlines())
        if self.cause:
            yield f"  cause: {AS_ABOVE if is_cause_told else self.cause}"
        if self.record and self.record.recipe and not self.headline:
            yield f"  recipe: {self.record.words}"
        if self.evidence.drawn:
            yield f"  larger: {self.evidence.drawn}"
        if self.record and is_recorded(self.notes):
            yield f"  replay: {self.record.replay_line}"
        yield from (f"  {note}" for note in (*self.notes, self.mend) if note)
        if self.offer:
            yield f"  known failures: {self.offer.line}  {self.offer.evidence}"

    def as_dict(self) -> dict[str, Any]:
        """As plain data, with what its readers would else have to work out."""
        plain: dict[str, Any] = to_plain(self)
        if self.record:
            plain["record"] |= {
                "hash": self.record.hash,
                "words": self.record.words,
                "replay": self.record.replay_line,
                "program": self.record.program,
            }
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "Finding":
        return from_plain(cls, plain)


AS_ABOVE = "as above"
NOT_RECORDED = "not recorded: "
"""How a note begins that says why a failure was not kept."""


def is_recorded(notes: Sequence[str]) -> bool:
    """Tell whether the record of a finding with these notes was kept, and can be replayed."""
    return not any(note.startswith(NOT_RECORDED) for note in notes)


def format_findings(findings: Sequence[Finding]) -> Iterator[str]:
    """Format the findings of a cell; a cause that several have is told of the first."""
    told = set[frozenset[str]]()
    for finding in findings:
        yield from finding.lines(bool(finding.causes) and finding.causes in told)
        told.add(finding.causes)


def offered_line(offer: RegionOffer, implementation: str, aspect: str) -> KnownFailureLine:
    inside = offer.passes[0] + offer.fresh_passes[0]
    cost = COST.format(passes=inside) if is_wide(offer) else ""
    return KnownFailureLine(offer.line(implementation, aspect), f"{offer.evidence}{cost}")


def is_wide(offer: RegionOffer) -> bool:
    """
    Tell whether a region holds much of what passes, fresh draws too: then the failures share
    another thing.
    """
    both = offer.passes, offer.fresh_passes
    inside, all_ = (sum(counts) for counts in zip(*both, strict=True))
    return 3 * inside >= all_ > 0


COST = "; too wide: it would leave those {passes} that pass unjudged, too"
