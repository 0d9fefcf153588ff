"""
The answer of a red run: the verdict in one sentence, then each mistake in three lines at most: what
it is, in which cases, how sure that is, and where it lies in the user's file.
"""

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnverify.diagnosis.diagnose import NUMERIC
from attnverify.diagnosis.whereabouts.places import without_sizes
from attnverify.failures.finding import Finding
from attnverify.report.causes.root_causes import RootCause, sizes_of, symptoms_of, triage
from attnverify.report.causes.words import pluralize
from attnverify.report.next_steps import failures_option, wrong_cells
from attnverify.report.table import BLOCKED, Row, group_rows, in_full, summary_line
from attnverify.report.terminal_colours import fold, fold_lines, has_copied
from attnverify.report.workflow import find_place
from attnverify.verdicts.tally import JUDGED

if TYPE_CHECKING:
    from attnverify.session import Verification

Tallied = dict[str, Any]

LINES = 3
"""So many at most has a mistake."""
CUT = " ... (-v)"
WORST = "; worst "
"""Before the element of a message that is furthest off."""


def answer(run: "Verification", tallies: list[Tallied], width: int) -> Iterator[str]:
    """Tell the verdict on each backend that is wrong, and its mistakes, as wide as ``width``."""
    required = [cause for cause in triage(tallies, run.is_red) if cause.required]
    for backend in run.backends:
        failed = [tally for tally in wrong_cells(run, tallies) if tally["backend"] == backend.name]
        causes = [cause for cause in required if cause.backend == backend.name]
        if failed and causes:
            told = f"{backend.source} is wrong: {count_explained(failed, causes)}"
            if all(cause.is_unanswered for cause in causes):
                told = f"{backend.source} did not answer: {pluralize(len(failed), 'failed cell')}"
            yield from fold_lines([told], width)
            for number, cause in enumerate(causes, 1):
                yield from describe_mistake(number, cause, backend.source, width)
    if first := next((cause for cause in required if cause.replay), None):
        own = [cause for cause in required if cause.backend == first.backend]
        which = "" if first is own[0] else f" (mistake {own.index(first) + 1})"
        line = first.replay + failures_option(run.options.failures)
        yield fitting(f"   replay{which}: ", line, width)


def fitting(words: str, command: str, width: int) -> str:
    """Write a command to copy in one line, behind the words where they have room."""
    return words + command if len(words + command) <= width else f"   {command}"


def count_explained(failed: list[Tallied], causes: list[RootCause]) -> str:
    """Write ``2 mistakes explain 14 of 14 failed cells``, or how many cells failed."""
    named = [cause for cause in causes if explains(cause)]
    cells = pluralize(len(failed), "failed cell")
    if not named:
        it = "it" if len(failed) == 1 else "them"
        what = it if all(map(is_mended, causes)) else "a part"
        mend = f", but a change of the file mends {what}" if any(map(is_mended, causes)) else ""
        return f"{cells}, and no known mistake explains {it}{mend}"
    explain = "explains" if len(named) == 1 else "explain"
    what = f"{pluralize(len(named), 'mistake')} {explain}"
    if len(named) < len(causes):
        what = f"{len(causes)} mistakes, {len(named)} of them known, which {explain}"
    names = {name for cause in named for sign in cause.signs for name in sign.diagnoses}
    left = [
        cell
        for cell in failed
        if not all(s.diagnoses & names or tells_itself(s.finding) for s in symptoms_of(cell))
    ]
    if len(left) == len(failed):
        return f"{cells}; {what} a part of what fails"
    built = [id(cell) for cause in named for cell in cause.blocked if cell not in cause.cells]
    waiting = sum(id(cell) in built for cell in left)
    them = "it" if len(named) == 1 else "them"
    told = [f"{what} {len(failed) - len(left)} of {cells}"]
    told += [f"{waiting} {fails_or_fail(waiting)} because of {them}"] if waiting else []
    rest = len(left) - waiting
    told += [f"{rest} {is_or_are(rest)} not explained in full"] if waiting and rest else []
    return "; ".join(told)


def fails_or_fail(count: int) -> str:
    return "fails" if count == 1 else "fail"


def is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def explains(cause: RootCause) -> bool:
    """Tell whether a cause is a mistake, and not only what was seen."""
    return any(sign.diagnoses or tells_itself(sign.finding) for sign in cause.signs)


def is_mended(cause: RootCause) -> bool:
    return cause.told[0].mend is not None


def tells_itself(finding: Finding) -> bool:
    """Tell whether a failure needs no cause: an exception, a shape, a race."""
    return finding.kind not in NUMERIC


def describe_mistake(number: int, cause: RootCause, source: str, width: int) -> list[str]:
    """
    Tell a mistake in three lines at most: its parts one below the other, or one behind the other
    without those that have no room; what alone is too long is cut. What is to be copied comes
    below, whole.
    """
    what, seen, place, *more = parts_of(cause, source)
    head = f"{number}. "
    indent = " " * len(head)
    notes = cause.told[0].notes
    whole_notes = [note for note in notes if has_copied(note)]
    mend = [str(cause.told[0].mend)] if is_mended(cause) else []
    copied = [line for note in (*whole_notes, *mend) for line in fold(indent + note, width)]
    plain = [note for note in notes if note not in whole_notes]
    whole = filled([what, seen, *plain, place, *more])
    short = filled([what, seen.partition(" (")[0], place])
    tries = [whole, *(["; ".join(whole[:many])] for many in range(len(whole), 2, -1))]
    tries += [["; ".join(short)]]
    told = ([*in_lines(texts, head, width)] for texts in tries)
    if lines := next((found for found in told if len(found) <= LINES), []):
        return [*lines, *copied]
    then = [*in_lines(["; ".join(short[1:])], indent, width)]
    return [*cut([*in_lines([what], head, width)], LINES - 1, width), *cut(then, 1, width), *copied]


def filled(parts: list[str]) -> list[str]:
    return [part for part in parts if part]


def in_lines(texts: list[str], head: str, width: int) -> Iterator[str]:
    """Wrap each text below the head, which stands before the first."""
    indent = " " * len(head)
    for at, text in enumerate(texts):
        yield from wrap(
            text,
            width,
            initial_indent=indent if at else head,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def cut(lines: list[str], most: int, width: int) -> list[str]:
    """Leave out what so many lines cannot hold, and say so."""
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    if len(last) + len(CUT) > width:
        last = last[: width - len(CUT)].rpartition(" ")[0] or last
    return [*lines[: most - 1], last + CUT]


def parts_of(cause: RootCause, source: str) -> list[str]:
    """
    Say what the mistake is, in which cases it was seen, where its function is, and the numbers.
    """
    finding = cause.told[0]
    shown = cause.shown_by
    message = next(iter(finding.message.splitlines()), "").strip()
    kind = "" if message.startswith(finding.kind) else f"{finding.kind}: "
    numbers = f"{kind}{message}" if message else finding.headline or finding.kind
    joint = finding.cause is not None and finding.cause.together
    what = cause.brief if joint else str(finding.cause) if finding.cause else numbers
    held = f" ({finding.held})" if finding.held else ""
    only = f"only when {' and '.join(finding.condition)}{held}" if finding.condition else ""
    seen = ", ".join(part for part in (finding.share, only) if part)
    path, line = find_place(source, shown)
    place = f" ({path}:{line})" if path and line > 1 else ""
    cell = f"in {shown['implementation']}{place}, {shown['aspect']} {shown['dtype']}"
    more = of_replayed(finding, numbers) if finding.cause else ""
    if finding.cause and not finding.cause.explanations and WORST in numbers:
        # where it was seen is another, larger case than the one whose numbers are told
        seen_first = without_sizes(what.partition(" (seen with")[0])
        what, more = f"{seen_first}; {more}", ""
    return [what, seen, cell, more]


def of_replayed(finding: Finding, numbers: str) -> str:
    """Write ``B=1 N=2: output at (0, 0): got 1, expected 2``: of the case that replay shows."""
    letters = sizes_of(finding)
    named, _, worst = numbers.partition(WORST)
    output = "".join(named.split(": ")[-2:-1])
    return f"{letters}: {output} {worst.partition(' (rms')[0]}" if letters and worst else numbers


def rows_in_words(run: "Verification", tallies: list[Tallied]) -> Iterator[str]:
    """Write the cells of each implementation in one sentence."""
    waiting = {id(cell) for cause in triage(tallies, run.is_red) for cell in cause.blocked}
    for row in group_rows(tallies, run.is_red, waiting):
        yield f"{row.operation} of {row.label}, {' '.join(row.dtypes)}: {in_words(row)}"


def in_words(row: Row) -> str:
    """Write ``values, gradients passed; refusals of invalid calls not met``."""
    words: dict[str, list[str]] = {}
    for aspect, word in row.verdicts.items():
        told = UNTIL if word == BLOCKED else word
        words.setdefault(told, []).append(aspect if word == "passed" else in_full(aspect))
    return "; ".join(f"{', '.join(aspects)} {word}" for word, aspects in words.items())


UNTIL = "not judged until that is mended"
"""Of what shows nothing of its own while another fails."""


def is_right(run: "Verification", tallies: list[Tallied]) -> bool:
    """Tell whether every backend was judged, and nothing that must hold failed."""
    judged = {tally["backend"] for tally in tallies if tally["verdict"] in JUDGED}
    usable = all(x.name in judged and not (x.broken or x.missing) for x in run.backends)
    return usable and not any(map(run.is_red, tallies))


def right_in_words(run: "Verification", tallies: list[Tallied]) -> Iterator[str]:
    """
    Write the cells of a run in which all is right, those of many operations that say the same in
    one sentence, and count them.
    """
    alike: dict[str, list[Row]] = {}
    for row in (rows := group_rows(tallies, run.is_red)):
        one = f"{row.label}, {' '.join(row.dtypes)}: {in_words(row)}"
        alike.setdefault(one if len(rows) > ROWS else f"{row.operation} {one}", []).append(row)
    for told, same in alike.items():
        what = same[0].operation if len(same) == 1 else f"{len(same)} operations"
        yield f"{what} of {told.removeprefix(f'{what} ')}"
    yield summary_line(tallies, run.is_red)


ROWS = 6
"""So many rows have a sentence each."""
