"""
What the page calls: run a cell's code with the sizes of its sliders, and hand its matrices out as
JSON.
"""

import json
import re
from math import isfinite

import numpy as np
from chapters import CHAPTER_OF


def answer(code, sizes):
    """
    ``{"show": {name: rows}}``, or ``{"error": words}``; the code assigns ``show``, a dictionary
    from name to matrix.
    """
    names = {"np": np, **specification(code), **json.loads(sizes)}
    try:
        exec(code, names)
        return json.dumps({"show": {name: rows(x) for name, x in names["show"].items()}})
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def specification(code):
    """The operations that the code names; no other chapter is compiled."""
    named = [name for name in re.findall(r"[a-z_]+", code) if name in CHAPTER_OF]
    return {name: function_of(name) for name in named}


def function_of(name):
    chapter = f"attnverify.spec.{CHAPTER_OF[name]}"
    return getattr(__import__(chapter, fromlist=[name]), name)


def rows(x):
    """Rows of a matrix; what JSON has no number for is a word."""
    return [[spelled(number) for number in row] for row in x.tolist()] if x.size else []


def spelled(number):
    return number if isfinite(number) else str(number).replace("inf", "∞")
