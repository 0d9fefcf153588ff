"""
The failures of a report: root causes first, then each failed cell with cause, pictures, recipe and
the line that replays it.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from attnverify.catalogue.docstrings import anchor_of_clause
from attnverify.report.html.document import render
from attnverify.report.html.heatmaps import describe_maps, describe_picture

PICTURED = 60
"""As many failed cells have pictures; the root causes come first, and a replay shows the others."""

DEFAULT_FOLDER = ".attnverify/failures"

Report = dict[str, Any]
Tally = dict[str, Any]


def name_of(tally: Tally) -> str:
    return f"{tally['implementation']} {tally['dtype']} {tally['aspect']}"


def render_root_causes(report: Report, failed: list[Tally], anchors: dict[int, str]) -> Markup:
    """Render the causes from the lowest level upwards: mended first what stands first."""
    if not failed:
        return Markup()
    causes = report.get("root_causes", [])
    places = {(tally["backend"], name_of(tally)): anchors[id(tally)] for tally in failed}

    def links(cause: dict[str, Any], names: list[str]) -> list[tuple[str, str | None]]:
        return [(name, places.get((cause["backend"], name))) for name in names]

    linked = [
        cause | {"shown_by": links(cause, cause["cells"]), "blocks": links(cause, cause["blocked"])}
        for cause in causes
    ]
    required = [cause for cause in linked if cause.get("required", True)]
    return render(
        "causes.html",
        waiting=sum(len(cause["blocked"]) for cause in required),
        required=required,
        need_not=[cause for cause in linked if cause not in required],
    )


def render_failures(
    report: Report, failed: list[Tally], anchors: dict[int, str], programs: Mapping[str, str]
) -> Markup:
    """
    Render every failed cell, with the programs that show it by the names of their files; the
    cell that tells of each root cause is open.
    """
    if not failed:
        return Markup()
    causes = report.get("root_causes", [])
    first = {(cause["backend"], cause["representative"]) for cause in causes}
    told = find_told(failed, first, anchors)
    return render(
        "failures.html",
        failures=[
            {
                "anchor": anchors[id(tally)],
                "title": f"{tally['implementation']} of {tally['backend']} in {tally['dtype']}: "
                f"{tally['aspect']}",
                "is_open": (tally["backend"], name_of(tally)) in first,
                "findings": [
                    describe_finding(
                        finding, report, f"{anchors[id(tally)]}-{i}", number < PICTURED
                    )
                    | {
                        "told": told.get((tally["backend"], names_of_causes(finding))),
                        "program": programs.get((finding["record"] or {}).get("program", "")),
                        "clauses": [*find_clauses(report, tally, finding)],
                    }
                    for i, finding in enumerate(tally["findings"])
                ],
            }
            for number, tally in enumerate(failed)
        ],
    )


def find_clauses(
    report: Report, tally: Tally, finding: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """
    Find what the specification says against a failure, each with its place on the page: the clauses
    that the mistakes violate which the diagnosis names, and the whole operation, or its gradient
    where that failed.
    """
    said, violated = report.get("specification", {}), report.get("violated", {})
    for mistake in sorted(names_of_causes(finding) & violated.keys()):
        operation, _, number = violated[mistake].partition(", clause ")
        known = number in said.get(operation, {}).get("clauses", {})
        yield VIOLATES, violated[mistake], anchor_of_operation(operation, number) if known else ""
    record = finding["record"] or {}
    names = (record.get("operation"), tally["operation"])
    if name := next((each for each in names if each in said), ""):
        yield SHOULD, f"{name}, as specified", anchor_of_operation(name)


VIOLATES = "What that violates"
SHOULD = "What it should do"


def anchor_of_operation(name: str, number: str = "") -> str:
    """Name the place on the page of an operation, or of one of its clauses."""
    return f"specification-{name}" + f"-{number}" * bool(number)


def render_specification(report: Report, book: str = "") -> Markup:
    """
    Render what the specification says of each operation that failed; with links into the book where
    it is said where that is.
    """
    found = report.get("specification", {})
    if not found:
        return Markup()
    root = f"{book.rstrip('/')}/" if book else ""
    return render(
        "specification.html",
        operations=[describe_specification(name, said, root) for name, said in found.items()],
    )


def describe_specification(name: str, said: dict[str, Any], root: str) -> dict[str, Any]:
    root = root if said["page"] else ""  # what is from outside has no page
    page = f"{root}{said['page']}"
    return said | {
        "name": name,
        "anchor": anchor_of_operation(name),
        "place": root and f"{page}#{said['function']}",
        "clauses": [
            {
                "text": text,
                "anchor": anchor_of_operation(name, number),
                "place": root and f"{page}#{anchor_of_clause(name, int(number))}",
            }
            for number, text in said["clauses"].items()
        ],
    }


def find_told(
    failed: list[Tally], first: set[tuple[str, str]], anchors: dict[int, str]
) -> dict[tuple[str, frozenset[str]], tuple[str, str]]:
    """
    Find the cell, by its anchor and name, that tells of each cause: one that represents a root
    cause, so that the others need only name it.
    """
    shown = [tally for tally in failed if (tally["backend"], name_of(tally)) in first]
    return {
        (tally["backend"], names_of_causes(finding)): (anchors[id(tally)], name_of(tally))
        for tally in reversed(shown)
        for finding in tally["findings"]
        if names_of_causes(finding)
    }


def names_of_causes(finding: dict[str, Any]) -> frozenset[str]:
    """Name the mistakes that a finding's diagnosis takes it for."""
    cause = finding["cause"]
    return frozenset(each["name"] for each in cause["explanations"]) if cause else frozenset()


def describe_finding(
    finding: dict[str, Any], report: Report, identity: str, with_pictures: bool
) -> dict[str, Any]:
    """
    Describe one finding, with the line that replays it where the failures of this report are kept.
    """
    evidence = {"inputs": []} | finding["evidence"]  # older reports have none
    pictures = describe_pictures(evidence) if with_pictures else NO_PICTURES
    replay = finding["record"] and format_replay(finding["record"], report)
    more = {"identity": identity, "replay": replay, "evidence": evidence}
    return finding | more | pictures


NO_PICTURES: dict[str, Any] = {"small": None, "drawn": None}


def describe_pictures(evidence: dict[str, Any]) -> dict[str, Any]:
    """
    Describe the picture of the smallest case, and that of a case as it was drawn where it shows
    more.
    """
    small, drawn = evidence["picture"], evidence["drawn"]
    in_numbers = drawn and small and small["total"] == 1  # the map of one element shows nothing
    return {
        "small": small and (describe_picture(small) if in_numbers else describe_maps(small)),
        "drawn": drawn and {"recipe": drawn["recipe"], "picture": describe_maps(drawn["picture"])},
    }


def format_replay(record: dict[str, Any], report: Report) -> str:
    """Write the line that replays it, also where the failures are kept elsewhere."""
    folder = report.get("failures", DEFAULT_FOLDER)
    elsewhere = f" --failures {shlex.quote(folder)}" if folder != DEFAULT_FOLDER else ""
    return f"{record['replay']}{elsewhere}"
