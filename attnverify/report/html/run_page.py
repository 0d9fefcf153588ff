"""The report of a run as a page, made from what ``--report-json`` writes and from nothing else."""

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from typing import Any

from markupsafe import Markup

from attnverify.catalogue.traits import ASPECTS, DTYPES
from attnverify.judge.comparison import format_budget
from attnverify.report.html.document import Section, render, render_page
from attnverify.report.html.failures import (
    name_of,
    render_failures,
    render_root_causes,
    render_specification,
)
from attnverify.report.html.origin import commits_of_backends, describe_run
from attnverify.verdicts.tally import NOT_MET, describe_not_required, is_unexpected_pass

VERDICTS = ("failed", "weak", "known failure", "unsupported", "passed")

Report = dict[str, Any]
Tally = dict[str, Any]


def report_page(report: Report, programs: Mapping[str, str] | None = None, book: str = "") -> str:
    """
    Render the whole page of a report.

    programs  where the programs that show its failures are from the page, by their names
    book      the address of the book, to which the clauses of the specification lead
    """
    tallies = report["tallies"]
    failed = sort_by_cause(report, [tally for tally in tallies if tally["verdict"] == "failed"])
    anchors = {id(tally): f"failure-{number}" for number, tally in enumerate(failed, 1)}
    unmet = {id(tally) for tally in not_required(report, failed)}
    bodies = {
        ("causes", "Root causes"): render_root_causes(report, failed, anchors),
        ("verdicts", "Verdicts"): render_verdicts(tallies, anchors, unmet),
        ("failures", "Failures"): render_failures(report, failed, anchors, programs or {}),
        ("specification", "What the specification says"): render_specification(report, book),
        ("weak", "Weak"): render_reasons(tallies, "weak"),
        ("known", "Known failures"): render_reasons(tallies, "known failure"),
        ("unsupported", "Unsupported"): render_reasons(tallies, "unsupported"),
        ("environment", "Environment"): render_environment(report),
        ("reading", "How to read this page"): render("reading.html"),
    }
    sections = [Section(*names, body) for names, body in bodies.items() if body]
    return render_page(describe_outcome(report, failed), render_lead(report), sections)


def framed_page(report: Report) -> str:
    """Render the same in a frame, to be put into another page, whose styles it leaves alone."""
    return render("frame.html", title="Report of attnverify", page=str(report_page(report)))


def sort_by_cause(report: Report, failed: list[Tally]) -> list[Tally]:
    """Sort the failed cells, those that show a root cause first, in the order of the causes."""
    shown = [
        (cause["backend"], name)
        for cause in report.get("root_causes", [])
        for name in cause["cells"]
    ]
    place = {pair: number for number, pair in reversed(list(enumerate(shown)))}
    return sorted(
        failed, key=lambda tally: place.get((tally["backend"], name_of(tally)), len(shown))
    )


def describe_outcome(report: Report, failed: list[Tally]) -> str:
    """
    Write the title: how many cells failed, of how many; those that need not hold are counted apart.
    """
    left_out, need_not = len(report.get("left_out", ())), len(not_required(report, failed))
    total = f"{len(report['tallies']) - need_not} cells"
    rest = f", {need_not} failed that need not hold" if need_not else ""
    rest += f", {left_out} not judged" if left_out else ""
    weak = sum(tally["verdict"] == "weak" for tally in report["tallies"])
    if len(failed) > need_not:
        return f"Verification: {len(failed) - need_not} of {total} failed{rest}"
    if weak:
        return f"Verification: {weak} of {total} are weak{rest}"
    found = f"no failure in {total}" if report["tallies"] else "nothing was judged"
    return f"Verification: {found}{rest}"


def not_required(report: Report, failed: list[Tally]) -> list[Tally]:
    """List the failures that are none of the run; none where the report does not say."""
    required = {b["name"]: b.get("required", ASPECTS) for b in report.get("backends", [])}
    return [
        tally
        for tally in failed
        if tally["aspect"] not in required.get(tally["backend"], ASPECTS)
        and not is_unexpected_pass(tally)
    ]


def render_lead(report: Report) -> Markup:
    """
    Render the counts of the verdicts, what was run, the backends that could not be judged, and what
    failed that need not hold.
    """
    tallies, options = report["tallies"], report.get("options", {})
    counts = [(v, sum(tally["verdict"] == v for tally in tallies)) for v in VERDICTS]
    totals = {name: sum(tally[name] for tally in tallies) for name in ("cases", "strong", "checks")}
    return render(
        "lead.html",
        counts=[(verdict, number) for verdict, number in counts if number],
        profile=options.get("profile"),
        seed=options.get("seed"),
        run=describe_run(report),
        commits=[f"{name}: {commit}" for name, commit in commits_of_backends(report).items()],
        troubles=[
            f"{b['source']}: {state}"
            for b in report.get("backends", [])
            if (state := describe_state(b)) != "judged"
        ],
        limits=describe_not_required(
            not_required(report, [tally for tally in tallies if tally["verdict"] == "failed"])
        ),
        **totals,
    )


def describe_state(backend: dict[str, Any]) -> str:
    """Say ``judged``, or why the backend could not be."""
    words = (word for word in ("broken", "missing") if backend.get(word))
    return next((f"{word} ({backend[word]})" for word in words), "judged")


def render_verdicts(tallies: list[Tally], anchors: dict[int, str], unmet: set[int]) -> Markup:
    """
    Render one row for each operation, implementation and dtype, one column for each aspect;
    backends of one name have a row each.
    """
    rows: dict[tuple[Any, ...], dict[str, Tally]] = defaultdict(dict)
    for tally in tallies:
        label = f"{tally['backend']}:{tally['how']}" if tally["how"] else tally["backend"]
        namesakes = (rows[tally["operation"], label, tally["dtype"], number] for number in count())
        next(row for row in namesakes if tally["aspect"] not in row)[tally["aspect"]] = tally
    return render(
        "verdicts.html",
        verdicts=VERDICTS,
        dtypes=(*DTYPES, "bool"),
        titles=("Operation", "Implementation", "Dtype", *ASPECTS, "Worst budget", "Cases"),
        rows=[describe_row(key, cells, anchors, unmet) for key, cells in rows.items()],
    )


def describe_row(
    key: tuple[Any, ...], cells: dict[str, Tally], anchors: dict[int, str], unmet: set[int]
) -> dict[str, Any]:
    operation, label, dtype, _ = key
    budget = max(float(tally["budget"]) for tally in cells.values())
    return {
        "operation": operation,
        "label": label,
        "dtype": dtype,
        "cells": [describe_cell(cells.get(aspect), anchors, unmet) for aspect in ASPECTS],
        "verdicts": " ".join(sorted({t["verdict"].partition(" ")[0] for t in cells.values()})),
        "budget": budget,
        "share": format_budget(budget),
        "cases": sum(tally["cases"] for tally in cells.values()),
    }


def describe_cell(
    tally: Tally | None, anchors: dict[int, str], unmet: set[int]
) -> dict[str, Any] | None:
    """Write one verdict in words; a failure leads to its place below."""
    if tally is None:
        return None
    failed = NOT_MET if id(tally) in unmet else "FAILED"
    words = {"known failure": tally.get("kind") or "known", "failed": failed}
    return {
        "verdict": tally["verdict"],
        "words": words.get(tally["verdict"], tally["verdict"]),
        "anchor": anchors.get(id(tally)),
        "reason": tally["reason"],
    }


def render_reasons(tallies: list[Tally], verdict: str) -> Markup:
    """Render every reason once, with the cells of which it is told; nothing where there is none."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for tally in tallies:
        if tally["verdict"] == verdict:
            found[tally["backend"], tally.get("kind", ""), tally["reason"]].append(name_of(tally))
    rows = [
        {"backend": backend, "kind": kind, "reason": reason, "cells": cells}
        for (backend, kind, reason), cells in found.items()
    ]
    if not rows:
        return Markup()
    identity = f"{verdict.partition(' ')[0]}-reasons"
    return render("reasons.html", verdict=verdict, identity=identity, rows=rows)


def render_environment(report: Report) -> Markup:
    """Render the backends with what they run on, and the machine."""
    backends = report.get("backends", [])
    facts = {
        "installed": report.get("installed", ""),
        **report.get("environment", {}),
        **report.get("options", {}),
    }
    return render(
        "environment.html",
        backends=[
            {
                "source": b["source"],
                "state": describe_state(b),
                "device": b.get("device", ""),
                "versions": b.get("versions", ""),
            }
            for b in backends
        ],
        notes=[f"{b['source']}: {note}" for b in backends for note in b.get("notes", [])],
        facts=[(name.replace("_", " "), format_fact(value)) for name, value in facts.items()],
    )


def format_fact(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)
