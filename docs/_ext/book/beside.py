"""
This book beside the pages of others: what a reader expects of the page of an operation, and who has
it. What stands here of this book is counted on its pages as they are made; what stands of the
others was read, in docs/data/beside.toml.
"""

from collections.abc import Callable, Iterator, Mapping

from attnverify.catalogue.operation import Operation
from book import facts, live_cells

Has = Callable[[Operation, str], bool]
Pages = Mapping[Operation, str]
"""The text of each operation's page."""


def _example(operation: Operation) -> str:
    path = facts.DATA.parent / "worked_examples" / f"{operation.name}.rst"
    return path.read_text(encoding="utf-8")


HERE: dict[str, Has] = {
    "why": lambda operation, page: facts.of(operation)["why"] in page,
    "paper": lambda operation, page: "**Paper**: `" in page,
    "arguments": lambda operation, page: all(
        f"   * - ``{name}``\n" in page for name in operation.arguments
    ),
    "whole": lambda operation, page: f"   def {operation.name}(" in page,
    "formula": lambda operation, page: ".. container:: sides" in page,
    "example": lambda operation, page: ".. run::" in _example(operation),
    "versions": lambda operation, page: "\nSpecified since " in page,
    "live": lambda operation, page: any('class="live"' in x for x in live_cells.cell(operation)),
    "picture": lambda operation, page: ".. picture::" in page + _example(operation),
    "traps": lambda operation, page: ":class: faults" in page,
    "numerics": lambda operation, page: "\nNumerics\n--------\n" in page,
    "gradient": lambda operation, page: not operation.gradient or "**How it follows.**" in page,
    "speed": lambda operation, page: "\nSpeed, " in page,
}
"""What tells whether a page has what a reader expects, by the row's name."""


def page(pages: Pages) -> str:
    """The chapter, made from the file and from the pages."""
    return "\n".join(parts(pages))


def parts(pages: Pages) -> Iterator[str]:
    found = facts.read("beside")
    yield "Beside other books\n==================\n"
    yield f"{found['introduction'].strip()}\n"
    yield ".. list-table::\n   :header-rows: 1\n   :class: beside\n"
    others = found["others"]
    yield "   * - a reader expects"
    yield from (f"     - {facts.link(*facts.read()['tools'][name])}" for name in others)
    yield "     - this book"
    for row in found["rows"]:
        yield f"   * - {row['expects']}"
        yield from (f"     - {row[name]}" for name in others)
        yield f"     - {told(row, pages)}"
    yield ""


def told(row: dict[str, str], pages: Pages) -> str:
    """Yes, on how many of the pages; where not on all of them, why not."""
    having = sum(HERE[row["name"]](operation, text) for operation, text in pages.items())
    if having == len(pages):
        return f"yes, on all {having} pages"
    return f"on {having} of {len(pages)} pages: {row['why_not']}"
