"""
The book's Sphinx extension: pages written from the specification before the build reads them, and
directives that execute.
"""

from pathlib import Path
from typing import Any

from book import docstrings, facts


def setup(app: Any) -> dict[str, Any]:
    """
    What Sphinx calls; its own modules are imported here, so that the pages' text can be tested
    without Sphinx.
    """
    from book import accessibility, gallery, live_cells, pages, search
    from book.directives import EveryOperation, Measured, Noticed, NoticedSince, Picture, Run

    app.add_directive("run", Run)
    app.add_directive("picture", Picture)
    app.add_directive("measured", Measured)
    app.add_directive("every-operation", EveryOperation)
    app.add_directive("noticed-since", NoticedSince)
    app.add_directive("noticed", Noticed)
    app.connect("builder-inited", lambda app: pages.write(Path(app.srcdir) / "operations"))
    app.connect(
        "build-finished",
        lambda app, error: error or live_cells.write(Path(app.outdir) / "_static" / "live"),
    )
    app.connect("build-finished", lambda app, error: error or search.write(Path(app.outdir)))
    app.connect(
        "build-finished", lambda app, error: error or gallery.write_reports(Path(app.outdir))
    )
    app.connect("html-page-context", search.load)
    app.connect("html-page-context", accessibility.mend, priority=900)  # after the theme
    app.connect("autodoc-process-docstring", without_errata)
    app.connect("object-description-transform", name_clauses)
    app.connect("viewcode-find-source", source_for_readers)
    return {"version": "1", "parallel_read_safe": False}


def without_errata(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    from attnverify.catalogue.operation import CATALOGUE

    if name.split(".")[-1] in CATALOGUE:
        lines[:] = docstrings.without_errata(lines)
    lines[:] = docstrings.stacked(lines)
    lines[:] = facts.without_seeds("\n".join(lines)).split("\n")


def name_clauses(app: Any, domain: str, kind: str, content: Any) -> None:
    """Give each clause of a function a name, to which reports lead."""
    from docutils import nodes

    from attnverify.catalogue.docstrings import anchor_of_clause

    function = content.parent[0]["fullname"]
    for clauses in content.findall(nodes.enumerated_list):
        for number, clause in enumerate(clauses, clauses.get("start", 1)):
            clause["ids"].append(anchor_of_clause(function, number))


def source_for_readers(app: Any, modname: str) -> tuple[str, dict[str, Any]]:
    """The source page of a module of the specification, and where its functions stand in it."""
    from sphinx.pycode import ModuleAnalyzer

    analyzer = ModuleAnalyzer.for_module(modname)
    analyzer.find_tags()
    return facts.without_seeds(analyzer.code), analyzer.tags
