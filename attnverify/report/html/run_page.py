"""The report of a run as a page, made from what ``--report-json`` writes and from nothing else."""

import json
from collections import defaultdict
from itertools import count
from typing import Any

from attnverify.report.html.document import Section, header_cells, page, paragraphs, table
from attnverify.report.html.elements import Markup, element, join
from attnverify.report.html.failures import failures, name_of, root_causes

ASPECTS = ("values", "gradients", "refusals", "side effects", "hidden NaN")
DTYPES = ("float64", "float32", "float16", "bfloat16", "bool")
VERDICTS = ("failed", "known failure", "unsupported", "passed")
MARKS = {
    "failed": "\N{BALLOT X}",
    "known failure": "!",
    "unsupported": "\N{EN DASH}",
    "passed": "\N{CHECK MARK}",
}

Report = dict[str, Any]
Tally = dict[str, Any]


def report_page(report: Report) -> str:
    """The whole page of a report."""
    tallies = report["tallies"]
    failed = [tally for tally in tallies if tally["verdict"] == "failed"]
    failed = ordered(report, failed)
    anchors = {id(tally): f"failure-{number}" for number, tally in enumerate(failed, 1)}
    sections = [
        Section("causes", "Root causes", root_causes(report, failed, anchors)) if failed else None,
        Section("verdicts", "Verdicts", verdicts(tallies, anchors)),
        Section("failures", "Failures", failures(report, failed, anchors)) if failed else None,
        Section("known", "Known failures", reasons(tallies, "known failure"))
        if has(tallies, "known failure")
        else None,
        Section("unsupported", "Unsupported", reasons(tallies, "unsupported"))
        if has(tallies, "unsupported")
        else None,
        Section("environment", "Environment", environment(report)),
        Section("reading", "How to read this page", READING),
    ]
    return page(
        title_of(report, failed), lead(report), [section for section in sections if section]
    )


def has(tallies: list[Tally], verdict: str) -> bool:
    return any(tally["verdict"] == verdict for tally in tallies)


def ordered(report: Report, failed: list[Tally]) -> list[Tally]:
    """The failed cells, those that show a root cause first, in the order of the causes."""
    shown = [
        (cause["backend"], name)
        for cause in report.get("root_causes", [])
        for name in cause["cells"]
    ]
    place = {pair: number for number, pair in reversed(list(enumerate(shown)))}
    return sorted(
        failed, key=lambda tally: place.get((tally["backend"], name_of(tally)), len(shown))
    )


def troubles(report: Report) -> list[str]:
    """Backends that could not be judged, one line each."""
    return [
        f"{b['source']}: {word} ({b[word]})"
        for b in report.get("backends", [])
        for word in ("broken", "missing")
        if b.get(word)
    ]


def title_of(report: Report, failed: list[Tally]) -> str:
    total = len(report["tallies"])
    verdict = (
        f"{len(failed)} of {total} cells failed"
        if failed
        else f"no failure in {total} cells"
        if total
        else "nothing was judged"
    )
    return f"Verification: {verdict}"


def lead(report: Report) -> Markup:
    """The counts of the verdicts and what was run."""
    tallies, options = report["tallies"], report.get("options", {})
    number = {
        verdict: sum(tally["verdict"] == verdict for tally in tallies) for verdict in VERDICTS
    }
    shown = [
        element("li", badge(verdict), f" {found}", class_="count")
        for verdict, found in number.items()
        if found
    ]
    cases, strong, checks = (
        sum(tally[name] for tally in tallies) for name in ("cases", "strong", "checks")
    )
    run = (
        f"Profile {options.get('profile')}, seed {options.get('seed')}: {cases} cases, {strong} "
        f"of them strong, and {checks} checks."
    )
    return join(
        [
            element("ul", shown, class_="counts"),
            paragraphs(run),
            [element("p", line, class_="trouble") for line in troubles(report)],
        ]
    )


def badge(verdict: str, words: str = "") -> Markup:
    """A verdict in its colour, by its mark and in its word."""
    mark = element("span", MARKS[verdict], aria_hidden="true")
    return element(
        "span", mark, " ", words or verdict, class_=f"verdict {verdict.partition(' ')[0]}"
    )


# The matrix


def verdicts(tallies: list[Tally], anchors: dict[int, str]) -> Markup:
    """
    One row for each operation, implementation and dtype, one column for each aspect; backends of
    one name have a row each.

    The controls need a script, and are hidden where there is none.
    """
    rows: dict[tuple[Any, ...], dict[str, Tally]] = defaultdict(dict)
    for tally in tallies:
        label = f"{tally['backend']}:{tally['how']}" if tally["how"] else tally["backend"]
        namesakes = (rows[tally["operation"], label, tally["dtype"], number] for number in count())
        next(row for row in namesakes if tally["aspect"] not in row)[tally["aspect"]] = tally
    head = header_cells("Operation", "Implementation", "Dtype", *ASPECTS, "Worst budget", "Cases")
    return join(
        [
            controls(),
            table(
                "Verdict of each cell, and the worst share of the bound used",
                head,
                matrix(rows, anchors),
                "matrix",
            ),
        ]
    )


def matrix(rows: dict[tuple[Any, ...], dict[str, Tally]], anchors: dict[int, str]) -> list[Markup]:
    found = []
    for (operation, label, dtype, _), cells in rows.items():
        budget = max(float(tally["budget"]) for tally in cells.values())
        columns = [verdict_cell(cells.get(aspect), anchors) for aspect in ASPECTS]
        cases = sum(tally["cases"] for tally in cells.values())
        found.append(
            element(
                "tr",
                element("th", operation, scope="row"),
                element("td", label),
                element("td", dtype, data_sort=DTYPES.index(dtype) if dtype in DTYPES else None),
                columns,
                element("td", f"{budget:.2g}x", class_="number", data_sort=f"{budget:g}"),
                element("td", cases, class_="number"),
                data_verdicts=" ".join(
                    sorted({tally["verdict"].partition(" ")[0] for tally in cells.values()})
                ),
            )
        )
    return found


def verdict_cell(tally: Tally | None, anchors: dict[int, str]) -> Markup:
    """One verdict; a failure leads to its place below."""
    if tally is None:
        return element(
            "td",
            element("span", "-", aria_label="does not apply", role="img"),
            data_sort=len(VERDICTS),
        )
    words = badge(
        tally["verdict"],
        {"known failure": tally.get("kind") or "known", "failed": "FAILED"}.get(
            tally["verdict"], ""
        ),
    )
    anchor = anchors.get(id(tally))
    shown = element("a", words, href=f"#{anchor}") if anchor else words
    red = "red" if tally["verdict"] == "failed" else None
    return element(
        "td",
        shown,
        class_=red,
        data_sort=VERDICTS.index(tally["verdict"]),
        title=tally["reason"][:300] or None,
    )


def controls() -> Markup:
    choices = [
        ("", "every verdict"),
        ("failed", "failed"),
        ("known", "known failure"),
        ("unsupported", "unsupported"),
        ("passed", "passed"),
    ]
    return element(
        "form",
        element(
            "label",
            "Operation, implementation or dtype ",
            element("input", type="search", id="text"),
        ),
        element(
            "label",
            "Verdict ",
            element(
                "select",
                [element("option", words, value=value) for value, words in choices],
                id="verdict",
            ),
        ),
        element("output", "", id="found"),
        class_="controls",
        hidden=True,
        aria_label="Filter the verdicts",
    )


# What stands below


def reasons(tallies: list[Tally], verdict: str) -> Markup:
    """Every reason once, with the cells of which it is told."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for tally in tallies:
        if tally["verdict"] == verdict:
            found[tally["backend"], tally.get("kind", ""), tally["reason"]].append(name_of(tally))
    rows = [
        element(
            "tr",
            element("td", backend),
            element("td", kind or "-"),
            element("td", reason),
            element("td", cells_of(cells)),
        )
        for (backend, kind, reason), cells in found.items()
    ]
    return table(
        f"Why: {verdict}",
        header_cells("Backend", "Kind", "Reason", "Cells"),
        rows,
        f"{verdict.partition(' ')[0]}-reasons",
    )


def cells_of(names: list[str]) -> Markup:
    """A few names, or their number with the names behind it."""
    if len(names) <= 4:
        return join([element("div", name) for name in names])
    return element(
        "details",
        element("summary", f"{len(names)} cells"),
        [element("div", name) for name in names],
    )


def environment(report: Report) -> Markup:
    """The backends with what they run on, and the machine."""
    rows = [
        element(
            "tr",
            element("th", b["source"], scope="row"),
            *(
                element("td", words)
                for words in (backend_state(b), b.get("device", ""), b.get("versions", ""))
            ),
        )
        for b in report.get("backends", [])
    ]
    facts = {
        "installed": report.get("installed", ""),
        **report.get("environment", {}),
        **report.get("options", {}),
    }
    pairs = [
        join([element("dt", name.replace("_", " ")), element("dd", plain(value))])
        for name, value in facts.items()
    ]
    notes = [
        f"{b['source']}: {note}" for b in report.get("backends", []) for note in b.get("notes", [])
    ]
    backends = table(
        "Backends", header_cells("Backend", "State", "Device", "Versions"), rows, "backends"
    )
    return join(
        [
            backends,
            element("ul", [element("li", note) for note in notes]) if notes else None,
            element("dl", pairs),
        ]
    )


def backend_state(backend: dict[str, Any]) -> str:
    return next(
        (f"{word} ({backend[word]})" for word in ("broken", "missing") if backend.get(word)),
        "judged",
    )


def plain(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else json.dumps(value)
    )


READING = paragraphs(
    "A cell is one operation by one implementation in one dtype, seen from one side: values, "
    "gradients, refusals (what the law refuses "
    "with ValueError must be refused), side effects, and NaN in hidden slots.",
    "The budget is the worst error as a share of the bound that is derived for the inputs, the "
    "dtype and the arithmetic that the backend "
    "declares: up to 1x is right. A case that a cheap impostor would pass too is not strong.",
    "A known failure is one that its author has named with a reason; unsupported is what the "
    "implementation itself refuses to do. "
    "Neither is a pass.",
    "The maps show the slice of the output in which the worst element lies, or a window of it; "
    "that element is framed. With the keyboard, "
    "the arrow keys walk over a map, and the numbers are read out below it.",
)
