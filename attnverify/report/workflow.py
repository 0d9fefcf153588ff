"""
What a workflow shows of a report: annotations at the lines of the user's file, and a summary in
Markdown.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnverify.options import REQUIRED
from attnverify.report.readme_matrix import readme_matrix
from attnverify.report.table import summary_line

Report = dict[str, Any]
Tally = dict[str, Any]

SHOWN = 20
"""Failures that a summary names; the page has them all."""


def annotate(report: Report, require: str = "answer") -> Iterator[str]:
    """
    Write one workflow command for each failed cell, at the line of its function: an error where the
    aspect is required, a warning otherwise. A backend that could not be judged is an error of its
    file.
    """
    sources = {backend["name"]: backend["source"] for backend in report["backends"]}
    for backend in report["backends"]:
        if trouble := backend["broken"] or backend["missing"]:
            yield command("error", backend["source"], 1, "not judged", trouble)
    for tally in failures(report):
        source = sources.get(tally["backend"], "")
        level = "error" if tally["aspect"] in REQUIRED[require] else "warning"
        title = f"{tally['implementation']} in {tally['dtype']}: {tally['aspect']}"
        yield command(level, source, find_line(source, tally), title, tally["reason"])


def failures(report: Report) -> list[Tally]:
    return [tally for tally in report["tallies"] if tally["verdict"] == "failed"]


def command(level: str, file: str, line: int, title: str, message: str) -> str:
    """Write a workflow command; what would end it early is escaped as the runner wants it."""
    place = f"file={escape(file, ':,')},line={line}," if file.endswith(".py") else ""
    return f"::{level} {place}title={escape(title, ':,')}::{escape(message)}"


def escape(text: str, more: str = "") -> str:
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def find_line(source: str, tally: Tally) -> int:
    """Find the line of the function that was judged, 1 where the file does not say."""
    try:
        tree = ast.parse(Path(source).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return 1
    names = (tally["implementation"], f"{tally['operation']}_{tally['how']}", tally["operation"])
    lines = {
        node.name: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    return next((lines[name] for name in names if name in lines), 1)


def summarise(report: Report) -> Iterator[str]:
    """Write the step summary: the verdict in a line, the matrix, and the first failures."""
    failed = failures(report)
    yield f"## attnverify: {'failures' if failed else 'no failure'}\n"
    yield f"{summary_line(report['tallies'])}\n"
    yield from map(in_markup, readme_matrix(report["tallies"]))
    yield ""
    for tally in failed[:SHOWN]:
        yield f"<details><summary>{in_markup(name_of(tally))}</summary>\n"
        yield f"<pre>{in_markup(tally['reason'])}</pre>\n"
        yield "</details>\n"
    if len(failed) > SHOWN:
        yield f"{len(failed) - SHOWN} more are in the report.\n"


def name_of(tally: Tally) -> str:
    return f"{tally['implementation']}, {tally['dtype']}, {tally['aspect']}"


def in_markup(text: str) -> str:
    """Text that stays text inside of Markdown's HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
