"""
Cells: one implementation, one dtype, one column of the verdict. What pytest runs as one test.

values        outputs, their shape, dtype and device; long sequences by sampled rows; relations
gradients     the same for ``<op>_grad``, exported or by the library's autograd
refusals      wrong calls are refused with ValueError
side effects  inputs unchanged, no aliases, no state between calls
hidden NaN    NaN and infinity in hidden slots reach no output and no gradient
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from attnverify.backends.loader import Backend, Implementation
from attnverify.backends.round_trip import round_trip
from attnverify.catalogue.operation import CATALOGUE
from attnverify.checks.call_sequences import right_alone
from attnverify.checks.invalid_calls import refused_by_law
from attnverify.checks.registry import Check, called_twice, checks
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.failing_region import Offer, offers
from attnverify.failures.evidence import exhibit, extent, pictured, telling
from attnverify.failures.record import Failure, find, recorded, recorded_checks
from attnverify.inputs.conditions import Known
from attnverify.inputs.expand import Recipe
from attnverify.inputs.fixed_cases import probes
from attnverify.inputs.sampling import CASES, draw, hunted, shrink
from attnverify.judge import state_guard
from attnverify.judge.case import (
    Disagreement,
    Unsupported,
    Verdict,
    announce,
    judge,
    judge_side_effects,
)
from attnverify.judge.process_state import Values
from attnverify.timing import spending


@dataclass
class Region:
    """
    A known failure that speaks of some cases only: how many of them failed, and how many passed.
    """

    line: Known
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
    regions: tuple[Region, ...] = ()

    @property
    def cases(self) -> int:
        return CASES[self.profile]

    @property
    def draws(self) -> dict[str, Any]:
        return {"profile": self.profile, "seed": self.seed}


@dataclass
class Tally:
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


@dataclass(eq=False)
class Cell:
    """
    An implementation, a dtype and an aspect; ``gradient`` is the implementation of the operation's
    gradient, if there is one.
    """

    implementation: Implementation
    gradient: Implementation | None
    dtype: str
    aspect: str

    @property
    def id(self) -> str:
        return f"{self.implementation.operation.name}-{self.implementation.label}-{self.dtype}"

    def tally(self) -> Tally:
        own = self.implementation
        tally = Tally(
            own.operation.forward.name, own.name, own.backend.name, own.how, self.dtype, self.aspect
        )
        if self.dtype != "bool":
            tally.slack = own.precision(self.dtype).slack
        return tally


def cells(
    backends: list[Backend],
    operations: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    chapter: str | None = None,
) -> list[Cell]:
    """
    Every cell of the backends, ordered so that what the law says of an operation in a dtype is used
    by all before the next.
    """
    found = []
    for implementation, gradient in (pair for backend in backends for pair in rows(backend)):
        operation = implementation.operation
        if chapter not in (None, operation.chapter) or (
            operations and operation.forward.name not in operations
        ):
            continue
        for dtype in operation.dtypes:
            if not dtypes or dtype in (*dtypes, "bool"):
                found += [
                    Cell(implementation, gradient, dtype, aspect)
                    for aspect in aspects(implementation, gradient)
                ]
    return sorted(found, key=place)


def place(cell: Cell) -> tuple[int, int]:
    """Where a cell comes in a run: operations in the catalogue's order, the widest dtype first."""
    dtypes = cell.implementation.operation.dtypes
    return PLACES[cell.implementation.operation.name], dtypes.index(cell.dtype)


PLACES = {name: place for place, name in enumerate(CATALOGUE)}


def rows(backend: Backend) -> Iterator[tuple[Implementation, Implementation | None]]:
    """
    Each forward implementation with its gradient; a gradient that comes alone is a row of its own.
    """
    gradients = {
        (i.operation.forward.name, i.how): i
        for i in backend.implementations
        if i.operation.is_gradient
    }
    for implementation in backend.implementations:
        if not implementation.operation.is_gradient:
            yield (
                implementation,
                gradients.pop((implementation.operation.name, implementation.how), None),
            )
    for gradient in gradients.values():
        yield gradient, gradient


def aspects(implementation: Implementation, gradient: Implementation | None) -> list[str]:
    """The columns of the verdict that an implementation can have."""
    found = ["values"] if implementation is not gradient else []
    found += ["gradients"] if gradient is not None else []
    found += ["refusals"] if refused_by_law(implementation.operation.name) else []
    found += ["side effects"]
    hiding = (
        "key" in implementation.operation.arguments or implementation.operation.name == "softmax"
    )
    masked = {"mask", "visible", "key_padding_mask"} & set(implementation.operation.arguments)
    return (
        [*found, "hidden NaN"]
        if hiding and masked and implementation.operation.name != "alibi_multi_head_attention"
        else found
    )


def run(
    cell: Cell, options: Options, known: tuple[Known, ...] = (), fatal: tuple[Known, ...] = ()
) -> Tally:
    """
    Judge the cell, in the light of the known failures that speak of it; what ended a process before
    is not run again.
    """
    seconds: dict[str, float] = {}
    with spending(seconds):
        tally = decide(collect(cell, options, known, fatal), known)
    tally.seconds = seconds
    return tally


def collect(
    cell: Cell, options: Options, known: tuple[Known, ...] = (), fatal: tuple[Known, ...] = ()
) -> Tally:
    """
    What the cell shows, before anything is made of it. What its calls have changed around them is
    put back.
    """
    tally, regions = (
        cell.tally(),
        [Region(line, fatal=line in fatal) for line in known if line.when],
    )
    tally.blocked = round_trip(cell.implementation.backend, cell.dtype) or ""
    if tally.blocked:
        return tally
    before = state_guard.look()
    JUDGES[cell.aspect](cell, replace(options, regions=tuple(regions)), tally)
    tally.changes = [str(change) for change in state_guard.restore(before) if not change.once]
    if cell.aspect == "side effects" and tally.changes and not tally.findings:
        tally.findings.append(f"{'; '.join(tally.changes)}\n  seen after the column's last call")
        tally.symptoms.append("; ".join(tally.changes))
    tally.regions = {region.line.source: [region.failed, region.passed] for region in regions}
    return tally


def decide(tally: Tally, known: tuple[Known, ...] = ()) -> Tally:
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
OUTSIDE = "an intermediate number may overflow in every case: no bound is finite"


def most_common(reasons: dict[str, int]) -> str:
    return (
        max(reasons, key=lambda reason: reasons[reason])
        if any(reasons.values())
        else "no case applies"
    )


def values(cell: Cell, options: Options, tally: Tally) -> None:
    judge_each(cell, cell.implementation, options, tally, "any", options.cases)
    if not tally.findings:  # what is wrong at small sizes needs no long sequence to show it
        run_checks(cell, cell.implementation, options, tally)


def gradients(cell: Cell, options: Options, tally: Tally) -> None:
    assert cell.gradient is not None
    judge_each(cell, cell.gradient, options, tally, "any", options.cases)


def hidden_nan(cell: Cell, options: Options, tally: Tally) -> None:
    for implementation in both(cell):
        judge_each(cell, implementation, options, tally, "nan", max(10, options.cases // 4))


def both(cell: Cell) -> list[Implementation]:
    """The implementation and its gradient, once each."""
    return list(dict.fromkeys(i for i in (cell.implementation, cell.gradient) if i is not None))


def judge_each(
    cell: Cell,
    implementation: Implementation,
    options: Options,
    tally: Tally,
    kind: str,
    cases: int,
) -> None:
    """
    Judge recipe after recipe, recorded failures first, then let Hypothesis hunt; of each kind of
    failure shrink one and tell.
    """
    failures, passing = dict[str, list[Recipe]](), list[Recipe]()
    operation = implementation.operation.name
    before, strong_before = tally.cases + tally.known, tally.strong + tally.known

    def fails(recipe: Recipe) -> bool:
        judged = tally.cases
        kind_of_failure = judge_one(cell, implementation, options, tally, recipe)
        if kind_of_failure:
            failures.setdefault(kind_of_failure, []).append(recipe)
        elif tally.cases > judged:
            passing.append(recipe)
        return bool(kind_of_failure)

    first = [
        *recorded(operation, cell.aspect, options.failures),
        *shown(operation, cell.aspect, options),
    ]
    for recipe in (
        *first,
        *(probes(operation) if kind == "any" else ()),
        *draw(operation, kind, cases, options.seed),
    ):
        fails(recipe)
    for recipe in draw(operation, kind, 4 * cases, options.seed)[
        cases:
    ]:  # in place of those that were weak, not supported or not judged
        if (
            failures
            or tally.strong + tally.known >= strong_before + cases
            or tally.cases + tally.known == before
        ):
            break
        fails(recipe)
    for recipe in (
        () if failures else hunted(operation, kind, max(2, options.cases // 10), options.seed)
    ):
        fails(recipe)
    some = dict(list(failures.items())[:KINDS_TOLD])
    for what, failing in some.items():
        told(cell, implementation, what, failing, options, tally, kind)
    if some:
        generalised(
            offers(
                implementation,
                cell.dtype,
                some,
                passing,
                kind,
                min(max(cases, 40), 100),
                options.seed,
            ),
            tally,
        )


def generalised(found: dict[str, Offer], tally: Tally) -> None:
    """Add the regions of the failures that were told last to what was told of them."""
    for index, (what, offer) in enumerate(found.items(), len(tally.findings) - len(found)):
        line = offer.line(tally.implementation, tally.aspect)
        tally.findings[index] += f"\n  known failures: {line}  {offer.evidence}"
        tally.symptoms.append(f"{what} when {offer.when}" if offer.when else what)
        tally.offers += [line] if line not in tally.offers else []


def shown(operation: str, aspect: str, options: Options) -> Iterator[Recipe]:
    """
    The recipes of the records that known failures name: they fail in every run, whatever is drawn.
    """
    for region in options.regions:
        if region.line.replay:
            with suppress(ValueError):
                failure = find(region.line.replay, options.failures)
                if (failure.operation, failure.aspect) == (operation, aspect) and not failure.check:
                    yield Recipe(**failure.recipe)


def judge_one(
    cell: Cell, implementation: Implementation, options: Options, tally: Tally, recipe: Recipe
) -> str:
    """
    Judge a recipe and count it; the kind of its failure, or "" if it passed, is not supported, or
    is known to fail.
    """
    regions = [region for region in options.regions if region.line.covers(recipe, cell.dtype)]
    if avoided(regions, tally):
        return ""
    try:
        count(tally, judge(implementation, recipe, cell.dtype), regions)
    except Unsupported as reason:
        unsupported(tally, str(reason))
    except Disagreement as error:
        if not regions:
            tally.cases += 1
            tally.budget = max(tally.budget, error.budget)
            return error.kind
        tally.known += 1
        for region in regions:
            region.failed += 1
    return ""


def avoided(regions: list[Region], tally: Tally) -> bool:
    """Whether a case lies where the process ended before; it is counted as failing there."""
    fatal = [region for region in regions if region.fatal]
    for region in fatal:
        region.failed += 1
    tally.known += bool(fatal)
    return bool(fatal)


KINDS_TOLD = 3


def count(tally: Tally, verdict: Verdict, regions: Sequence[Region]) -> None:
    """Count a case that passed; one whose bounds are not finite says nothing."""
    if not verdict.judged:
        tally.outside += 1
        return
    tally.cases += 1
    for region in regions:
        region.passed += 1
    tally.strong += verdict.strong
    tally.budget = max(tally.budget, verdict.budget)


def unsupported(tally: Tally, reason: str) -> None:
    tally.unsupported += 1
    tally.reasons[reason] = tally.reasons.get(reason, 0) + 1


def told(
    cell: Cell,
    implementation: Implementation,
    what: str,
    failing: list[Recipe],
    options: Options,
    tally: Tally,
    kind: str,
) -> None:
    """Write down the smallest recipe that fails in this way, with its replay."""
    share = f"{len(failing)} of {tally.cases} cases: {what}"

    def unknown(recipe: Recipe) -> bool:
        known = any(region.line.covers(recipe, cell.dtype) for region in options.regions)
        return not known and failure_of(implementation, recipe, cell.dtype, what) is not None

    smallest = shrink(failing[0], kind, unknown, options.seed)
    for recipe in dict.fromkeys((smallest, *failing)):
        error = failure_of(implementation, recipe, cell.dtype, what)
        if error is not None:
            state = STATE if right_alone(implementation, recipe, cell.dtype) else ""
            cause = (
                ""
                if state
                else caused(
                    implementation, [recipe, *failing[:DIAGNOSED]], cell.dtype, tally, options, kind
                )
            )
            failure = Failure.of(implementation, recipe, cell.dtype, cell.aspect)
            line = kept(failure, implementation, options, tally, error, cause)
            tally.exhibits[failure.hash] |= before_shrinking(
                implementation, failing, recipe, cell.dtype, what
            )
            told_cause = f"\n  cause: {cause}" if cause else ""
            tally.findings.append(
                f"{share}\n  {error}{told_cause}\n  recipe: {recipe}{line}{state}"
            )
            return
    tally.findings.append(
        f"{share}\n  {failing[0]}\n  passed when it was run again: the result depends on the calls "
        "before it"
    )


STATE = (
    "\n  a freshly loaded backend gives the right answer to this call: the result depends on "
    "the calls before it"
)


def before_shrinking(
    implementation: Implementation, failing: list[Recipe], smallest: Recipe, dtype: str, what: str
) -> dict[str, Any]:
    """
    A failing case as it was drawn, where its picture has more to show than that of the smallest.
    """
    recipe = telling(failing)
    error = (
        failure_of(implementation, recipe, dtype, what)
        if extent(recipe) > extent(smallest)
        else None
    )
    shown = pictured(implementation.operation.name, error)
    return {"drawn": {"recipe": str(recipe)} | shown} if shown else {}


DIAGNOSED = 6
"""
As many failing recipes are diagnosed beside the smallest, and as many of the first draws, which may
pass.
"""


def caused(
    implementation: Implementation,
    failing: list[Recipe],
    dtype: str,
    tally: Tally,
    options: Options,
    kind: str,
) -> str:
    """The likely cause of a failure, which is noted; nothing where a diagnosis finds none."""
    operation = implementation.operation.name
    others = (*probes(operation)[:DIAGNOSED], *draw(operation, kind, DIAGNOSED, options.seed))
    cause = diagnose(implementation, failing, dtype, others)
    if cause is None:
        return ""
    if cause not in tally.causes:
        tally.causes.append(cause)
    return cause


def kept(
    failure: Failure,
    implementation: Implementation,
    options: Options,
    tally: Tally,
    error: Disagreement,
    cause: str = "",
) -> str:
    """Record a failure and what a report shows of it; the line that says how it is seen again."""
    failure.keep(options.failures, implementation)
    tally.exhibits[failure.hash] = exhibit(failure, error, cause)
    return f"\n  replay: {failure.replay_line}"


def failure_of(
    implementation: Implementation, recipe: Recipe, dtype: str, what: str
) -> Disagreement | None:
    """The failure of this kind, if the recipe still fails so."""
    try:
        judge(implementation, recipe, dtype)
    except Disagreement as error:
        return error if error.kind == what else None
    except Unsupported:
        pass
    return None


def run_checks(cell: Cell, implementation: Implementation, options: Options, tally: Tally) -> None:
    """
    The checks of the column, those that failed once before first; each failure is told on its own.
    """
    for named, check in checks_of(cell, implementation, options):
        announce.get()(implementation, cell.dtype, None, named)
        error = outcome(tally, check, implementation, cell.dtype)
        if error:
            failure = Failure.of(implementation, None, cell.dtype, cell.aspect, named)
            tally.findings.append(
                f"{named['name']}\n  {error}{kept(failure, implementation, options, tally, error)}"
            )
            tally.symptoms.append(named["name"])


def checks_of(
    cell: Cell, implementation: Implementation, options: Options
) -> list[tuple[dict[str, Any], Check]]:
    """Recorded checks, then those of this run, each with what it is made from."""
    operation = implementation.operation.name
    own = [
        {"name": name} | options.draws for name in checks(operation, cell.aspect, **options.draws)
    ]
    found = [
        named
        for named in recorded_checks(operation, cell.aspect, options.failures)
        if named not in own
    ] + own
    made = [
        (named, checks(operation, cell.aspect, named["profile"], named["seed"]).get(named["name"]))
        for named in found
    ]
    return [
        (named, check) for named, check in made if check is not None
    ]  # a record may be older than the checks


def outcome(
    tally: Tally, check: Check, implementation: Implementation, dtype: str
) -> Disagreement | None:
    """Run a check and count it; what it found, if anything."""
    try:
        check(implementation, dtype)
    except Unsupported as reason:
        unsupported(tally, str(reason))
        return None
    except Disagreement as error:
        tally.checks += 1
        return error
    tally.checks += 1
    return None


def refusals(cell: Cell, options: Options, tally: Tally) -> None:
    """Every wrong call must be refused with ValueError; all that are not are told together."""
    own, lines = cell.implementation, list[str]()
    for named, check in checks_of(cell, own, options):
        announce.get()(own, cell.dtype, None, named)
        error = outcome(tally, check, own, cell.dtype)
        if error:
            failure = Failure.of(own, None, cell.dtype, cell.aspect, named)
            replay = kept(failure, own, options, tally, error) if not lines else ""
            lines.append(
                f"\n    {named['name']}: {error}{replay.replace(chr(10), chr(10) + '    ')}"
            )
    if lines:
        tally.findings.append(
            f"{len(lines)} of {tally.checks} wrong calls are not refused with "
            f"ValueError{''.join(lines)}"
        )
        tally.symptoms.append("wrong calls are not refused with ValueError")


def side_effects(cell: Cell, options: Options, tally: Tally) -> None:
    for implementation in both(cell):
        operation, around = implementation.operation.name, Values()
        for recipe in (
            *recorded(operation, cell.aspect, options.failures),
            *called_twice(operation, **options.draws),
        ):
            side_effect(cell, implementation, recipe, options, tally, around)
        run_checks(cell, implementation, options, tally)


def side_effect(
    cell: Cell,
    implementation: Implementation,
    recipe: Recipe,
    options: Options,
    tally: Tally,
    around: Values,
) -> None:
    if avoided(
        [region for region in options.regions if region.line.covers(recipe, cell.dtype)], tally
    ):
        return
    try:
        judge_side_effects(implementation, recipe, cell.dtype, around)
    except Unsupported as reason:
        unsupported(tally, str(reason))
    except Disagreement as error:
        if error.kind.startswith("raised"):
            unsupported(tally, "every call raised: see values")
        elif not tally.findings:
            failure = Failure.of(implementation, recipe, cell.dtype, cell.aspect)
            tally.findings.append(
                f"{error}\n  recipe: {recipe}{kept(failure, implementation, options, tally, error)}"
            )
            tally.symptoms.append(str(error))
    else:
        tally.checks += 1


JUDGES: dict[str, Callable[[Cell, Options, Tally], None]] = {
    "values": values,
    "gradients": gradients,
    "refusals": refusals,
    "side effects": side_effects,
    "hidden NaN": hidden_nan,
}
