"""
The page of an operation, as text: what its function says, its code beside its formula, and what the
suite knows of it.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from attnverify.catalogue.operation import CATALOGUE, Operation
from attnverify.catalogue.traits import CHAPTERS
from book import (
    beside,
    conventions,
    docstrings,
    error_bounds,
    facts,
    gallery,
    live_cells,
    pitfalls,
    status,
    versions,
)
from book.docstrings import formulas, sentence
from book.formula_lines import ANCHORS
from book.source_lines import Passage, find, whole

DOCS = Path(__file__).parents[2]


def write(folder: Path) -> None:
    """
    Write one page for each operation and one for each chapter; what has not changed is left as it
    is.
    """
    folder.mkdir(exist_ok=True)
    written = {operation: page(operation) for operation in pages_of_the_book()}
    pages = {operation.name: text for operation, text in written.items()}
    pages |= {f"chapter_{chapter}": contents(chapter) for chapter in CHAPTERS}
    for name, text in pages.items():
        write_changed(folder / f"{name}.rst", text)
    write_changed(folder / "table.inc", "\n".join(table()))
    write_changed(folder.parent / "chapters" / "gallery.rst", gallery.page())
    write_changed(folder.parent / "chapters" / "beside_others.rst", beside.page(written))
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()


def write_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def table() -> Iterator[str]:
    """Every operation with its sentence and its chapter, for the front page."""
    yield ".. list-table::\n   :header-rows: 1\n   :class: operations\n"
    yield "   * - operation\n     - what it computes\n     - chapter"
    for chapter in CHAPTERS:
        for operation in pages_of_the_book():
            if operation.chapter == chapter:
                told = docstrings.plain_text(sentence(operation.specification))
                yield f"   * - :doc:`/operations/{operation.name}`\n     - {told}"
                yield f"     - :doc:`{chapter} </operations/chapter_{chapter}>`"
    yield ""


@lru_cache
def pages_of_the_book() -> tuple[Operation, ...]:
    """
    Every operation that is no gradient; a gradient stands on the page of what it is the gradient
    of.
    """
    return tuple(operation for operation in CATALOGUE.values() if not operation.is_gradient)


def contents(chapter: str) -> str:
    """A chapter: what its module says, and its operations."""
    names = [operation.name for operation in pages_of_the_book() if operation.chapter == chapter]
    helpers = [name for name in SHARED if SHARED[name] == chapter]
    lines = [
        *heading(TITLES.get(chapter, chapter.capitalize()), "="),
        f".. automodule:: attnverify.spec.{chapter}",
        "   :no-members:",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
    ]
    lines += [*(f"   {name}" for name in names), ""]
    lines += [f"- :doc:`{name}` - {sentence(CATALOGUE[name].specification)}" for name in names] + [
        ""
    ]
    if helpers:
        lines += [
            "What several operations share:",
            "",
            *(f".. autofunction:: attnverify.spec.{chapter}.{name}\n" for name in helpers),
        ]
    return "\n".join(lines)


TITLES = {"alibi": "ALiBi", "relative": "Relative positions"}

SHARED = {"attend": "attention", "attend_grad": "attention", "products_grad": "attention",
"split_heads": "layers", "merge_heads": "layers",
          "linear": "layers", "layer_norm": "layers"}  # fmt: skip
"""Functions of the specification that are no operations, but that the operations refer to."""


def heading(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


def page(operation: Operation) -> str:
    """The page of one operation, its sections in the order of the book."""
    return "\n".join(parts(operation))


def parts(operation: Operation) -> Iterator[str]:
    gradient = operation.gradient
    yield from heading(operation.name, "=")
    yield f".. py:currentmodule:: attnverify.spec.{operation.chapter}\n"
    yield f"*Chapter* :doc:`{operation.chapter} <chapter_{operation.chapter}>`\n"
    yield from facts.section_why(operation)
    yield from declare_function(operation)
    yield from heading("The arguments in words", "-")
    yield from facts.section_arguments(operation)
    yield from heading("The formula and its code", "-")
    yield from facts.section_symbols(operation)
    yield from sides(operation)
    yield from whole_function(operation)
    yield from heading("A worked example", "-")
    yield f".. include:: /worked_examples/{operation.name}.rst\n"
    yield from live_cells.cell(operation)
    if gradient:
        yield from heading("The gradient", "-")
        yield from declare_function(gradient)
        yield from facts.derivation(operation)
        yield from facts.section_arguments(gradient)
        yield from sides(gradient)
        yield from whole_function(gradient)
    yield from heading("Traps", "-")
    yield from pitfalls.section(operation)
    yield from heading("Numerics", "-")
    yield from error_bounds.section(operation)
    yield from heading("Where it stands", "-")
    yield from status.section(operation)
    yield from heading("Conventions elsewhere", "-")
    yield from conventions.section(operation)
    yield from heading("Versions of its meaning", "-")
    yield from versions.section(operation)
    yield from heading("The line to run", "-")
    yield from lines_to_run(operation)


def declare_function(operation: Operation) -> Iterator[str]:
    yield f".. autofunction:: attnverify.spec.{operation.chapter}.{operation.name}\n"


def sides(operation: Operation) -> Iterator[str]:
    """
    Beside each part of the formula the statements that implement it, as they stand in the source.
    """
    found, anchors = formulas(operation.specification), ANCHORS[operation.name]
    if len(found) != len(anchors):
        raise ValueError(
            f"{operation.name}: wanted anchors for {len(found)} parts of its formula, got "
            f"{len(anchors)}"
        )
    if not found:
        yield "It has no formula: what it returns is zeros.\n"
    for formula, statements in zip(found, anchors, strict=True):
        passages = [find(anchor) for anchor in statements]
        yield ".. container:: sides\n"
        yield f"   .. math:: {formula}\n"
        yield "   .. container:: code\n"
        for passage in passages:
            yield f"      .. code-block:: python\n         :caption: {in_the_source(passage)}\n"
            yield from ("         " + line for line in passage.text.splitlines())
            yield ""


def whole_function(operation: Operation) -> Iterator[str]:
    """The function without its docstring, which stands above, and the helpers that it calls."""
    shown = operation.forward.specification if operation.is_gradient else None
    passages = whole(operation.specification, shown)
    yield "The whole function, as it runs" + (
        ", and the functions of the specification that it calls:\n" if passages[1:] else ":\n"
    )
    for passage in passages:
        yield f".. code-block:: python\n   :caption: {in_the_source(passage)}\n"
        yield from ("   " + line for line in passage.text.splitlines())
        yield ""


def in_the_source(passage: Passage) -> str:
    """The place of a passage, with a link to its function in the source, where the site has it."""
    file, name = passage.place.partition(":")[0], passage.function
    chapter = Path(file).stem
    if (CATALOGUE[name].chapter if name in CATALOGUE else SHARED.get(name)) != chapter:
        return passage.place
    return f"`{passage.place} <../_modules/attnverify/spec/{chapter}.html#{name}>`__"


def lines_to_run(operation: Operation) -> Iterator[str]:
    gradient = operation.gradient
    yield "Every backend of the project, your own file, and the seeded faults:\n"
    yield ".. code-block:: sh\n"
    yield f"   .venv/bin/pytest -m differential --attn-op={operation.name}"
    yield f"   .venv/bin/attnverify run my_kernel.py --op {operation.name}"
    yield f'   .venv/bin/pytest -m faults -k "{operation.name}"\n'
    if gradient:
        yield (
            f"The gradients are a column of the same verdict; ``{gradient.name}`` is judged as "
            "an operation where a backend exports it.\n"
        )
