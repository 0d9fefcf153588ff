"""
What a cell showed, and the verdict on it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from attnverify.backends.declarations import NO_GRADIENT, TAKES_NO
from attnverify.failures.finding import UNEXPECTED_PASS, Finding, format_findings
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.plain_data import from_plain, to_plain
from attnverify.inputs.sampling import CASES
from attnverify.options import REQUIRED


@dataclass(frozen=True)
class Options:
    """
    How much is drawn, from which seed, where failures are kept.

    regions  the known failures that speak of some of the cell's cases only; fatal: those of them
             in whose region the process ended before, where no case is run again
    inputs   the file of somebody's own arrays, which are judged in place of drawn ones
    """

    profile: str = "default"
    seed: int = 0
    failures: str = ".attnverify/failures"
    regions: tuple[KnownFailure, ...] = ()
    fatal: tuple[KnownFailure, ...] = ()
    inputs: str = ""

    @property
    def cases(self) -> int:
        return CASES[self.profile]

    @property
    def draws(self) -> dict[str, Any]:
        return {"profile": self.profile, "seed": self.seed}


@dataclass(kw_only=True)
class Tally:
    """
    What was counted and found; two of them add up.

    cases    outputs that were held to the specification; strong: those of them that no trivial
             answer passes; known: those that failed as known
    checks   invalid calls, calls in a row, relations, long sequences
    outside  cases whose bounds are not finite, which say nothing
    budget   the worst error as a share of its bound
    reasons  why calls are not supported, and how often
    regions  of each known failure that speaks of some cases: how many of these failed and passed
    unseen   the required kinds that no case could show, and why
    """

    cases: int = 0
    strong: int = 0
    checks: int = 0
    known: int = 0
    unsupported: int = 0
    outside: int = 0
    budget: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    regions: dict[str, list[int]] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            **{name: getattr(self, name) + getattr(other, name) for name in COUNTS},
            budget=max(self.budget, other.budget),
            reasons={
                reason: self.reasons.get(reason, 0) + other.reasons.get(reason, 0)
                for reason in self.reasons | other.reasons
            },
            regions={
                source: [
                    sum(pair)
                    for pair in zip(
                        self.regions.get(source, [0, 0]),
                        other.regions.get(source, [0, 0]),
                        strict=True,
                    )
                ]
                for source in self.regions | other.regions
            },
            unseen=self.unseen | other.unseen,
            findings=[*self.findings, *other.findings],
        )


COUNTS = ("cases", "strong", "checks", "known", "unsupported", "outside")


def unsupported(reason: str) -> Tally:
    """Count one call that the implementation says it does not support."""
    return Tally(unsupported=1, reasons={reason: 1})


@dataclass(kw_only=True)
class CellResult(Tally):
    """
    What a cell showed, and the verdict on it.

    blocked  what the backend's adapter does to arrays of the dtype, where that is wrong: then
             nothing else can be said of the cell
    changes  what the calls of the cell left changed around them, and was put back: a finding of the
             side effects alone
    kind     what its known failures are, see KINDS
    inside   what its calls made use of that is no work of its own, in words
    shown    fields of PRECISION that its calls have shown, by which it was judged
    seconds  what the cell took in all, in the backend and in the oracle
    """

    operation: str
    implementation: str
    backend: str
    how: str
    dtype: str
    aspect: str
    verdict: str = "passed"
    reason: str = ""
    slack: float = 1.0
    blocked: str = ""
    changes: list[str] = field(default_factory=list)
    kind: str = ""
    inside: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.implementation} of {self.backend} in {self.dtype}"

    @property
    def evidence(self) -> int:
        """
        How much speaks for the implementation: outputs held to the specification, where the column
        is about outputs.
        """
        return self.checks if self.aspect in ("refusals", "side effects") else self.cases

    def with_tally(self, tally: Tally) -> "CellResult":
        """Copy the same cell with what was counted and found."""
        return replace(self, **{name: getattr(tally, name) for name in Tally.__annotations__})

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain | {"findings": [finding.as_dict() for finding in self.findings]}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "CellResult":
        return from_plain(cls, plain)


def decide_verdict(result: CellResult, known: tuple[KnownFailure, ...] = ()) -> CellResult:
    """
    Decide the verdict on what a cell showed, in the light of the known failures that speak of it.
    """
    if result.blocked:
        words = f"blocked: {result.backend} in {result.dtype}: {result.blocked}"
        return replace(result, verdict="failed", reason=words, findings=[Finding(result.blocked)])
    whole = next((line for line in known if not line.when), None)
    unexpected = [
        Finding(UNEXPECTED_PASS, message=f"{source}: all {passed} cases of its region pass")
        for source, (failed, passed) in result.regions.items()
        if passed and not failed
    ]
    result = replace(result, findings=[*result.findings, *unexpected])
    failing = [line for line in known if result.regions.get(line.source, [0])[0]]
    if result.findings and whole:
        return _known(result, [whole])
    if result.findings:
        return _failed(result, f"is not what the specification says ({result.aspect})")
    if failing:
        return _known(result, failing)
    if whole and result.evidence:
        words = f"{whole.source} says: {whole.reason}"
        result = replace(result, findings=[Finding(UNEXPECTED_PASS, message=words)])
        return _failed(result, f"passes ({result.aspect})")
    if not result.evidence:
        reasons = result.reasons | ({OUTSIDE: result.outside} if result.outside else {})
        told = (
            NO_GRADIENT if NO_GRADIENT in reasons else most_common(reasons)
        )  # who answers has none
        return replace(result, verdict="unsupported", reason=told)
    if result.cases and not result.strong:
        words = f"{result.title} ({result.aspect}): {WEAK.format(cases=result.cases)}"
        return replace(result, verdict="weak", reason=words)
    return result


def _known(result: CellResult, lines: list[KnownFailure]) -> CellResult:
    return replace(
        result,
        verdict="known failure",
        reason="; ".join(line.reason for line in lines),
        kind=max(line.kind or "" for line in lines),
    )


def _failed(result: CellResult, words: str) -> CellResult:
    lines = [f"{result.title} {words}", *format_findings(result.findings)]
    return replace(result, verdict="failed", reason="\n".join(lines))


def is_unexpected_pass(tally: dict[str, Any]) -> bool:
    """Tell whether a known failure did not fail: its line must go, whatever else is required."""
    return any(finding["kind"] == UNEXPECTED_PASS for finding in tally["findings"])


def describe_not_required(failed: list[dict[str, Any]]) -> list[str]:
    """Write one line for each backend of which something failed that need not hold."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for tally in failed:
        found[tally["backend"]][tally["aspect"]] += 1
    return [
        f"{backend}: not required, and no failure of this run: "
        + ", ".join(f"{count} cells of {aspect}" for aspect, count in aspects.items())
        + f" not met; to require them: --require {rung_of(aspects)}"
        for backend, aspects in found.items()
    ]


NOT_MET = "not met"
"""The word for a failure of what need not hold."""


def rung_of(aspects: Iterable[str]) -> str:
    """Return the lowest rung that requires all these aspects."""
    return next(rung for rung, required in REQUIRED.items() if {*aspects} <= {*required})


JUDGED = ("passed", "weak", "known failure")
"""The verdicts of cells in which outputs were held to the specification and no new failure met."""

WEAK = "weak: {cases} cases, none of them discriminating: a trivial answer passes each of them"
OUTSIDE = "an intermediate number may overflow in every case: no bound is finite"


def most_common(reasons: dict[str, int]) -> str:
    """
    Choose why nothing was judged: the most common reason, one that says of an argument that it is
    not taken where there is no other, as there are calls without it.
    """
    said = (reason for reason in reasons if reasons[reason])
    return max(
        said,
        key=lambda reason: (not reason.startswith(TAKES_NO), reasons[reason]),
        default="no case applies",
    )
