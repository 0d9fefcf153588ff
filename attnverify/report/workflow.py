"""
What a workflow shows of a report: annotations at the lines of the user's file, and a summary in
Markdown.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnverify.backends.source import parse_source
from attnverify.options import REQUIRED
from attnverify.report.readme_matrix import readme_matrix
from attnverify.report.table import summary_line

Report = dict[str, Any]
Tally = dict[str, Any]

SHOWN = 20
"""Failures that a summary names; the page has them all."""


def annotate(report: Report, require: str = "answer") -> Iterator[str]:
    """
    Write one workflow command for each failed cell, at the line whose change makes it right where
    one is known, else at that of its function: an error where the
    aspect is required, a warning otherwise. A backend that could not be judged is an error of its
    file.
    """
    sources = {backend["name"]: backend["source"] for backend in report["backends"]}
    for backend in report["backends"]:
        if trouble := backend["broken"] or backend["missing"]:
            place = find_file(backend["source"]), backend.get("line", 1)
            yield command("error", *place, "not judged", trouble)
    for tally in failures(report):
        path, line = find_mend(tally) or find_place(sources.get(tally["backend"], ""), tally)
        level = "error" if tally["aspect"] in REQUIRED[require] else "warning"
        title = f"{tally['implementation']} in {tally['dtype']}: {tally['aspect']}"
        yield command(level, path, line, title, tally["reason"])


def failures(report: Report) -> list[Tally]:
    return [tally for tally in report["tallies"] if tally["verdict"] == "failed"]


def command(level: str, path: str, line: int, title: str, message: str) -> str:
    """Write a workflow command; what would end it early is escaped as the runner wants it."""
    place = f"file={escape(path, ':,')},line={line}," if path else ""
    return f"::{level} {place}title={escape(title, ':,')}::{escape(message)}"


def escape(text: str, more: str = "") -> str:
    for letter in "%\r\n" + more:
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def find_file(source: str) -> str:
    """
    Find the file of a backend that was named as a file, as one of its functions, as a folder or as
    a module, from where we are if it lies below; "" where there is none.
    """
    place = parse_source(source).place
    if place.endswith(".py"):
        return place
    if place and (Path(place) / "__init__.py").is_file():
        return (Path(place) / "__init__.py").as_posix()
    below = Path(*place.split("."))
    found = (below.with_suffix(".py"), below / "__init__.py")
    return next((path.as_posix() for path in found if path.is_file()), "")


def find_mend(tally: Tally) -> tuple[str, int] | None:
    """Find the file and line of the change that makes a cell right; None where none is known."""
    mends = (finding.get("mend") for finding in tally.get("findings", ()))
    return next(((mend["file"], mend["line"]) for mend in mends if mend), None)


def find_place(source: str, tally: Tally) -> tuple[str, int]:
    """
    Find the file and the line of what was judged: a function, or an assigned name, of a gradient
    the one ``backward`` of a file that has no function for it; of a package the file of it that has
    them. Line 1 where none says; of a file with one function that one's.
    """
    path = find_file(source)
    own, operation = parse_source(source).function.rpartition(".")[2], tally["operation"]
    names = [own, tally["implementation"], f"{operation}_{tally['how']}", operation]
    if tally["aspect"] == "gradients":
        gradient = f"{operation}_grad"
        names = [f"{gradient}_{tally['how']}", gradient, "backward", *names]
    rest = Path(path).parent.glob("*.py") if path.endswith("__init__.py") else ()
    lines: dict[str, int] = {}
    for file in dict.fromkeys((path, *sorted(each.as_posix() for each in rest))):
        lines = lines_of_names(file)
        if found := next((lines[name] for name in names if lines.get(name)), 0):
            return file, found
    return path, next(iter(lines.values())) if len(lines) == 1 else 1


def lines_of_names(path: str) -> dict[str, int]:
    """Give the line of each function, class and assigned name of a file."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found = dict[str, int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            several = node.name == "backward" and "backward" in found
            found[node.name] = 0 if several else node.lineno
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found |= {name: node.lineno for name in names if name.islower()}
    return found


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
