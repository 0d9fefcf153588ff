"""What a run says at its head and at its end: who was judged on what, and the table of verdicts."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnverify.catalogue.traits import ASPECTS
from attnverify.report.json_report import known_kinds, package_versions
from attnverify.report.root_causes import SHORT_DTYPES

if TYPE_CHECKING:
    from attnverify.session import Verification


def header(run: "Verification") -> list[str]:
    """Backends with their device and library versions, profile and seed."""
    lines = [
        f"attnverify: profile {run.options.profile} ({run.options.cases} cases), seed "
        f"{run.options.seed}, {package_versions()}"
    ]
    for backend in run.backends:
        state = (
            f"broken ({backend.broken})"
            if backend.broken
            else f"missing ({backend.missing})"
            if backend.missing
            else ""
        )
        found = (
            f"{len(backend.implementations)} implementations on {backend.device}, "
            f"{backend.versions}"
        )
        lines.append(f"  {backend.source}: {state or found}")
        lines += [f"    note: {note}" for note in backend.notes]
    return lines


@dataclass
class Row:
    """One line of the table: an implementation in all dtypes that share its verdicts."""

    operation: str
    label: str
    verdicts: dict[str, str]
    dtypes: list[str] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)
    cases: int = 0
    strong: int = 0
    checks: int = 0
    unsupported: int = 0
    outside: int = 0

    def __str__(self) -> str:
        words = "".join(f"{self.verdicts.get(aspect, '-'):<13}" for aspect in ASPECTS)
        left_out = (
            f" ({self.unsupported + self.outside})" if self.unsupported + self.outside else ""
        )
        counts = f"{self.cases} {self.strong} {self.checks}{left_out}"
        dtypes, budgets = " ".join(self.dtypes), " ".join(self.budgets)
        return f"{self.label:<31}{dtypes:<18}{words}{counts:<33}{budgets}"

    def add(self, dtype: str, tallies: list[dict[str, Any]]) -> None:
        """One more dtype with its tallies, one a column."""
        slack = tallies[0]["slack"]
        self.dtypes.append(SHORT_DTYPES[dtype])
        self.budgets.append(
            f"{max(tally['budget'] for tally in tallies):.2g}x"
            + (f"(slack {slack:g})" if slack > 1 else "")
        )
        for count in ("cases", "strong", "checks", "unsupported", "outside"):
            setattr(self, count, getattr(self, count) + sum(tally[count] for tally in tallies))


def table(tallies: list[dict[str, Any]]) -> list[str]:
    """
    One line for each operation and implementation; dtypes of the same verdicts share it, the worst
    budget is given for each.

    A budget is the worst error as a share of the derived bound. Cases are outputs held to the law,
    and the strong ones are those that no cheap impostor passes; checks are wrong calls, side
    effects, calls in a row, relations and long sequences. Left out are calls that the
    implementation said it does not support, and cases without finite bounds (`unsupported` and
    `outside` in the JSON report).
    """
    titles = (
        "".join(f"{aspect:<13}" for aspect in ASPECTS)
        + f"{'cases strong checks (left out)':<33}worst budget used"
    )
    lines, previous = [f"{'operation':<31}{'implementation':<31}{'dtypes':<18}{titles}"], ""
    for row in group_rows(tallies):
        lines.append(f"{row.operation if row.operation != previous else '':<31}{row}")
        previous = row.operation
    return [*lines, "", summary_line(tallies)]


def group_rows(tallies: list[dict[str, Any]]) -> list[Row]:
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
            tally["aspect"]: KNOWN.get(tally["kind"], WORDS[tally["verdict"]]) for tally in aspects
        }
        rows.setdefault(
            (operation, label, *sorted(verdicts.items())), Row(operation, label, verdicts)
        ).add(dtype, aspects)
    return list(rows.values())


WORDS = {
    "passed": "passed",
    "failed": "FAILED",
    "known failure": "known",
    "unsupported": "unsupported",
}
KNOWN = {"limitation": "limitation", "nonconformance": "nonconform"}
"""Known failures whose kind is told; the others are *known*."""


def catalogue_index(operation: str) -> int:
    from attnverify.catalogue.operation import CATALOGUE

    return list(CATALOGUE).index(operation)


def summary_line(tallies: list[dict[str, Any]]) -> str:
    """
    ``412 cells: 400 passed, 2 failed, 8 known failure (3 limitation), 2 unsupported; 51234 cases,
    49876 strong; 9120 checks``
    """
    count = {word: sum(tally["verdict"] == word for tally in tallies) for word in WORDS}
    kinds = ", ".join(
        f"{number} {kind}" for kind, number in known_kinds(tallies).items() if kind in KNOWN
    )
    words = ", ".join(
        f"{number} {word}" + (f" ({kinds})" if kinds and word == "known failure" else "")
        for word, number in count.items()
        if number
    )
    cases, strong, checks = (
        sum(tally[key] for tally in tallies) for key in ("cases", "strong", "checks")
    )
    return (
        f"{len(tallies)} cells: {words or 'nothing was judged'}; {cases} cases, {strong} "
        f"strong; {checks} checks"
    )
