"""
Cells: one implementation, one dtype, one column of the verdict. What pytest runs as one test.

values        outputs, their shape, dtype and device; long sequences by sampled rows; relations
gradients     the same for ``<op>_grad``, exported or by the library's autograd
refusals      invalid calls are refused with ValueError
side effects  inputs unchanged, no aliases, no state between calls
hidden NaN    NaN and infinity in slots hidden from all rows reach no output and no gradient
isolation     nor, where some rows see them, the rows that do not
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from attnverify.backends.array_libraries import by_autograd
from attnverify.backends.calls.round_trip import check_round_trip
from attnverify.backends.implementation import Implementation
from attnverify.checks.calls_of_check import calls_of_check
from attnverify.checks.registry import Check, checks, concerns, find_check
from attnverify.failures.evidence import Evidence, picture_of_error
from attnverify.failures.finding import NOT_REFUSED, Finding, KnownFailureLine
from attnverify.failures.known_failures import KnownFailure
from attnverify.failures.record import FailureRecord, recorded_checks, recorded_recipes
from attnverify.failures.store import save_or_say
from attnverify.inputs.sampling import FROM_SOME, count_draws, count_hidden
from attnverify.judge import state_guard
from attnverify.judge.case import Case, case_of
from attnverify.judge.errors import DOES_NOT_COMPILE, Disagreement, Unsupported
from attnverify.judge.invoke import announce
from attnverify.judge.module_contents import Values
from attnverify.judge.side_effects import judge_side_effects
from attnverify.timing import measure_block
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.findings import describe_recorded
from attnverify.verdicts.one_case import count_outcomes, fatal_case, note, reason_of
from attnverify.verdicts.search import (
    forward_and_gradient,
    leaves_dtype_out,
    left_out_by_values,
    search_for_failures,
)
from attnverify.verdicts.shown import (
    count_sequences,
    is_sampled,
    recipes_to_call_twice,
)
from attnverify.verdicts.tally import CellResult, Options, Tally, decide_verdict, unsupported


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
        result = decide_verdict(collect_evidence(cell, options, known, fatal), known)
    return replace(result, seconds=seconds)


def collect_evidence(
    cell: Cell,
    options: Options,
    known: tuple[KnownFailure, ...] = (),
    fatal: tuple[KnownFailure, ...] = (),
) -> CellResult:
    """
    Collect what the cell shows, before anything is made of it. What its calls have changed around
    them is put back.
    """
    declared = cell.implementation.backend.declared
    if declared.leaves_out(cell.dtype):
        return cell.result().with_tally(unsupported(f"DTYPES does not name {cell.dtype}"))
    if reason := cell.implementation.library.unsupported(cell.dtype):
        return cell.result().with_tally(unsupported(reason))
    if words := check_round_trip(cell.implementation.backend, cell.dtype):
        return replace(cell.result(), blocked=words)
    forget_other_shapes(cell)
    regions = tuple(line for line in known if line.when)
    before = state_guard.snapshot()
    options = replace(options_of(cell, options), regions=regions, fatal=fatal)
    tally = JUDGES[cell.aspect](cell, options)
    if cell.aspect != "values" and (tally.findings or SEE_VALUES in tally.reasons):
        reason = left_out_by_values(cell, options)
        tally = unsupported(reason) if reason else tally
    changes = [str(change) for change in state_guard.diff_and_restore(before) if not change.once]
    if cell.aspect == "side effects" and changes and not tally.findings:
        words = "; ".join(changes)
        tally += Tally(findings=[Finding(words, message="seen after the column's last call")])
    unseen = Tally(regions={line.source: [0, 0] for line in regions})
    own = cell.gradient if cell.aspect == "gradients" and cell.gradient else cell.implementation
    shown = own.shown.get(cell.dtype, {})
    return replace(cell.result().with_tally(unseen + tally), changes=changes, shown=shown)


def options_of(cell: Cell, options: Options) -> Options:
    """Give the quick profile in place of the default one to a way that says so."""
    if cell.implementation.quick and options.profile == "default":
        return replace(options, profile="quick")
    return options


def forget_other_shapes(cell: Cell) -> None:
    """
    Let go of what the library has compiled for another operation or dtype. The columns of one meet
    the same shapes.
    """
    backend, own = cell.implementation.backend, (cell.implementation.name, cell.dtype)
    if backend.compiled_for not in (None, own):
        cell.implementation.library.forget()
    backend.compiled_for = own


def judge_values(cell: Cell, options: Options) -> Tally:
    own = cell.implementation
    tally = search_for_failures(cell, own, options, "any", options.cases)
    tally += Tally(unseen={own.operation.second_result: RETURNS_NONE} if own.is_alone else {})
    own.backend.left_out[own.name, cell.dtype] = leaves_dtype_out(tally)
    told = frozenset[str]().union(*(found.causes for found in tally.findings))
    own.backend.told[own.operation.name, own.how, cell.dtype] = told
    if tally.findings or leaves_dtype_out(tally):
        return tally  # what is wrong at small sizes needs no long sequence to show it
    return tally + run_checks(cell, own, options) + unjudged_gradient(own)


RETURNS_NONE = "it returns none"


def unjudged_gradient(own: Implementation) -> Tally:
    """Say that an attention in a library with gradients has one that nothing judges."""
    op, differentiated = own.operation, by_autograd(own.function, own.library.name) is not None
    unjudged = differentiated and "query" in op.arguments and op.gradient is None
    return Tally(unseen={"gradient": "the specification has none"} if unjudged else {})


def judge_gradients(cell: Cell, options: Options) -> Tally:
    assert cell.gradient is not None
    if cell.gradient.backend.declared.features.get("gradient") is False:
        return unsupported("FEATURES: gradient")
    cases = count_draws(cell.gradient.operation.name, options.cases)
    tally = search_for_failures(cell, cell.gradient, options, "any", cases)
    if tally.findings or leaves_dtype_out(tally):
        return tally
    return tally + run_checks(cell, cell.gradient, options)


def judge_hidden(kind: str, cell: Cell, options: Options) -> Tally:
    tally, cases = Tally(), count_hidden(kind, options.cases)
    for implementation in forward_and_gradient(cell):
        tally += search_for_failures(cell, implementation, options, kind, cases)
    return tally


def run_checks(cell: Cell, implementation: Implementation, options: Options) -> Tally:
    """
    Run the checks of the column, those that failed once before first; each failure is told on its
    own.
    """
    tally = Tally()
    for named, check in checks_to_run(cell, implementation, options):
        counted, error = run_check(named, check, implementation, cell.dtype)
        if error and (known := known_by_regions(check, implementation, cell.dtype, options)):
            counted, error = known, None
        tally += counted
        if error:
            record = FailureRecord.of_check(implementation, cell.dtype, cell.aspect, named)
            name, offer = named["name"], offer_of_cell(cell, f"({named['name']})")
            found = describe_recorded(name, str(error), record, implementation, options, error)
            tally.findings.append(replace(found, offer=offer))
    return tally


def known_by_regions(
    check: Check, implementation: Implementation, dtype: str, options: Options
) -> Tally | None:
    """
    Count a check as known to fail where one of its calls lies in the region of a known failure; of
    a check of many calls, where all of them do.
    """
    if not options.regions:
        return None
    calls = calls_of_check(check, implementation, dtype)
    needed = all if len(calls) > MOST_RELATED else any
    lines = [line for line in options.regions if calls and needed(map(line.covers, calls))]
    return Tally(known=1, regions=count_outcomes(lines, failed=1)) if lines else None


MOST_RELATED = 3
"""So many calls at most are related to one another; more are a sample."""


def run_check(
    named: dict[str, Any], check: Check, implementation: Implementation, dtype: str
) -> tuple[Tally, Disagreement | None]:
    """Run a check: what it counts, and what it found, if anything."""
    announce.get()(implementation, dtype, None, named)
    try:
        used = check(implementation, dtype)
    except Unsupported as reason:
        return unsupported(str(reason)), None
    except Disagreement as error:
        if uncompiled := reason_of(error, implementation):
            return unsupported(uncompiled), None
        return Tally(checks=1, budget=error.budget), error
    return Tally(checks=1, budget=used or 0.0), None


def checks_to_run(
    cell: Cell, implementation: Implementation, options: Options
) -> list[tuple[dict[str, Any], Check]]:
    """
    Recorded checks, then those of this run, each with what it is made from; none where few cases
    are judged.
    """
    if is_sampled(implementation, options):
        return []
    operation = implementation.operation.name
    made_from = options.draws | ({"inputs": options.inputs} if options.inputs else {})
    names = checks(operation, cell.aspect, **made_from)
    own = [{"name": name} | made_from for name in names if concerns(name, implementation)]
    if cell.aspect == "side effects":
        own = own[: count_sequences(implementation, options)]
    found = [
        named
        for named in recorded_checks(operation, cell.aspect, options.failures)
        if named not in own and named.get("inputs", "") == options.inputs
    ] + own
    made = [(named, find_check(operation, cell.aspect, named)) for named in found]
    return [
        (named, check) for named, check in made if check is not None
    ]  # a record may be older than the checks


def judge_refusals(cell: Cell, options: Options) -> Tally:
    """
    Every invalid call must be refused with ValueError; all that are not are one finding, and the
    first of them is recorded.
    """
    own, tally, wrong = cell.implementation, Tally(), list[tuple[dict[str, Any], Disagreement]]()
    for named, check in checks_to_run(cell, own, options):
        counted, error = run_check(named, check, own, cell.dtype)
        tally += counted
        if error:
            wrong.append((named, error))
            record = FailureRecord.of_check(own, cell.dtype, cell.aspect, wrong[0][0])
            note(record, NOT_REFUSED, f"{len(wrong)} of {tally.checks} calls")
    if not wrong:
        return tally
    finding = Finding(
        NOT_REFUSED,
        headline=f"{len(wrong)} of {tally.checks} {NOT_REFUSED}",
        message="\n".join(f"{named['name']}: {error}" for named, error in wrong),
        record=record,
        evidence=Evidence(picture_of_error(record.operation, wrong[0][1])),
        notes=save_or_say(record, options.failures, own),
        offer=offer_of_cell(cell, f"({len(wrong)} of {tally.checks} invalid calls)"),
    )
    return tally + Tally(findings=[finding])


def offer_of_cell(cell: Cell, evidence: str) -> KnownFailureLine:
    """Offer the line that would declare a whole cell as known: what is wrong hangs on no case."""
    line = f"{cell.implementation.name} {cell.dtype} {cell.aspect} : <reason>"
    return KnownFailureLine(line, evidence)


def judge_side_effects_column(cell: Cell, options: Options) -> Tally:
    tally = Tally()
    for implementation in forward_and_gradient(cell):
        operation, around = implementation.operation.name, Values()
        for recipe in (
            *recorded_recipes(operation, cell.aspect, options.failures),
            *recipes_to_call_twice(implementation, options),
        ):
            case = case_of(recipe, cell.dtype)
            counted, error = judge_side_effect(implementation, case, options, around)
            tally += counted
            if error and not tally.findings:
                record = FailureRecord.of(implementation, case, cell.aspect)
                found = describe_recorded(str(error), "", record, implementation, options, error)
                tally.findings.append(replace(found, offer=offer_of_cell(cell, FIRST_CASE)))
            if tally.findings:
                break  # one case shows them all, and a thread that is left is waited for each time
        tally += run_checks(cell, implementation, options)
    return tally


SEE_VALUES = "every call raised: see values"
FIRST_CASE = "(the first case that shows it)"


def judge_side_effect(
    implementation: Implementation, case: Case, options: Options, around: Values
) -> tuple[Tally, Disagreement | None]:
    """Look for the side effects of one case: what it counts, and what it found, if anything."""
    regions = [line for line in options.regions if line.covers(case)]
    if fatal := fatal_case(regions, options):
        return fatal, None
    try:
        judge_side_effects(implementation, case, around)
    except Unsupported as reason:
        return unsupported(str(reason)), None
    except Disagreement as error:
        if error.kind.startswith(("raised", DOES_NOT_COMPILE)):
            return unsupported(SEE_VALUES), None
        return Tally(), error
    return Tally(checks=1), None


JUDGES: dict[str, Callable[[Cell, Options], Tally]] = {
    "values": judge_values,
    "gradients": judge_gradients,
    "refusals": judge_refusals,
    "side effects": judge_side_effects_column,
    "hidden NaN": partial(judge_hidden, "nan"),
    "isolation": partial(judge_hidden, FROM_SOME),
}
