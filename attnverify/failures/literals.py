"""
Arrays as Python writes them: nested lists of numbers, folded to the width of a page.
"""

import textwrap
from typing import Any

import numpy as np
from numpy import ndarray

from attnverify.catalogue.dtypes import round_to

WIDTH = 96


def write_array(make: str, x: ndarray, dtype: str = "", digits: str = "float64") -> str:
    """Write an array as nested lists, on as many lines as it takes."""
    text = write_numbers(x, digits)
    line = f"{make}({text}{', ' * bool(dtype)}{dtype})"
    if len(line) <= WIDTH - len("expected = "):
        return line
    indent = " " * 4
    folded = textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return f"{make}(\n{folded},\n{indent * bool(dtype)}{dtype}{f',{chr(10)}' * bool(dtype)})"


def write_numbers(x: ndarray, dtype: str) -> str:
    """Write the numbers of an array as nested lists, each by as few digits as its dtype needs."""
    return _nested(x.tolist(), dtype)


def _nested(x: Any, digits: str) -> str:
    """Write nested lists of numbers, each by as few digits as are read as it in its dtype."""
    if isinstance(x, list):
        return f"[{', '.join(_nested(part, digits) for part in x)}]"
    return _shortest(x, digits) if isinstance(x, float) else repr(x)


def _shortest(x: float, dtype: str) -> str:
    for places in (3, 5, 7, 9):
        text = f"{x:.{places}g}"
        if round_to(np.array(float(text)), dtype) == x:
            return repr(float(text))
    return repr(x)
