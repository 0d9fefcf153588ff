"""
Cells: one implementation, one dtype, one column of the verdict. What pytest runs as one test.

values        outputs, their shape, dtype and device; long sequences by sampled rows; relations
gradients     the same for ``<op>_grad``, exported or by the library's autograd
refusals      wrong calls are refused with ValueError
side effects  inputs unchanged, no aliases, no state between calls
hidden NaN    NaN and infinity in hidden slots reach no output and no gradient
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnverify.backends.loader import Implementation
from attnverify.backends.round_trip import check_round_trip
from attnverify.checks.registry import Check, checks, recipes_called_twice
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord, recorded_checks, recorded_recipes
from attnverify.inputs.recipe import Recipe
from attnverify.judge import state_guard
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.judge.invoke import announce
from attnverify.judge.process_state import Values
from attnverify.judge.side_effects import judge_side_effects
from attnverify.timing import measure_block
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.findings import record_failure
from attnverify.verdicts.search import (
    count_unsupported,
    forward_and_gradient,
    lies_in_fatal_region,
    search_for_failures,
)
from attnverify.verdicts.tally import CellResult, KnownRegion, Options, decide_verdict


def judge_cell(
    cell: Cell,
    options: Options,
    known: tuple[KnownFailure, ...] = (),
    fatal: tuple[KnownFailure, ...] = (),
) -> CellResult:
    """
    Judge the cell, in the light of the known failures that speak of it; what ended a process before
    is not run again.
    """
    seconds: dict[str, float] = {}
    with measure_block(seconds):
        tally = decide_verdict(collect_evidence(cell, options, known, fatal), known)
    tally.seconds = seconds
    return tally


def collect_evidence(
    cell: Cell,
    options: Options,
    known: tuple[KnownFailure, ...] = (),
    fatal: tuple[KnownFailure, ...] = (),
) -> CellResult:
    """
    What the cell shows, before anything is made of it. What its calls have changed around them is
    put back.
    """
    tally, regions = (
        cell.tally(),
        [KnownRegion(line, fatal=line in fatal) for line in known if line.when],
    )
    tally.blocked = check_round_trip(cell.implementation.backend, cell.dtype) or ""
    if tally.blocked:
        return tally
    before = state_guard.snapshot()
    JUDGES[cell.aspect](cell, replace(options, regions=tuple(regions)), tally)
    tally.changes = [
        str(change) for change in state_guard.diff_and_restore(before) if not change.once
    ]
    if cell.aspect == "side effects" and tally.changes and not tally.findings:
        tally.findings.append(f"{'; '.join(tally.changes)}\n  seen after the column's last call")
        tally.symptoms.append("; ".join(tally.changes))
    tally.regions = {region.line.source: [region.failed, region.passed] for region in regions}
    return tally


def judge_values(cell: Cell, options: Options, tally: CellResult) -> None:
    search_for_failures(cell, cell.implementation, options, tally, "any", options.cases)
    if not tally.findings:  # what is wrong at small sizes needs no long sequence to show it
        run_checks(cell, cell.implementation, options, tally)


def judge_gradients(cell: Cell, options: Options, tally: CellResult) -> None:
    assert cell.gradient is not None
    search_for_failures(cell, cell.gradient, options, tally, "any", options.cases)


def judge_hidden_nan(cell: Cell, options: Options, tally: CellResult) -> None:
    for implementation in forward_and_gradient(cell):
        search_for_failures(
            cell, implementation, options, tally, "nan", max(10, options.cases // 4)
        )


def run_checks(
    cell: Cell, implementation: Implementation, options: Options, tally: CellResult
) -> None:
    """
    The checks of the column, those that failed once before first; each failure is told on its own.
    """
    for named, check in checks_to_run(cell, implementation, options):
        announce.get()(implementation, cell.dtype, None, named)
        error = run_check(tally, check, implementation, cell.dtype)
        if error:
            failure = FailureRecord.of(implementation, None, cell.dtype, cell.aspect, named)
            tally.findings.append(
                f"{named['name']}\n  "
                f"{error}{record_failure(failure, implementation, options, tally, error)}"
            )
            tally.symptoms.append(named["name"])


def checks_to_run(
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


def run_check(
    tally: CellResult, check: Check, implementation: Implementation, dtype: str
) -> Disagreement | None:
    """Run a check and count it; what it found, if anything."""
    try:
        check(implementation, dtype)
    except Unsupported as reason:
        count_unsupported(tally, str(reason))
        return None
    except Disagreement as error:
        tally.checks += 1
        return error
    tally.checks += 1
    return None


def judge_refusals(cell: Cell, options: Options, tally: CellResult) -> None:
    """Every wrong call must be refused with ValueError; all that are not are told together."""
    own, lines = cell.implementation, list[str]()
    for named, check in checks_to_run(cell, own, options):
        announce.get()(own, cell.dtype, None, named)
        error = run_check(tally, check, own, cell.dtype)
        if error:
            failure = FailureRecord.of(own, None, cell.dtype, cell.aspect, named)
            replay = record_failure(failure, own, options, tally, error) if not lines else ""
            lines.append(
                f"\n    {named['name']}: {error}{replay.replace(chr(10), chr(10) + '    ')}"
            )
    if lines:
        tally.findings.append(
            f"{len(lines)} of {tally.checks} wrong calls are not refused with "
            f"ValueError{''.join(lines)}"
        )
        tally.symptoms.append("wrong calls are not refused with ValueError")


def judge_side_effects_column(cell: Cell, options: Options, tally: CellResult) -> None:
    for implementation in forward_and_gradient(cell):
        operation, around = implementation.operation.name, Values()
        for recipe in (
            *recorded_recipes(operation, cell.aspect, options.failures),
            *recipes_called_twice(operation, **options.draws),
        ):
            judge_side_effect(cell, implementation, recipe, options, tally, around)
        run_checks(cell, implementation, options, tally)


def judge_side_effect(
    cell: Cell,
    implementation: Implementation,
    recipe: Recipe,
    options: Options,
    tally: CellResult,
    around: Values,
) -> None:
    if lies_in_fatal_region(
        [region for region in options.regions if region.line.covers(recipe, cell.dtype)], tally
    ):
        return
    try:
        judge_side_effects(implementation, recipe, cell.dtype, around)
    except Unsupported as reason:
        count_unsupported(tally, str(reason))
    except Disagreement as error:
        if error.kind.startswith("raised"):
            count_unsupported(tally, "every call raised: see values")
        elif not tally.findings:
            failure = FailureRecord.of(implementation, recipe, cell.dtype, cell.aspect)
            tally.findings.append(
                f"{error}\n  recipe: "
                f"{recipe}{record_failure(failure, implementation, options, tally, error)}"
            )
            tally.symptoms.append(str(error))
    else:
        tally.checks += 1


JUDGES: dict[str, Callable[[Cell, Options, CellResult], None]] = {
    "values": judge_values,
    "gradients": judge_gradients,
    "refusals": judge_refusals,
    "side effects": judge_side_effects_column,
    "hidden NaN": judge_hidden_nan,
}
