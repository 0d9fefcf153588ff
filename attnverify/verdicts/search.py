"""
Searching a cell for failures: recipe after recipe, recorded ones first.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from attnverify.backends.loader import Implementation
from attnverify.diagnosis.failing_region import offers
from attnverify.failures.record import find_record, recorded_recipes
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, hypothesis_examples
from attnverify.judge.case import Verdict, judge
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.findings import MAX_KINDS_REPORTED, attach_failing_regions, report_failure
from attnverify.verdicts.tally import CellResult, KnownRegion, Options


def forward_and_gradient(cell: Cell) -> list[Implementation]:
    """The implementation and its gradient, once each."""
    return list(dict.fromkeys(i for i in (cell.implementation, cell.gradient) if i is not None))


def search_for_failures(
    cell: Cell,
    implementation: Implementation,
    options: Options,
    tally: CellResult,
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
        *recorded_recipes(operation, cell.aspect, options.failures),
        *recipes_of_known_failures(operation, cell.aspect, options),
    ]
    for recipe in (
        *first,
        *(fixed_cases(operation) if kind == "any" else ()),
        *draw_recipes(operation, kind, cases, options.seed),
    ):
        fails(recipe)
    for recipe in draw_recipes(operation, kind, 4 * cases, options.seed)[
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
        ()
        if failures
        else hypothesis_examples(operation, kind, max(2, options.cases // 10), options.seed)
    ):
        fails(recipe)
    some = dict(list(failures.items())[:MAX_KINDS_REPORTED])
    for what, failing in some.items():
        report_failure(cell, implementation, what, failing, options, tally, kind)
    if some:
        attach_failing_regions(
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


def recipes_of_known_failures(operation: str, aspect: str, options: Options) -> Iterator[Recipe]:
    """
    The recipes of the records that known failures name: they fail in every run, whatever is drawn.
    """
    for region in options.regions:
        if region.line.replay:
            with suppress(ValueError):
                failure = find_record(region.line.replay, options.failures)
                if (failure.operation, failure.aspect) == (operation, aspect) and not failure.check:
                    yield Recipe(**failure.recipe)


def judge_one(
    cell: Cell, implementation: Implementation, options: Options, tally: CellResult, recipe: Recipe
) -> str:
    """
    Judge a recipe and count it; the kind of its failure, or "" if it passed, is not supported, or
    is known to fail.
    """
    regions = [region for region in options.regions if region.line.covers(recipe, cell.dtype)]
    if lies_in_fatal_region(regions, tally):
        return ""
    try:
        count_passed(tally, judge(implementation, recipe, cell.dtype), regions)
    except Unsupported as reason:
        count_unsupported(tally, str(reason))
    except Disagreement as error:
        if not regions:
            tally.cases += 1
            tally.budget = max(tally.budget, error.budget)
            return error.kind
        tally.known += 1
        for region in regions:
            region.failed += 1
    return ""


def lies_in_fatal_region(regions: list[KnownRegion], tally: CellResult) -> bool:
    """Whether a case lies where the process ended before; it is counted as failing there."""
    fatal = [region for region in regions if region.fatal]
    for region in fatal:
        region.failed += 1
    tally.known += bool(fatal)
    return bool(fatal)


def count_passed(tally: CellResult, verdict: Verdict, regions: Sequence[KnownRegion]) -> None:
    """Count a case that passed; one whose bounds are not finite says nothing."""
    if not verdict.judged:
        tally.outside += 1
        return
    tally.cases += 1
    for region in regions:
        region.passed += 1
    tally.strong += verdict.strong
    tally.budget = max(tally.budget, verdict.budget)


def count_unsupported(tally: CellResult, reason: str) -> None:
    tally.unsupported += 1
    tally.reasons[reason] = tally.reasons.get(reason, 0) + 1
