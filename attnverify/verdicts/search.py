"""
Searching a cell for failures: recipe after recipe, recorded ones first.
"""

from dataclasses import dataclass, field, replace
from itertools import chain

from attnverify.backends.loader import Implementation
from attnverify.diagnosis.call_budget import CallBudget, price_of
from attnverify.diagnosis.failing_region import Draws, offers
from attnverify.failures.finding import Finding, is_wide, offered_line
from attnverify.failures.known_failures import KnownFailure
from attnverify.inputs.given import recipe_of_file
from attnverify.inputs.recipe import Recipe
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.judging import Verdict, judge
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.findings import MAX_KINDS_REPORTED, Failures, describe_failures
from attnverify.verdicts.found_out import (
    ABOUT_DTYPES,
    COMPUTES_IN,
    WIDTHS,
    find_narrower,
    find_untaken_dtype,
    has_heads_of_any_width,
    supported_variants,
)
from attnverify.verdicts.shown import shown_recipes
from attnverify.verdicts.tally import Options, Tally, unsupported

FIRST_ASKED = 8
"""Where narrower arithmetic explains none of the first failing cases, the others are not asked."""


def forward_and_gradient(cell: Cell) -> list[Implementation]:
    """Give the implementation and its gradient, once each."""
    without = cell.implementation.backend.declared.features.get("gradient") is False
    gradient = None if without else cell.gradient
    return list(dict.fromkeys(i for i in (cell.implementation, gradient) if i is not None))


@dataclass
class Search:
    """What the recipes of one search have shown so far."""

    implementation: Implementation
    dtype: str
    options: Options
    tally: Tally = field(default_factory=Tally)
    failing: dict[str, list[Case]] = field(default_factory=dict)
    """By the kind of the failure."""
    passing: list[Case] = field(default_factory=list)
    drawn: int = 0
    """So many recipes of the seed were drawn, from the first on."""

    def judge(self, recipe: Recipe) -> None:
        case = case_of(recipe, self.dtype)
        tally, kind = judge_one(self.implementation, case, self.options)
        self.tally += tally
        if kind:
            self.failing.setdefault(kind, []).append(case)
        elif tally.cases:
            self.passing.append(case)

    def look_at_rows(self, large: Case) -> None:
        """
        Put the rows of a large call that fail as calls of their own in its place, where there are
        any: they are small enough to be explained.
        """
        alone = Search(self.implementation, self.dtype, self.options)
        for row in large.rows:
            alone.judge(row.recipe)
        if alone.failing:
            self.failing, self.passing = alone.failing, alone.passing

    def is_unsupported(self) -> bool:
        """Tell whether every call so far was said to be unsupported."""
        return self.tally.unsupported > 0 and not (self.tally.cases or self.tally.known)

    def judge_supported(self, recipe: Recipe, widths: list[int]) -> None:
        """Judge a recipe of sizes that kernels are written for, as far as it is supported."""
        for width in list(widths):
            for variant in supported_variants(recipe, width):
                before = self.tally.unsupported
                self.judge(variant)
                if self.tally.unsupported == before:
                    widths.append(widths.pop(0))  # each width has its turn
                    return
            if not self.passing and not self.failing:
                widths.remove(width)

    def budget(self) -> CallBudget:
        """Return the calls that its findings may make."""
        judged = chain(self.passing, *self.failing.values())
        number = min(len(self.failing), MAX_KINDS_REPORTED)
        return CallBudget.of_findings(number, judged, price_of(self.implementation))

    def leave_out_narrower(self) -> str:
        """
        Leave out the failures that arithmetic in a narrower dtype explains; the dtype, where it
        explains them all.
        """
        found = dict[Case, str]()
        for case in chain(*self.failing.values()):
            found[case] = find_narrower(self.implementation, case)
            if len(found) == FIRST_ASKED and not any(found.values()):
                return ""
        kept = {
            kind: left
            for kind, cases in self.failing.items()
            if (left := [case for case in cases if not found[case]])
        }
        self.failing = kept
        return "" if kept else next(iter(found.values()), "")

    def find_undeclared(self) -> str:
        """
        Say what the function does with a dtype that its file does not name, where that explains
        every failure; "" otherwise.
        """
        if self.dtype in self.implementation.backend.declared.dtypes or not self.failing:
            return ""
        if any(case.rows for case in chain(*self.failing.values())):
            return ""  # the specification has not seen all of them
        if not self.passing and (words := find_untaken_dtype(self.implementation, self.failing)):
            return words
        narrower = self.leave_out_narrower()
        return f"{COMPUTES_IN} {narrower}" if narrower else ""

    def wants_more(self, cases: int) -> bool:
        """
        Tell whether further draws are worth it in place of those that were weak or not supported.
        """
        tally = self.tally
        some_judged = tally.cases + tally.known > 0
        return not self.failing and some_judged and tally.strong + tally.known < cases


def search_for_failures(
    cell: Cell, implementation: Implementation, options: Options, kind: str, cases: int
) -> Tally:
    """
    Judge recipe after recipe, recorded failures first, then let Hypothesis hunt; of each kind of
    failure shrink one and tell.
    """
    search = Search(implementation, cell.dtype, options)
    if options.inputs:
        return judge_given_inputs(search, cell, kind)
    search.drawn = cases
    shown = shown_recipes(implementation, cell.aspect, options, kind, cases)
    for recipe in (*shown.at_first, *shown.drawn, *shown.causal):
        search.judge(recipe)
    for recipe in shown.further:
        if not search.wants_more(cases):
            break
        search.judge(recipe)
        search.drawn += 1
    if search.is_unsupported() and has_heads_of_any_width(implementation.operation):
        widths = list(WIDTHS)
        for recipe in shown.drawn:
            search.judge_supported(recipe, widths)
    if not search.failing:
        for recipe in shown.hunted():
            search.judge(recipe)
    if reason := search.find_undeclared():
        return unsupported(reason)
    found = describe_found(search, cell, kind, min(max(cases, 40), 100))
    return search.tally + Tally(findings=found)


def judge_given_inputs(search: Search, cell: Cell, kind: str) -> Tally:
    """Judge somebody's own arrays: a failure is diagnosed and recorded, and not made smaller."""
    implementation, options = search.implementation, search.options
    recipe = recipe_of_file(implementation.operation, options.inputs)
    search.judge(recipe)
    if search.failing:
        search.look_at_rows(case_of(recipe, cell.dtype))
    if reason := search.find_undeclared():
        return unsupported(reason)
    judged = len(search.passing) + sum(map(len, search.failing.values()))
    failures = Failures(implementation, cell.dtype, cell.aspect, options, judged)
    found = describe_failures(failures, search.failing, search.budget())
    return search.tally + Tally(findings=list(found.values()))


def leaves_dtype_out(tally: Tally) -> bool:
    """Tell whether a search has shown that the dtype is not judged, and nothing else."""
    return any(reason.startswith(ABOUT_DTYPES) for reason in tally.reasons)


def describe_found(search: Search, cell: Cell, kind: str, fresh: int) -> list[Finding]:
    """
    Write the findings of a search, each with the region that its failures fill; ``fresh`` draws
    bear it out.
    """
    implementation, options = search.implementation, search.options
    cases, passing = search.tally.cases, tuple(search.passing)
    drawn = search.drawn
    failures = Failures(implementation, cell.dtype, cell.aspect, options, cases, passing, drawn)
    budget = search.budget()
    found = describe_failures(failures, search.failing, budget)
    if not found:
        return []
    failing = {what: search.failing[what] for what in found}
    draws = Draws(kind, fresh, options.seed)
    regions = offers(implementation, cell.dtype, failing, search.passing, draws, budget)
    return [
        replace(
            finding,
            condition=() if is_wide(regions[what]) else regions[what].conditions,
            offer=offered_line(regions[what], cell.implementation.name, cell.aspect),
        )
        for what, finding in found.items()
    ]


def judge_one(implementation: Implementation, case: Case, options: Options) -> tuple[Tally, str]:
    """
    Judge a case: what is to be counted, and the kind of its failure, "" if it passed, is not
    supported, or is known to fail.
    """
    regions = [line for line in options.regions if line.covers(case)]
    if fatal := fatal_case(regions, options):
        return fatal, ""
    try:
        return passed_case(judge(implementation, case), regions), ""
    except Unsupported as reason:
        return unsupported(str(reason)), ""
    except Disagreement as error:
        if regions:
            return Tally(known=1, regions=count_outcomes(regions, failed=1)), ""
        return Tally(cases=1, budget=error.budget), error.kind


def fatal_case(regions: list[KnownFailure], options: Options) -> Tally | None:
    """
    Count a case that lies where the process ended before as failing there, without running it.
    """
    fatal = [line for line in regions if line in options.fatal]
    return Tally(known=1, regions=count_outcomes(fatal, failed=1)) if fatal else None


def passed_case(verdict: Verdict, regions: list[KnownFailure]) -> Tally:
    """Count a case that passed; one whose bounds are not finite says nothing."""
    if not verdict.judged:
        return Tally(outside=1)
    return Tally(
        cases=1,
        strong=int(verdict.discriminating),
        budget=verdict.budget,
        regions=count_outcomes(regions, passed=1),
    )


def count_outcomes(
    regions: list[KnownFailure], failed: int = 0, passed: int = 0
) -> dict[str, list[int]]:
    return {line.source: [failed, passed] for line in regions}
