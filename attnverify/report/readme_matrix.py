"""
The matrix of operations by implementations, as Markdown.
"""

from collections import defaultdict
from typing import Any

from attnverify.judge.comparison import format_budget
from attnverify.report.table import catalogue_index


def readme_matrix(tallies: list[dict[str, Any]]) -> list[str]:
    """
    Write the README's matrix, in Markdown: operations by implementations, ``20/20 0.98x`` for
    columns passed / judged and the worst budget.
    """
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for tally in tallies:
        cells[tally["operation"], tally["backend"]].append(tally)
    backends = sorted({backend for _, backend in cells})
    lines = [f"| operation | {' | '.join(backends)} |", "|---" * (len(backends) + 1) + "|"]
    for operation in sorted({operation for operation, _ in cells}, key=catalogue_index):
        entries = (matrix_entry(cells.get((operation, backend), [])) for backend in backends)
        lines.append(f"| `{operation}` | {' | '.join(entries)} |")
    return lines


def matrix_entry(tallies: list[dict[str, Any]]) -> str:
    """
    Write one entry of the matrix; the implementations that a backend has beside the plain one are
    named.
    """
    if not tallies:
        return "-"
    judged = [tally for tally in tallies if tally["verdict"] != "unsupported"]
    passed = sum(tally["verdict"] == "passed" for tally in judged)
    budget = max((tally["budget"] for tally in judged), default=0.0)
    others = sorted({tally["how"] for tally in tallies} - {""})
    return f"{passed}/{len(judged)} {format_budget(budget)}" + (
        f" (also {', '.join(others)})" if others else ""
    )
