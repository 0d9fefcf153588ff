"""
A docstring of the specification in its parts: sentence, formulas, clauses, examples, source,
errata.
"""

import re
from collections.abc import Callable
from typing import Any

from attnverify.catalogue.docstrings import clauses, paragraphs, sentence

__all__ = ["clauses", "paragraphs", "sentence"]

Function = Callable[..., Any]

ERRATA = re.compile(r"^Errat(um|a)\b")
WORDS = re.compile(r"\\text\{[^{}]*\}")


def formulas(function: Function) -> list[str]:
    """
    The formulas, part by part: they are cut at ``\\qquad``, and a part without an equals sign stays
    with the one before it.
    """
    blocks = [block for block in paragraphs(function) if block.startswith(".. math::")]
    parts: list[str] = []
    for block in blocks:
        for part in block.removeprefix(".. math::").split(r"\qquad"):
            text = plain_text(" ".join(part.split()).rstrip(", "))
            if text and parts and "=" not in text:
                parts[-1] += r",\quad " + text
            elif text:
                parts.append(text)
    return parts


def errata(function: Function) -> list[str]:
    """The paragraphs that say where a source is wrong."""
    return [" ".join(block.split()) for block in paragraphs(function) if ERRATA.match(block)]


def stacked(lines: list[str]) -> list[str]:
    """
    The lines of a docstring with the parts of each formula, which ``\\qquad`` separates, below each
    other: beside each other they are wider than a page.
    """
    blocks = re.split(r"(\n[ \t]*\n)", plain_text("\n".join(lines)))
    told = (below(block) if ".. math::" in block else block for block in blocks)
    return "".join(told).split("\n")


def plain_text(formula: str) -> str:
    """A formula whose words have plain underscores: MathJax shows the backslash of others."""
    return WORDS.sub(lambda found: found[0].replace(r"\_", "_"), formula)


def below(formula: str) -> str:
    """The parts of one formula, each in a line of its own."""
    if r"\qquad" not in formula:
        return formula
    head, directive, parts = formula.partition(".. math::")
    return f"{head}{directive} & " + r" \\ & ".join(parts.strip().split(r"\qquad"))


def without_errata(lines: list[str]) -> list[str]:
    """
    The lines of a docstring without the paragraphs that `errata` gives: the book tells them under
    the traps.
    """
    kept: list[str] = []
    inside = False
    for line in lines:
        inside = bool(ERRATA.match(line)) or (inside and line.strip() != "")
        if not inside:
            kept.append(line)
    return kept
