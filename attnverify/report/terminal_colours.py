"""A terminal's width and colours: of verdicts, and of nothing that is not also said in words."""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from textwrap import wrap
from typing import TextIO

COLOURS = {
    "FAILED": "1;31",
    "broken": "1;31",
    "WEAK": "1;31",
    "passed": "32",
    "ok": "32",
    "known": "33",
    "nonconform": "33",
    "limitation": "33",
    "missing": "33",
    "not met": "33",
}
WORD = re.compile(rf"\b({'|'.join(COLOURS)})\b")


def use_colour(stream: TextIO) -> bool:
    """
    Tell whether a stream is to be coloured: NO_COLOR forbids it, FORCE_COLOR asks for it, else
    terminals are.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (
        stream.isatty() and os.environ.get("TERM") != "dumb"
    )


OF_A_LOG = 100
"""As wide as lines are that go to a file, a pipe or the log of a workflow."""


def terminal_width(stream: TextIO) -> int:
    """Read the columns of the terminal that a stream is, or as COLUMNS says; or those of a log."""
    asked = os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if asked or stream.isatty() else OF_A_LOG


COPIED = re.compile(
    r"^(.*?:) ((?:attnverify|python) .*|[A-Z][A-Z_]+ = .*|\S.* : <reason>)(?: +(\(.*))?$"
)
"""Words, what somebody will copy, words again."""

LINE = re.compile(r" +[A-Z][A-Z_]+ = ")
"""What somebody will copy, alone in its line."""

COLUMN = re.compile(r"^ *\S+(?: \S+)* {2,}(?=\S)")
"""A word in a column of its own, before its description."""


def fold(line: str, width: int | None) -> list[str]:
    """
    Fold a line to a terminal's width, its rest below its beginning. What is to be copied stays
    whole, on a line of its own.
    """
    if width is None or len(line) <= width:
        return [line]
    start = len(line) - len(line.lstrip())
    if LINE.match(line):
        return [line]
    if copied := COPIED.match(line):
        words, whole, more = copied.groups()
        rest = fold(f"{' ' * start}  {more}", width) if more else []
        return [*fold(words, width), f"{' ' * start}  {whole}", *rest]
    column = COLUMN.match(line)
    indent = column.end() if column and column.end() <= width // 2 else start + 2
    return wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def has_copied(line: str) -> bool:
    """Tell whether a line ends in what somebody will copy."""
    return bool(COPIED.match(line))


def fold_lines(lines: Iterable[str], width: int | None) -> list[str]:
    return [part for line in lines for part in fold(line, width)]


def fold_words(words: str, width: int | None, head: str = "Error: ") -> str:
    """Fold a sentence that somebody else prints behind a head."""
    return "\n".join(fold_lines(f"{head}{words}".splitlines(), width)).removeprefix(head)


def print_folded(lines: Iterable[str]) -> None:
    """Print lines as wide as the terminal, with their verdicts in colour."""
    for part in fold_lines(lines, terminal_width(sys.stdout)):
        print(colourize(part), flush=True)


def colourize(line: str, colour: bool | None = None) -> str:
    """Colour the line's first verdicts, where colours are wanted (by default: on stdout)."""
    if not (use_colour(sys.stdout) if colour is None else colour):
        return line
    return WORD.sub(lambda found: f"\x1b[{COLOURS[found[1]]}m{found[1]}\x1b[0m", line)
