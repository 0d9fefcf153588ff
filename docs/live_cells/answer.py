"""
What the page calls: run a cell's code with the sizes of its sliders, and hand its matrices out as
JSON.
"""

import json

import numpy as np

from attnverify.spec import alibi, masks, memory, shifts

SPECIFICATION = {
    name: getattr(module, name)
    for module in (shifts, masks, alibi, memory)
    for name in module.__all__
}


def answer(code, sizes):
    """
    ``{"show": {name: rows}}``, or ``{"error": words}``; the code assigns ``show``, a dictionary
    from name to matrix.
    """
    names = {"np": np, **SPECIFICATION, **json.loads(sizes)}
    try:
        exec(code, names)
        return json.dumps({"show": {name: rows(x) for name, x in names["show"].items()}})
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def rows(x):
    return x.reshape(-1, x.shape[-1]).tolist() if x.size else []
