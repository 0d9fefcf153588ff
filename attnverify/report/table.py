"""What a run says at its head and at its end: who was judged on what, and the table of verdicts."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnverify.backends.implementation import Backend
from attnverify.backends.loader import notes_in
from attnverify.catalogue.operation import CATALOGUE
from attnverify.catalogue.traits import ASPECTS
from attnverify.inputs.expand import hides_numbers
from attnverify.inputs.given import (
    describe_file,
    notes_of_file,
    read_arrays,
    speaks_of_gradients,
)
from attnverify.judge.comparison import format_budget
from attnverify.machine import describe_machine
from attnverify.options import ANSWER
from attnverify.report.causes.root_causes import Requires, everything
from attnverify.report.causes.words import SHORT_DTYPES
from attnverify.report.json_report import known_kinds, package_versions
from attnverify.report.terminal_colours import colourize
from attnverify.verdicts.tally import NOT_MET

if TYPE_CHECKING:
    from attnverify.session import Verification


def header(run: "Verification") -> list[str]:
    """Profile and seed, the machine, backends with their device and library versions."""
    o = run.options
    drawn = f"profile {o.profile} ({o.cases} cases a cell at least), seed {o.seed}"
    judged = "your own arrays, one call" if run.options.inputs else drawn
    lines = [f"attnverify: {judged}, {package_versions()}"]
    lines += [f"  {name}: {words}" for name, words in describe_machine().items()]
    lines += describe_given(run)
    for backend in run.backends:
        state = "broken" if backend.broken else "missing" if backend.missing else ""
        found = f"{count_implementations(backend)} on {backend.device}, {backend.versions}"
        lines.append(f"  {backend.source}: {state or found}")
        lines += [f"    note: {note}" for note in notes_in(backend, run.dtypes)]
    return lines


def describe_given(run: "Verification") -> list[str]:
    """Say what the arrays of --inputs are, where there are any, and what to know of them."""
    if not (path := run.options.inputs):
        return []
    told = describe_file(CATALOGUE[run.operations[0]], path)
    unasked = speaks_of_gradients(read_arrays(path)) or f"{run.operations[0]}_grad" not in CATALOGUE
    apart = hides_numbers(CATALOGUE[run.operations[0]], path)
    notes = [*notes_of_file(path), *[JUDGED_APART] * apart, *[NO_D_OUTPUT] * (not unasked)]
    return [f"  {path}: {told}", *(f"    note: {note}" for note in notes)]


JUDGED_APART = "what no row sees is judged as hidden NaN, and with 0 in its place by all else"
NO_D_OUTPUT = "no gradient is judged: it holds no d_output, what arrives at the output"


def in_full(aspect: str) -> str:
    """Name a column that is not met, with what it asks for where the name does not say it."""
    return IN_FULL.get(aspect, aspect)


IN_FULL = {
    "refusals": "refusals of invalid calls",
    "hidden NaN": "hidden NaN (no row sees it)",
    "isolation": "isolation (some rows see the NaN)",
}

MEANINGS = {
    "discriminating": "cases in which no trivial answer, as zeros or a mean, would pass",
    "left out": "calls that the file does not take, or of which nothing can be said",
    "unsupported": "the file says, or its calls have shown, that it does not do it",
    "not met": "it fails, and is not asked for",
    "hidden NaN": "what no row sees, NaN included, reaches no output and no gradient",
    "isolation": "what some rows see, NaN included, does not reach the others",
}
"""What words of the table mean."""


def describe_words(tallies: list[dict[str, Any]], requires: Requires) -> list[str]:
    """Say what the words mean that stand in the table of these cells, a line each."""
    found = {word for tally in tallies for word in (tally["aspect"], word_of(tally, requires))}
    found |= {"discriminating"} if any(tally["cases"] for tally in tallies) else set()
    found |= {"left out"} if any(x["unsupported"] + x["outside"] for x in tallies) else set()
    return [f"  {word}: {meaning}" for word, meaning in MEANINGS.items() if word in found]


def count_implementations(backend: Backend) -> str:
    """Write ``1 implementation and 1 gradient``: autograd's counts as one of its own."""
    gradients = sum(one.operation.is_gradient for one in backend.implementations)
    forward = number_of(len(backend.implementations) - gradients, "implementation")
    return forward + (f" and {number_of(gradients, 'gradient')}" if gradients else "")


NO_LIMIT = 10_000
"""As wide as a line may be where nobody looks at a terminal."""

COUNTS = ("cases", "discriminating", "checks", "left out")
BUDGET = "worst budget used"


@dataclass
class Row:
    """One line of the table: an implementation in all dtypes that share its verdicts."""

    operation: str
    label: str
    verdicts: dict[str, str]
    dtypes: list[str] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def add(self, dtype: str, tallies: list[dict[str, Any]]) -> None:
        """Add one more dtype with its tallies, one a column; the budget is that of its answer."""
        slack = tallies[0]["slack"]
        self.dtypes.append(SHORT_DTYPES[dtype])
        answers = [tally for tally in tallies if tally["aspect"] in ANSWER] or tallies
        shares = [tally["budget"] for tally in answers if has_budget(tally)]
        told = format_budget(max(shares)) if shares else "-"
        self.budgets.append(f"{told}(slack {slack:g})" if shares and slack > 1 else told)
        for tally in tallies:
            self.counts["cases"] += tally["cases"]
            self.counts["discriminating"] += tally["strong"]
            self.counts["checks"] += tally["checks"]
            self.counts["left out"] += tally["unsupported"] + tally["outside"]

    @property
    def title(self) -> str:
        """What stands above the verdicts where one line has no room for all."""
        pairs = zip(self.dtypes, self.budgets, strict=True)
        return f"{self.operation} of {self.label}: {', '.join(f'{d} {b}' for d, b in pairs)}"

    def in_columns(self, names: Sequence[str]) -> list[str]:
        """Give what stands in the columns of these names, ``-`` for nothing."""
        found = self.verdicts | {
            name: str(number) for name, number in self.counts.items() if number
        }
        found |= {"operation": self.operation, "implementation": self.label}
        found |= {"dtypes": " ".join(self.dtypes), BUDGET: " ".join(self.budgets)}
        return [found.get(name, "-") for name in names]


def has_budget(tally: dict[str, Any]) -> bool:
    """Tell whether a number was held to its bound: not where every call raised."""
    if tally["verdict"] == "failed" and not (tally["budget"] or tally["strong"]):
        return False
    return bool(tally["cases"] or tally["known"])


def format_table(
    tallies: list[dict[str, Any]],
    width: int | None = None,
    colour: bool = False,
    requires: Requires = everything,
) -> list[str]:
    """
    Write one line for each operation and implementation; dtypes of the same verdicts share it, the
    worst budget is given for each. A column in which nothing stands is left out.

    A budget is the worst error as a share of the derived bound. Cases are outputs held to the
    specification, and the discriminating ones are those that no trivial answer passes; checks are
    invalid calls, side effects, calls in a row, relations and long sequences. Left out are calls
    that the implementation said it does not support, and cases without finite bounds (`unsupported`
    and `outside` in the JSON report).

    ``width`` is that of a terminal: where a line would be longer, each row has two. Without it
    every row has one.
    """
    rows, summary = group_rows(tallies, requires), summary_line(tallies, requires)
    if not rows:
        return [summary]
    names = [
        name for name in (*ASPECTS, *COUNTS) if any(row.in_columns([name]) != ["-"] for row in rows)
    ]
    columns = ["operation", "implementation", "dtypes", *names, BUDGET]
    lines = _render_lines(
        columns, _without_repeats([row.in_columns(columns) for row in rows]), colour
    )
    if width is None or all(Text.from_ansi(line).cell_len <= width for line in lines):
        return [*lines, "", summary]
    return [*_in_two_lines(rows, names, width, colour), "", *wrap(summary, width)]


def _without_repeats(cells: list[list[str]]) -> list[list[str]]:
    """Name an operation in its first line alone."""
    return [
        ["" if before and before[0] == first else first, *rest]
        for (first, *rest), before in zip(cells, [None, *cells], strict=False)
    ]


def _in_two_lines(rows: list[Row], names: list[str], width: int, colour: bool) -> list[str]:
    """Put the operation, the implementation and its budgets above the verdicts and counts."""
    indent = "  "
    if sum(len(word) + 2 for word in widest_words(rows, names)) > width - len(indent):
        return [colourize(line, colour) for line in _in_words(rows, names, width)]
    heads = [name.replace(" ", "\n").replace("discrimi", "discrimi-\n") for name in names]
    cells = [row.in_columns(names) for row in rows]
    lines = _render_lines(heads, cells, colour, width - len(indent))
    found = wrap("operation of implementation: dtypes with the worst budget used", width)
    found += [indent + line for line in lines[: -len(rows)]]
    for row, line in zip(rows, lines[-len(rows) :], strict=True):
        found += [*wrap(row.title, width, subsequent_indent=2 * indent), indent + line]
    return found


def widest_words(rows: list[Row], names: list[str]) -> list[str]:
    """Find the widest word of each column, heads included, which may be broken between words."""
    heads = [max(name.replace("discriminating", "discrimi-").split(), key=len) for name in names]
    columns = zip(heads, *(row.in_columns(names) for row in rows), strict=True)
    return [max(words, key=len) for words in columns]


def _in_words(rows: list[Row], names: list[str], width: int) -> list[str]:
    """Write each row as a sentence, where its columns have no room."""
    found = list[str]()
    for row in rows:
        told = dict(zip(names, row.in_columns(names), strict=True))
        words = [f"{name} {word}" for name, word in told.items() if word != "-"]
        found += wrap(row.title, width, subsequent_indent="    ")
        found += wrap("; ".join(words), width, initial_indent="  ", subsequent_indent="  ")
    return found


def _render_lines(
    heads: list[str], cells: list[list[str]], colour: bool, width: int = NO_LIMIT
) -> list[str]:
    """Write the lines of a table: its heads, and each row in one line; coloured as verdicts are."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for head in heads:
        is_count = head.replace("-\n", "").replace("\n", " ") in COUNTS
        # where there is no room for both, a verdict is cut and a number is not
        table.add_column(
            head,
            justify="right" if is_count else "left",
            no_wrap=is_count,
            overflow="ellipsis",
        )
    for row in cells:
        table.add_row(*(Text.from_ansi(colourize(cell, colour)) for cell in row))
    text = StringIO()
    console = Console(
        file=text,
        width=width,
        color_system="standard" if colour else None,
        force_terminal=colour,
    )
    console.print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def group_rows(
    tallies: list[dict[str, Any]], requires: Requires, waiting: Collection[int] = ()
) -> list[Row]:
    """Collect the rows; of what need not hold, those ``waiting`` for another are blocked by it."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for tally in tallies:
        label = f"{tally['backend']}:{tally['how']}" if tally["how"] else tally["backend"]
        cells[tally["operation"], label, tally["dtype"]].append(tally)
    rows: dict[tuple[Any, ...], Row] = {}
    for (operation, label, dtype), aspects in sorted(
        cells.items(),
        key=lambda cell: (
            catalogue_index(cell[0][0]),
            cell[0][1],
            list(SHORT_DTYPES).index(cell[0][2]),
        ),
    ):
        verdicts = {
            tally["aspect"]: BLOCKED
            if id(tally) in waiting and word_of(tally, requires) == NOT_MET
            else KNOWN.get(tally["kind"], word_of(tally, requires))
            for tally in aspects
        }
        rows.setdefault(
            (operation, label, *sorted(verdicts.items())), Row(operation, label, verdicts)
        ).add(dtype, aspects)
    return list(rows.values())


WORDS = {
    "passed": "passed",
    "failed": "FAILED",
    "weak": "WEAK",
    "known failure": "known",
    "unsupported": "unsupported",
}


def word_of(tally: dict[str, Any], requires: Requires) -> str:
    """The verdict on a cell in a word."""
    need_not = tally["verdict"] == "failed" and not requires(tally)
    return NOT_MET if need_not else WORDS[tally["verdict"]]


BLOCKED = "blocked"
"""Of what need not hold: a failure that shows nothing of its own while another is not mended."""

KNOWN = {"limitation": "limitation", "nonconformance": "nonconform"}
"""Known failures whose kind is told; the others are *known*."""


def catalogue_index(operation: str) -> int:
    from attnverify.catalogue.operation import CATALOGUE

    return list(CATALOGUE).index(operation)


def summary_line(tallies: list[dict[str, Any]], requires: Requires = everything) -> str:
    """
    Give ``412 cells: 400 passed, 2 failed, 8 known failure (3 limitation), 2 unsupported; 51234
    cases, 49876 discriminating; 9120 checks``
    """
    need_not = sum(word_of(tally, requires) == NOT_MET for tally in tallies)
    count = {word: sum(tally["verdict"] == word for tally in tallies) for word in WORDS}
    count |= {"failed": count["failed"] - need_not, f"{NOT_MET} (not required)": need_not}
    kinds = ", ".join(
        f"{number} {kind}" for kind, number in known_kinds(tallies).items() if kind in KNOWN
    )
    words = ", ".join(
        f"{number} {word}" + (f" ({kinds})" if kinds and word == "known failure" else "")
        for word, number in count.items()
        if number
    )
    cases, discriminating, checks = (
        sum(tally[key] for tally in tallies) for key in ("cases", "strong", "checks")
    )
    return (
        f"{number_of(len(tallies), 'cell')}: {words or 'nothing was judged'}; "
        f"{number_of(cases, 'case')}, {discriminating} discriminating; "
        f"{number_of(checks, 'check')}"
    )


def number_of(count: int, noun: str) -> str:
    """Write ``1 cell``, ``2 cells``"""
    return f"{count} {noun}{'' if count == 1 else 's'}"
