"""Root causes and weak cells as lines of a terminal."""

from attnverify.report.causes.root_causes import (
    Requires,
    RootCause,
    Symptom,
    Tallied,
    everything,
    named_most,
    symptoms_of,
    triage,
)
from attnverify.verdicts.tally import rung_of

SHORT_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "bool",
}


def format_root_causes(causes: list[RootCause]) -> list[str]:
    """
    Format ``triage: 2 root causes, 31 cells blocked by them``, then each cause with the cells that
    show it and those that wait for it.
    """
    required = [cause for cause in causes if cause.required]
    need_not = [cause for cause in causes if not cause.required]
    found = []
    if required:
        waiting = sum(len(cause.blocked) for cause in required)
        found.append(
            f"triage: {pluralize(len(required), 'root cause')}, {pluralize(waiting, 'cell')} "
            f"blocked by {'it' if len(required) == 1 else 'them'}"
        )
    for number, cause in enumerate(required, 1):
        found.append(f"{number:>3}. {cause.backend}, {cause.rung}: {cause.words}")
        if cause.rung == "adapter":
            found.append(f"       blocks   every cell: {pluralize(len(cause.cells), 'cell')}")
            continue
        found += format_cells(cause, "shown by")
    if need_not:
        cells = (cell for cause in need_not for cell in (*cause.cells, *cause.blocked))
        rung = rung_of({cell["aspect"] for cell in cells})
        found.append(f"not required, and no failure of this run; to require it: --require {rung}")
    for cause in need_not:
        found += [f"     {cause.backend}: {cause.words}", *format_cells(cause, "not met ")]
    return found


def format_cells(cause: RootCause, word: str) -> list[str]:
    """Format the cells that show a cause, and those that wait for it with what they show."""
    waiting = dict[str, list[Tallied]]()
    for tally in cause.blocked:
        waiting.setdefault(own_words(tally, cause), []).append(tally)
    return [f"       {word} {line}" for line in group_by_dtype(cause.cells)] + [
        f"       blocks   {line}{words}"
        for words, tallies in waiting.items()
        for line in group_by_dtype(tallies)
    ]


def own_words(tally: Tallied, cause: RootCause) -> str:
    """Say what a waiting cell shows, where that is another thing than the cause."""
    signs = symptoms_of(tally)
    known = {name for sign in cause.signs for name in sign.diagnoses}
    kinds = {sign.kind for sign in cause.signs}
    other = [s for s in signs if not (s.diagnoses & known or (s.kind in kinds and not s.diagnoses))]
    told = dict.fromkeys(str(cause_words(sign)) for sign in other)
    return f": {'; '.join(told)}" if told else ""


def cause_words(sign: Symptom) -> str:
    """Name the mistake that a sign is taken for, else what it shows."""
    mistake = named_most([sign])
    return mistake.words if mistake else sign.finding.symptom


def format_weak_cells(tallies: list[Tallied]) -> list[str]:
    """
    Format the cells that are not passed for want of evidence: no cause to mend, but no green
    either.
    """
    weak = [tally for tally in tallies if tally["verdict"] == "weak"]
    if not weak:
        return []
    found = [f"weak: {pluralize(len(weak), 'cell')} without a discriminating case"]
    for backend in dict.fromkeys(tally["backend"] for tally in weak):
        own = [tally for tally in weak if tally["backend"] == backend]
        found += [f"       {backend}: {line}" for line in group_by_dtype(own)]
    return found


def pluralize(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("" if count == 1 else "s")


def group_by_dtype(tallies: list[Tallied]) -> list[str]:
    """
    Cells in one line each, those that differ in the dtype alone in one: ``softmax values f32 f16``.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for tally in tallies:
        rows.setdefault((tally["implementation"], tally["aspect"]), []).append(
            SHORT_DTYPES[tally["dtype"]]
        )
    return [
        f"{implementation} {aspect} {' '.join(dtypes)}"
        for (implementation, aspect), dtypes in rows.items()
    ]


def representative_cells(tallies: list[Tallied], requires: Requires = everything) -> list[Tallied]:
    """Find the failed cells whose findings are worth reading: one of each cause."""
    return [cause.shown_by for cause in triage(tallies, requires)]
