"""Findings travel as data: no module of the judge reads a sentence that another has written."""

import ast
from pathlib import Path

import pytest

from attnverify import PACKAGE

READS = {
    "catalogue/docstrings.py": "the clauses of the specification",
    "backends/calls/arguments.py": "the signature that a compiled function says in its docstring",
    "backends/source.py": "what the user calls a backend",
    "backends/calls/headless.py": "the axes of an annotation",
    "backends/calls/layer_modules.py": "the names of weights",
    "bench/report/html_page.py": "a plot that matplotlib drew",
    "bench/report/results.py": "a device's name, for a folder",
    "catalogue/operation.py": "the letters of a signature",
    "cli/operations.py": "a docstring's clauses and its annotations",
    "diagnosis/whereabouts/places.py": "its own words of a place, to tell them beside another case",
    "doctor.py": "what pip and the kernel of the system say",
    "failures/known_failures.py": "the user's file of known failures",
    "failures/scripts/page.py": "its own body, for the names that it must import",
    "failures/record.py": "the name of a record's file",
    "failures/scripts/script.py": "the source that a script is made of",
    "inputs/conditions.py": "the conditions of a known-failures file",
    "catalogue/field_words.py": "the same, where they are words",
    "contract/shapes.py": "the axes of arguments, once",
    "isolation/readings.py": "what the system says of its memory",
    "isolation/worker_process.py": "a traceback of Python",
    "judge/judging.py": "the path of an output, which it has written itself",
    "judge/invoke.py": "every warning, to silence it",
    "report/html/document.py": "letters that no page may hold",
    "specified/reading.py": "the axes of an annotation",
    "specified/pytorch/problems.py": "the name of a problem's file",
    "specified/pytorch/definitions.py": "the name of a definition, and its constraints on axes",
    "report/json_report.py": "its own rows, to print each on a line",
    "report/junit.py": "the names of the tests of cells",
    "report/html/reproducers.py": "the names of files in a report that anybody may have written",
    "report/terminal_colours.py": "the words of verdicts, to colour them where they are printed",
}
"""The modules that have a regular expression, and what it reads."""

APART = ("ptx", "faults")
"""Rooms that read PTX, and the tables of seeded faults."""


def uses_patterns(text: str) -> bool:
    """Whether a module calls a function of ``re``."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "re"
        for node in ast.walk(ast.parse(text))
    )


def files() -> dict[str, Path]:
    """The judge's modules, by their path in it."""
    found = {path.relative_to(PACKAGE): path for path in PACKAGE.rglob("*.py")}
    return {name.as_posix(): path for name, path in found.items() if name.parts[0] not in APART}


def test_no_pattern_reads_another_modules_sentences() -> None:
    found = {name for name, path in files().items() if uses_patterns(path.read_text())}
    assert found == set(READS)


@pytest.mark.parametrize(
    "line", ["re.search('expected', text)", "PATTERN = re.compile('cause: (.*)')"]
)
def test_a_pattern_over_a_message_is_found(line: str) -> None:
    assert uses_patterns(f"import re\n\n{line}\n") and not uses_patterns("import json\n")
