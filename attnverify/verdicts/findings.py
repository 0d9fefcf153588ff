"""
Writing a failure down: shrink it, diagnose it, record it, say where else it shows.
"""

from typing import Any

from attnverify.backends.loader import Implementation
from attnverify.checks.call_sequences import passes_when_reloaded
from attnverify.diagnosis.diagnose import diagnose
from attnverify.diagnosis.failing_region import RegionOffer
from attnverify.failures.evidence import (
    failure_evidence,
    most_informative,
    picture_of_error,
    visible_extent,
)
from attnverify.failures.record import FailureRecord
from attnverify.failures.store import save
from attnverify.inputs.fixed_cases import fixed_cases
from attnverify.inputs.recipe import Recipe
from attnverify.inputs.sampling import draw_recipes, shrink
from attnverify.judge.case import judge
from attnverify.judge.errors import Disagreement, Unsupported
from attnverify.verdicts.cell import Cell
from attnverify.verdicts.tally import CellResult, Options


def attach_failing_regions(found: dict[str, RegionOffer], tally: CellResult) -> None:
    """Add the regions of the failures that were told last to what was told of them."""
    for index, (what, offer) in enumerate(found.items(), len(tally.findings) - len(found)):
        line = offer.line(tally.implementation, tally.aspect)
        tally.findings[index] += f"\n  known failures: {line}  {offer.evidence}"
        tally.symptoms.append(f"{what} when {offer.when}" if offer.when else what)
        tally.offers += [line] if line not in tally.offers else []


MAX_KINDS_REPORTED = 3


def report_failure(
    cell: Cell,
    implementation: Implementation,
    what: str,
    failing: list[Recipe],
    options: Options,
    tally: CellResult,
    kind: str,
) -> None:
    """Write down the smallest recipe that fails in this way, with its replay."""
    share = f"{len(failing)} of {tally.cases} cases: {what}"

    def unknown(recipe: Recipe) -> bool:
        known = any(region.line.covers(recipe, cell.dtype) for region in options.regions)
        return not known and reproduce(implementation, recipe, cell.dtype, what) is not None

    smallest = shrink(failing[0], kind, unknown, options.seed)
    for recipe in dict.fromkeys((smallest, *failing)):
        error = reproduce(implementation, recipe, cell.dtype, what)
        if error is not None:
            state = (
                DEPENDS_ON_EARLIER_CALLS
                if passes_when_reloaded(implementation, recipe, cell.dtype)
                else ""
            )
            cause = (
                ""
                if state
                else diagnose_and_note(
                    implementation,
                    [recipe, *failing[:RECIPES_PER_DIAGNOSIS]],
                    cell.dtype,
                    tally,
                    options,
                    kind,
                )
            )
            failure = FailureRecord.of(implementation, recipe, cell.dtype, cell.aspect)
            line = record_failure(failure, implementation, options, tally, error, cause)
            tally.exhibits[failure.hash] |= unshrunk_evidence(
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


DEPENDS_ON_EARLIER_CALLS = (
    "\n  a freshly loaded backend gives the right answer to this call: the result depends on "
    "the calls before it"
)


def unshrunk_evidence(
    implementation: Implementation, failing: list[Recipe], smallest: Recipe, dtype: str, what: str
) -> dict[str, Any]:
    """
    A failing case as it was drawn, where its picture has more to show than that of the smallest.
    """
    recipe = most_informative(failing)
    error = (
        reproduce(implementation, recipe, dtype, what)
        if visible_extent(recipe) > visible_extent(smallest)
        else None
    )
    shown = picture_of_error(implementation.operation.name, error)
    return {"drawn": {"recipe": str(recipe)} | shown} if shown else {}


RECIPES_PER_DIAGNOSIS = 6
"""
As many failing recipes are diagnosed beside the smallest, and as many of the first draws, which may
pass.
"""


def diagnose_and_note(
    implementation: Implementation,
    failing: list[Recipe],
    dtype: str,
    tally: CellResult,
    options: Options,
    kind: str,
) -> str:
    """The likely cause of a failure, which is noted; nothing where a diagnosis finds none."""
    operation = implementation.operation.name
    others = (
        *fixed_cases(operation)[:RECIPES_PER_DIAGNOSIS],
        *draw_recipes(operation, kind, RECIPES_PER_DIAGNOSIS, options.seed),
    )
    cause = diagnose(implementation, failing, dtype, others)
    if cause is None:
        return ""
    if cause not in tally.causes:
        tally.causes.append(cause)
    return cause


def record_failure(
    failure: FailureRecord,
    implementation: Implementation,
    options: Options,
    tally: CellResult,
    error: Disagreement,
    cause: str = "",
) -> str:
    """Record a failure and what a report shows of it; the line that says how it is seen again."""
    save(failure, options.failures, implementation)
    tally.exhibits[failure.hash] = failure_evidence(failure, error, cause)
    return f"\n  replay: {failure.replay_line}"


def reproduce(
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
