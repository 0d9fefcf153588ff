"""A terminal's width and colours: of verdicts, and of nothing that is not also said in words."""

import os
import re
import shutil
import sys
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


def terminal_width(stream: TextIO) -> int | None:
    """Read the columns of the terminal that a stream is; None where it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def colourize(line: str, colour: bool | None = None) -> str:
    """Colour the line's first verdicts, where colours are wanted (by default: on stdout)."""
    if not (use_colour(sys.stdout) if colour is None else colour):
        return line
    return WORD.sub(lambda found: f"\x1b[{COLOURS[found[1]]}m{found[1]}\x1b[0m", line)
