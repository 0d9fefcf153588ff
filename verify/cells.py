"""
Cells: one implementation, one dtype, one column of the verdict. What pytest runs as one test.

values        outputs, their shape, dtype and device; long sequences by sampled rows; relations
gradients     the same for ``<op>_grad``, exported or by the library's autograd
refusals      wrong calls are refused with ValueError
side effects  inputs unchanged, no aliases, no state between calls
hidden NaN    NaN and infinity in hidden slots reach no output and no gradient
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from verify.backends import Backend, Implementation
from verify.catalogue import CATALOGUE
from verify.draws import draw, hunt, shrink
from verify.judge import Disagreement, Unsupported, Verdict, call, converted, judge, judge_side_effects
from verify.known import Known
from verify.longs import long_cases
from verify.probes import probes
from verify.recipes import Recipe
from verify.refusals import refused_by_law
from verify.relations import judge_relations
from verify.replay import Failure, recorded
from verify.sequences import judge_sequence, right_alone

CASES = {"quick": 20, "default": 100, "thorough": 2000}


@dataclass
class Region:
    """A known failure that speaks of some cases only: how many of them failed, and how many passed."""

    line: Known
    failed: int = 0
    passed: int = 0

    @property
    def unexpected(self) -> bool:
        return self.passed > 0 and self.failed == 0


@dataclass(frozen=True)
class Options:
    """How much is drawn, from which seed, where failures are kept, and which are known."""

    profile: str = "default"
    seed: int = 0
    failures: str = ".verify/failures"
    regions: tuple[Region, ...] = ()

    @property
    def cases(self) -> int:
        return CASES[self.profile]


@dataclass
class Tally:
    """What a cell showed."""

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
    known: int = 0
    unsupported: int = 0
    outside: int = 0
    budget: float = 0.0
    slack: float = 1.0
    reasons: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(eq=False)
class Cell:
    """An implementation, a dtype and an aspect; ``gradient`` is the implementation of the operation's gradient, if there is one."""

    implementation: Implementation
    gradient: Implementation | None
    dtype: str
    aspect: str

    @property
    def id(self) -> str:
        return f"{self.implementation.operation.name}-{self.implementation.label}-{self.dtype}"

    def tally(self) -> Tally:
        own = self.implementation
        tally = Tally(own.operation.forward.name, own.name, own.backend.name, own.how, self.dtype, self.aspect)
        if self.dtype != "bool":
            tally.slack = own.precision(self.dtype).slack
        return tally


def cells(
    backends: list[Backend], operations: tuple[str, ...] = (), dtypes: tuple[str, ...] = (), chapter: str | None = None
) -> list[Cell]:
    """Every cell of the backends, ordered so that what the law says of an operation in a dtype is used by all before the next."""
    found = []
    for implementation, gradient in (pair for backend in backends for pair in rows(backend)):
        operation = implementation.operation
        if chapter not in (None, operation.chapter) or (operations and operation.forward.name not in operations):
            continue
        for dtype in operation.dtypes:
            if not dtypes or dtype in (*dtypes, "bool"):
                found += [Cell(implementation, gradient, dtype, aspect) for aspect in aspects(implementation, gradient)]
    return sorted(found, key=place)


def place(cell: Cell) -> tuple[int, int]:
    """Where a cell comes in a run: operations in the catalogue's order, the widest dtype first."""
    dtypes = cell.implementation.operation.dtypes
    return PLACES[cell.implementation.operation.name], dtypes.index(cell.dtype)


PLACES = {name: place for place, name in enumerate(CATALOGUE)}


def rows(backend: Backend) -> Iterator[tuple[Implementation, Implementation | None]]:
    """Each forward implementation with its gradient; a gradient that comes alone is a row of its own."""
    gradients = {(i.operation.forward.name, i.how): i for i in backend.implementations if i.operation.is_gradient}
    for implementation in backend.implementations:
        if not implementation.operation.is_gradient:
            yield implementation, gradients.pop((implementation.operation.name, implementation.how), None)
    for gradient in gradients.values():
        yield gradient, gradient


def aspects(implementation: Implementation, gradient: Implementation | None) -> list[str]:
    """The columns of the verdict that an implementation can have."""
    found = ["values"] if implementation is not gradient else []
    found += ["gradients"] if gradient is not None else []
    found += ["refusals"] if refused_by_law(implementation.operation.name) else []
    found += ["side effects"]
    hiding = "key" in implementation.operation.arguments or implementation.operation.name == "softmax"
    masked = {"mask", "visible", "key_padding_mask"} & set(implementation.operation.arguments)
    return [*found, "hidden NaN"] if hiding and masked and implementation.operation.name != "alibi_multi_head_attention" else found


def run(cell: Cell, options: Options, known: tuple[Known, ...] = ()) -> Tally:
    """Judge the cell, in the light of the known failures that speak of it."""
    tally = cell.tally()
    regions = [Region(line) for line in known if line.when]
    JUDGES[cell.aspect](cell, replace(options, regions=tuple(regions)), tally)
    tally.findings += [f"{region.line.source}: all {region.passed} cases of its region pass" for region in regions if region.unexpected]
    whole = next((line for line in known if not line.when), None)
    title = f"{tally.implementation} of {tally.backend} in {tally.dtype}"
    if tally.findings and whole:
        tally.verdict, tally.reason = "known failure", whole.reason
    elif tally.findings:
        findings = [f"{title} is not what the law says ({tally.aspect})", *tally.findings]
        tally.verdict, tally.reason = "failed", "\n".join(findings)
    elif failed := [region for region in regions if region.failed]:
        tally.verdict, tally.reason = "known failure", "; ".join(region.line.reason for region in failed)
    elif whole and tally.cases:
        tally.verdict, tally.reason = "failed", f"{title} passes ({tally.aspect}), though {whole.source} says: {whole.reason}"
    elif tally.cases == 0:
        tally.verdict, tally.reason = "unsupported", most_common(tally.reasons)
    return tally


def most_common(reasons: dict[str, int]) -> str:
    return max(reasons, key=lambda reason: reasons[reason], default="no case applies")


def values(cell: Cell, options: Options, tally: Tally) -> None:
    operation = cell.implementation.operation.name
    judge_each(cell, cell.implementation, options, tally, [*probes(operation), *draw(operation, "any", options.cases, options.seed)])
    if tally.findings:
        return  # what is wrong at small sizes needs no long sequence to show it
    for name, case in (*long_cases(operation, options.profile), *judge_relations(operation, options.profile, options.seed)):
        counted(tally, name, partial(case, cell.implementation, cell.dtype))


def gradients(cell: Cell, options: Options, tally: Tally) -> None:
    assert cell.gradient is not None
    operation = cell.gradient.operation.name
    judge_each(cell, cell.gradient, options, tally, [*probes(operation), *draw(operation, "any", options.cases, options.seed)])


def hidden_nan(cell: Cell, options: Options, tally: Tally) -> None:
    for implementation in both(cell):
        drawn = draw(implementation.operation.name, "nan", max(10, options.cases // 4), options.seed)
        judge_each(cell, implementation, options, tally, list(drawn), "nan")


def both(cell: Cell) -> list[Implementation]:
    """The implementation and its gradient, once each."""
    return list(dict.fromkeys(i for i in (cell.implementation, cell.gradient) if i is not None))


def judge_each(
    cell: Cell, implementation: Implementation, options: Options, tally: Tally, recipes: list[Recipe], kind: str = "any"
) -> None:
    """Judge recipe after recipe, recorded failures first, then let Hypothesis hunt; of each kind of failure shrink one and tell."""
    failures: dict[str, list[Recipe]] = {}
    operation = implementation.operation.name

    def fails(recipe: Recipe) -> bool:
        kind_of_failure = judge_one(cell, implementation, options, tally, recipe)
        if kind_of_failure:
            failures.setdefault(kind_of_failure, []).append(recipe)
        return bool(kind_of_failure)

    for recipe in [*recorded(operation, cell.aspect, options.failures), *recipes]:
        fails(recipe)
    if not failures:
        hunt(operation, kind, fails, max(2, options.cases // 10), options.seed)
    for what, failing in list(failures.items())[:KINDS_TOLD]:
        told(cell, implementation, what, failing, options, tally, kind)


def judge_one(cell: Cell, implementation: Implementation, options: Options, tally: Tally, recipe: Recipe) -> str:
    """Judge a recipe and count it; the kind of its failure, or "" if it passed, is not supported, or is known to fail."""
    regions = [region for region in options.regions if region.line.covers(recipe, cell.dtype)]
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


KINDS_TOLD = 3


def count(tally: Tally, verdict: Verdict, regions: Sequence[Region] = ()) -> None:
    tally.cases += 1
    for region in regions:
        region.passed += 1
    tally.strong += verdict.strong
    tally.outside += verdict.outside
    tally.budget = max(tally.budget, verdict.budget)


def unsupported(tally: Tally, reason: str) -> None:
    tally.unsupported += 1
    tally.reasons[reason] = tally.reasons.get(reason, 0) + 1


def told(cell: Cell, implementation: Implementation, what: str, failing: list[Recipe], options: Options, tally: Tally, kind: str) -> None:
    """Write down the smallest recipe that fails in this way, with its replay."""
    share = f"{len(failing)} of {tally.cases} cases: {what}"

    def unknown(recipe: Recipe) -> bool:
        known = any(region.line.covers(recipe, cell.dtype) for region in options.regions)
        return not known and failure_of(implementation, recipe, cell.dtype, what) is not None

    smallest = shrink(failing[0], kind, unknown, options.seed)
    for recipe in dict.fromkeys((smallest, *failing)):
        error = failure_of(implementation, recipe, cell.dtype, what)
        if error is not None:
            failure = Failure.of(implementation, recipe, cell.dtype, cell.aspect)
            failure.keep(options.failures, implementation)
            state = STATE if right_alone(implementation, recipe, cell.dtype) else ""
            tally.findings.append(f"{share}\n  {error}\n  recipe: {recipe}\n  replay: {failure.replay_line}{state}")
            return
    tally.findings.append(f"{share}\n  {failing[0]}\n  passed when it was run again: the result depends on the calls before it")


STATE = "\n  a freshly loaded backend gives the right answer to this call: the result depends on the calls before it"


def failure_of(implementation: Implementation, recipe: Recipe, dtype: str, what: str) -> Disagreement | None:
    """The failure of this kind, if the recipe still fails so."""
    try:
        judge(implementation, recipe, dtype)
    except Disagreement as error:
        return error if error.kind == what else None
    except Unsupported:
        pass
    return None


def counted(tally: Tally, name: str, check: Callable[[], Any]) -> None:
    """A check that has no recipe to shrink."""
    try:
        check()
    except Unsupported as reason:
        unsupported(tally, str(reason))
    except Disagreement as error:
        tally.cases += 1
        tally.findings.append(f"{name}\n  {error}")
    else:
        count(tally, Verdict(0.0, True, False))


def refusals(cell: Cell, options: Options, tally: Tally) -> None:
    """Every wrong call must be refused with ValueError; all that are not are told together."""
    accepted = []
    for words, inputs in refused_by_law(cell.implementation.operation.name).items():
        dtype = cell.dtype if cell.dtype != "bool" else "float64"
        given = {name: converted(cell.implementation, value, dtype) for name, value in inputs.items()}
        try:
            outcome = refusal(cell.implementation, given)
        except Unsupported as reason:
            unsupported(tally, str(reason))
            continue
        count(tally, Verdict(0.0, True, False))
        if outcome:
            accepted.append(f"{words}: {outcome}")
    if accepted:
        tally.findings.append("\n    ".join([f"{len(accepted)} of {tally.cases} wrong calls are not refused with ValueError", *accepted]))


def refusal(implementation: Implementation, given: dict[str, Any]) -> str:
    """What came instead of a ValueError; empty if it was one."""
    try:
        call(implementation, given)
    except Disagreement as error:
        return "" if isinstance(error.__cause__, ValueError) else str(error)
    return "accepted"


def side_effects(cell: Cell, options: Options, tally: Tally) -> None:
    for implementation in both(cell):
        operation = implementation.operation.name
        recipes = draw(operation, "any", options.cases, options.seed)[: max(10, options.cases // 5)]
        for recipe in (*recorded(operation, cell.aspect, options.failures), *probes(operation), *recipes):
            side_effect(cell, implementation, recipe, options, tally)
        for first, other in zip(recipes[: len(recipes) // 2], recipes[len(recipes) // 2 :], strict=False):
            counted(tally, "a sequence of calls", partial(judge_sequence, implementation, first, other, cell.dtype))


def side_effect(cell: Cell, implementation: Implementation, recipe: Recipe, options: Options, tally: Tally) -> None:
    try:
        count(tally, judge_side_effects(implementation, recipe, cell.dtype))
    except Unsupported as reason:
        unsupported(tally, str(reason))
    except Disagreement as error:
        if error.kind.startswith("raised"):
            unsupported(tally, "every call raised: see values")
        elif not tally.findings:
            failure = Failure.of(implementation, recipe, cell.dtype, cell.aspect)
            failure.keep(options.failures, implementation)
            tally.findings.append(f"{error}\n  recipe: {recipe}\n  replay: {failure.replay_line}")


JUDGES: dict[str, Callable[[Cell, Options, Tally], None]] = {
    "values": values,
    "gradients": gradients,
    "refusals": refusals,
    "side effects": side_effects,
    "hidden NaN": hidden_nan,
}
