"""
The gallery of real bugs: what happened, the lines at fault, what a usual test says of them and what
this suite says. The words are in docs/data/gallery.toml, what was said in gallery.json.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnverify.faults.registry import Fault, read_faults
from attnverify.report.html import report_page
from book import facts, status

INTRODUCTION = """\
Each of these shipped in a public project. The thread is linked, the lines are ours, and each bug
is a seeded fault of this suite that was run twice. The *usual test* is what most repositories
have: one batch of normal numbers in float32, {sizes}, as many queries as keys, no rows without
keys, and ``numpy.allclose`` with a tolerance of {tolerance}. What *this suite* said is the first
finding of its quick profile.

Of the {all} bugs the usual test passes {missed}.
"""
SIZES = "two batch entries, four heads, 32 positions, 32 columns"


def page() -> str:
    """The whole page, made from the files."""
    return "\n".join(parts())


def parts() -> Iterator[str]:
    bugs, said = read_bugs(), measured()
    missed = sum(said[bug["fault"]]["usual"] == "passes" for bug in bugs)
    yield "A gallery of real bugs\n======================\n"
    yield INTRODUCTION.format(sizes=SIZES, tolerance="1e-3", all=len(bugs), missed=missed)
    for bug in bugs:
        yield from one(bug, said[bug["fault"]])
    origin = status.origin(status.read("gallery"))
    yield f"{origin} ``docs/data/measure_gallery.py`` runs it again.\n"


def read_bugs() -> list[dict[str, Any]]:
    """The bugs in the order of the file."""
    return list(facts.read("gallery")["bugs"])


def measured() -> dict[str, Any]:
    """What the two tests said, by the name of the fault."""
    found = status.read("gallery")["operations"].values()
    return {name: said for faults in found for name, said in faults.items()}


def one(bug: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
    """One bug: its story, its lines, and the two verdicts."""
    fault = read_faults()[bug["fault"]]
    yield f"{bug['title']}\n{'-' * len(bug['title'])}\n"
    yield f"*{fault.kind}*, in :doc:`/operations/{fault.operation.forward.name}`. {thread(fault)}\n"
    yield f"{bug['told']}\n"
    yield ".. code-block:: python\n"
    yield from ("   " + line for line in bug["code"].strip().splitlines())
    yield f"\nThe usual test **{said['usual']}**. What shows it: {fault.reveals}.\n"
    yield "This suite says:\n"
    yield ".. code-block:: none\n"
    yield from ("   " + line for line in said["suite"])
    page = f"../{FOLDER}/{fault.name}.html"
    yield f"\n`The page of its report <{page}>`__ in float32, as a run makes it.\n"


FOLDER = "gallery"
"""Of the built book, in which the pages of the reports are."""


def write_reports(book: Path) -> None:
    """Write the page of each bug's report, its clauses leading into the book around it."""
    (book / FOLDER).mkdir(exist_ok=True)
    for name, report in reports().items():
        page = report_page(report, book="..")
        (book / FOLDER / f"{name}.html").write_text(page, encoding="utf-8")


def reports() -> dict[str, Any]:
    """The report of each bug, by the name of its fault, with what they have in common."""
    found = status.read("gallery_reports")
    options = {"profile": found["profile"], "seed": 0}
    common = {"options": options, "installed": found["installed"], "commit": found["commit"]}
    common["date"] = found["date"]
    return {name: common | report for name, report in found["operations"].items()}


def thread(fault: Fault) -> str:
    """The link to the thread; every bug of the gallery has one."""
    linked = facts.linked_source(fault.source)
    if not linked:
        raise ValueError(f"{fault.name}: wanted a thread in threads.toml, got {fault.source!r}")
    return f"Thread: {linked}."
