"""Raises what no except Exception catches."""

ARRAYS = "numpy"
PRECISION = "wide"


def shift_right(x):
    raise GeneratorExit
