"""
Notebooks executed without Jupyter: the code cells in one session, in order, and what each shows as
text.

    python -m tests.support.notebooks examples/first_look.ipynb    # store what is shown
"""

import ast
import io
import json
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Cell = dict[str, Any]


def read_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook of nbformat 4."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4, notebook["nbformat"]
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(cells: list[Cell]) -> tuple[list[str], dict[str, Any]]:
    """What each cell shows, and the names that they leave behind."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [execute_cell("".join(cell["source"]), names) for cell in cells], names


def execute_cell(source: str, names: dict[str, Any]) -> str:
    """What is printed, then the last expression, as Jupyter shows it in plain text."""
    statements = ast.parse(source).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
        if value is not None:
            print(repr(value))
    return printed.getvalue()


def stored(cell: Cell) -> str:
    """What a cell of the file shows."""
    return "".join(text for output in cell["outputs"] for text in output["text"])


def store(path: Path) -> None:
    """Execute a notebook in an empty folder, and write what it shows into it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with TemporaryDirectory() as folder, chdir(folder):
        texts, _ = execute(cells)
    for number, (cell, text) in enumerate(zip(cells, texts, strict=True), 1):
        lines = text.splitlines(keepends=True)
        shown = {"name": "stdout", "output_type": "stream", "text": lines}
        cell |= {"execution_count": number, "outputs": [shown] if lines else []}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    store(Path(sys.argv[1]).resolve())
