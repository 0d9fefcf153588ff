"""
What a cell showed, and the verdict on it.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from attnverify.failures.known_failures import KnownFailure
from attnverify.inputs.sampling import CASES


@dataclass
class KnownRegion:
    """
    A known failure that speaks of some cases only: how many of them failed, and how many passed.
    """

    line: KnownFailure
    failed: int = 0
    passed: int = 0
    fatal: bool = False
    """One of its cases ended the process: no other is run."""


@dataclass(frozen=True)
class Options:
    """How much is drawn, from which seed, where failures are kept, and which are known."""

    profile: str = "default"
    seed: int = 0
    failures: str = ".attnverify/failures"
    regions: tuple[KnownRegion, ...] = ()

    @property
    def cases(self) -> int:
        return CASES[self.profile]

    @property
    def draws(self) -> dict[str, Any]:
        return {"profile": self.profile, "seed": self.seed}


@dataclass
class CellResult:
    """
    What a cell showed.

    cases   outputs that were held to the law; strong: those of them that no impostor passes; known:
            those that failed as known
    causes  what a diagnosis made of the findings, in words
    symptoms  the findings in a few words each: the kind of the failure and the region where it
              shows; offers: lines for the known failures
    blocked what the backend's adapter does to arrays of the dtype, where that is wrong: then
    nothing else can be said of the cell regions known failures that speak of some cases: how many
    of these failed and passed; kind: what the known failures are, see KINDS changes what the calls
    of the cell left changed around them, and was put back: a finding of the side effects alone
    exhibits what a report shows of the findings, by the hash that replays each
    (attnverify/failures/evidence.py)
    checks  wrong calls, calls in a row, relations, long sequences; outside: cases whose bounds are
            not finite, which say nothing
    """

    operation: str
    implementation: str
    backend: str
    how: str
    dtype: str
    aspect: str
    verdict: str = "passed"
    reason: str = ""
    cases: int = 0
    strong: int = 0
    checks: int = 0
    known: int = 0
    unsupported: int = 0
    outside: int = 0
    budget: float = 0.0
    slack: float = 1.0
    reasons: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    symptoms: list[str] = field(default_factory=list)
    blocked: str = ""
    offers: list[str] = field(default_factory=list)
    regions: dict[str, list[int]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    kind: str = ""
    exhibits: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """What the cell took in all, in the backend and in the oracle."""

    @property
    def evidence(self) -> int:
        """
        How much speaks for the implementation: outputs held to the law, where the column is about
        outputs.
        """
        return self.checks if self.aspect in ("refusals", "side effects") else self.cases

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def decide_verdict(tally: CellResult, known: tuple[KnownFailure, ...] = ()) -> CellResult:
    """The verdict on what a cell showed."""
    if tally.blocked:
        tally.verdict, tally.reason = (
            "failed",
            f"blocked: {tally.backend} in {tally.dtype}: {tally.blocked}",
        )
        return tally
    for source, (failed, passed) in tally.regions.items():
        if passed and not failed:
            tally.findings.append(f"{source}: all {passed} cases of its region pass")
            tally.symptoms.append(UNEXPECTED)
    whole = next((line for line in known if not line.when), None)
    title = f"{tally.implementation} of {tally.backend} in {tally.dtype}"
    if tally.findings and whole:
        tally.verdict, tally.reason, tally.kind = "known failure", whole.reason, whole.kind or ""
    elif tally.findings:
        findings = [f"{title} is not what the law says ({tally.aspect})", *tally.findings]
        tally.verdict, tally.reason = "failed", "\n".join(findings)
    elif failing := [line for line in known if tally.regions.get(line.source, [0])[0]]:
        tally.verdict, tally.reason = "known failure", "; ".join(line.reason for line in failing)
        tally.kind = max(line.kind or "" for line in failing)
    elif whole and tally.evidence:
        tally.verdict, tally.reason = (
            "failed",
            f"{title} passes ({tally.aspect}), though {whole.source} says: {whole.reason}",
        )
        tally.symptoms.append(UNEXPECTED)
    elif not tally.evidence:
        reasons = tally.reasons | ({OUTSIDE: tally.outside} if tally.outside else {})
        tally.verdict, tally.reason = "unsupported", most_common(reasons)
    return tally


UNEXPECTED = "a known failure passes"


def is_unexpected_pass(tally: dict[str, Any]) -> bool:
    """Whether a known failure did not fail: its line must go, whatever else is required."""
    return UNEXPECTED in tally["symptoms"]


OUTSIDE = "an intermediate number may overflow in every case: no bound is finite"


def most_common(reasons: dict[str, int]) -> str:
    return (
        max(reasons, key=lambda reason: reasons[reason])
        if any(reasons.values())
        else "no case applies"
    )
